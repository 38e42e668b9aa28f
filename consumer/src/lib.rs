#![doc = include_str!("../README.md")]
#![warn(
    clippy::allow_attributes,
    clippy::dbg_macro,
    clippy::iter_over_hash_type,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::todo,
    clippy::unimplemented,
    clippy::unwrap_used
)]

mod broker;
mod consume;
mod disposition;
mod gate;
mod handler;
pub mod headers;
mod hold;
mod rules;
mod sessions;
mod work;

pub use broker::{Broker, BrokerError, Delivery, Session, Terms, json};
pub use consume::{ConsumeError, Consumer, ConsumerBuilder, ConsumerReport};
pub use disposition::{DeadLetter, DeadLetterReason, Disposition};
pub use handler::{Handler, ProbedHandler, probed};
pub use rules::Rules;
pub use sessions::pause;
