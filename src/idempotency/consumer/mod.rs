//! Consumers of messages: the parts that are the same for every broker.
//!
//! A broker delivers a message at least once. With a [`Consumer`] each message takes effect once.
//! The consumer takes deliveries from a [`Broker`], runs the [`Handler`] under the message's key,
//! and chooses the [`Disposition`] of the delivery. The order is always the same: first the effect,
//! then the result on a majority of the nodes, then the acknowledgement. Each package below
//! `adapters/` implements [`Session`] for one broker.
//!
//! ```text
//!  fetch ─▶ claim ─▶ effect ─▶ complete ─▶ acknowledge        one effect
//!            │        │
//!            │        └─ failed ─▶ deliver again; after too many failures a dead letter
//!            ├─ result is stored ─▶ acknowledge               a duplicate
//!            ├─ in flight elsewhere ─▶ deliver again          the pause grows each time
//!            ├─ forgotten, undecided ─▶ deliver again         held until an operator decides
//!            ├─ not initialised ─▶ deliver again              all wait until a person has acted
//!            └─ mismatch, too old, parked ─▶ dead letter      a person decides
//! ```

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
pub(crate) use hold::Holdings;
pub use rules::Rules;
pub use sessions::pause;
