//! What consumers of messages have in common, whatever the broker.
//!
//! A broker delivers a message at least once. A [`Worker`] makes one effect of that: it takes
//! deliveries from a [`Source`], runs the handler under the message's key, and decides what becomes
//! of the delivery ([`Disposition`]). The order is always the same: effect, result stored on a
//! majority, acknowledgement. The packages below `adapters/` have a [`Session`] for a broker each.
//!
//! ```text
//!  fetch ─▶ claim ─▶ effect ─▶ complete ─▶ acknowledge        one effect
//!            │        │
//!            │        └─ failed ─▶ comes again, at last a dead letter
//!            ├─ result is there ─▶ acknowledge                a duplicate
//!            ├─ in flight elsewhere ─▶ comes again, each time later
//!            ├─ forgotten, undecided ─▶ comes again           held until an operator decides
//!            ├─ not initialised ─▶ comes again                all wait until a person has acted
//!            └─ mismatch, too old, parked ─▶ dead letter      a person decides
//! ```

mod disposition;
mod gate;
pub mod headers;
mod hold;
mod rules;
mod session;
mod source;
mod work;

pub use disposition::{DeadLetter, DeadLetterReason, Disposition};
pub(crate) use hold::Holdings;
#[cfg(feature = "test-util")]
pub use rules::Arrow;
pub use rules::Rules;
pub use session::{Session, Sessions, pause};
pub use source::{Delivery, Source, json};
pub use work::{ConsumeError, Ended, Worker};
