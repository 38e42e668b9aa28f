#![doc = include_str!("../README.md")]

mod builder;
mod consumer;
mod dead;
mod error;
mod group;
mod message;
mod publisher;
mod session;
mod window;

pub use builder::ConsumerBuilder;
pub use consumer::Consumer;
pub use dead::dead_letters;
pub use error::BrokerError;
pub use message::Message;
pub use publisher::Publisher;
