#![doc = include_str!("../README.md")]

mod dead;
mod error;
mod group;
mod message;
mod publisher;
mod session;
mod topic;
mod window;

pub use dead::dead_letters;
pub use message::Message;
pub use palisade::idempotency::consumer::{BrokerError, Consumer};
pub use publisher::Publisher;
pub use topic::Topic;
