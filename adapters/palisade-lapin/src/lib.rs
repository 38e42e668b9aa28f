#![doc = include_str!("../README.md")]

mod builder;
mod consumer;
mod message;
mod publisher;
mod session;
mod topology;

pub use builder::ConsumerBuilder;
pub use consumer::Consumer;
pub use message::{Message, SettleError};
pub use publisher::{PublishError, Publisher};
pub use topology::{dead_letters, retry_queue};
