#![doc = include_str!("../README.md")]

mod error;
mod message;
mod publisher;
mod redrive;
mod session;
mod stream;

pub use message::Message;
pub use palisade_consumer::{BrokerError, Consumer};
pub use publisher::Publisher;
pub use redrive::{Redriven, redrive};
pub use session::dead_letters;
pub use stream::Stream;
