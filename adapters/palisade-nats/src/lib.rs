#![doc = include_str!("../README.md")]

mod builder;
mod consumer;
mod error;
mod message;
mod publisher;
mod session;

pub use builder::ConsumerBuilder;
pub use consumer::Consumer;
pub use error::NatsError;
pub use message::Message;
pub use publisher::Publisher;
pub use session::dead_letters;
