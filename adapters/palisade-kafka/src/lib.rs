#![doc = include_str!("../README.md")]

mod commit_window;
mod dead;
mod delayed;
mod error;
mod group;
mod message;
mod publisher;
mod session;
mod topic;

pub use dead::dead_letters;
pub use message::Message;
pub use palisade_consumer::{BrokerError, Consumer};
pub use publisher::Publisher;
pub use topic::Topic;
