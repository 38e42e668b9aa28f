#![doc = include_str!("../README.md")]

mod error;
mod message;
mod publisher;
mod queue;
mod session;
mod topology;

pub use message::Message;
pub use palisade_consumer::{BrokerError, Consumer};
pub use publisher::Publisher;
pub use queue::Queue;
pub use topology::{dead_letters, retry_queue};
