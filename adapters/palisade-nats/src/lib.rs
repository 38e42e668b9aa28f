#![doc = include_str!("../README.md")]

mod durable;
mod error;
mod message;
mod publisher;
mod session;

pub use durable::Durable;
pub use message::Message;
pub use palisade_consumer::{BrokerError, Consumer};
pub use publisher::Publisher;
pub use session::dead_letters;
