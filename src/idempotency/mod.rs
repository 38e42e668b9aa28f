//! Idempotency keys: one result per key, for message consumers and request handlers that may be
//! called twice.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # struct Order { account: &'static str, amount: u32, placed: std::time::SystemTime }
//! # let order = Order { account: "alice", amount: 3, placed: std::time::SystemTime::now() };
//! use palisade::{MemoryNode, Outcome, Redlock};
//! # let redlock = Redlock::builder().node(MemoryNode::new()).build()?;
//! let orders = redlock.idempotency("orders").at_most_once().build()?;
//! for _ in 0..2 {
//!     let call = orders.key("client-key-1");
//!     let call = call.fingerprint(&(order.account, order.amount)).created_at(order.placed);
//!     match call.run(|cx| async move { Ok::<_, String>(cx.fencing_token()) }).await? {
//!         Outcome::Executed { value, .. } => println!("done now: {value}"),
//!         Outcome::Replayed(value) => println!("was done before: {value}"),
//!         Outcome::InFlight { retry_after } => println!("ask again in {retry_after:?}"),
//!         Outcome::Mismatch => println!("this key belongs to another request"),
//!         Outcome::Parked(why) => println!("unknown whether it was done: {why}"),
//!         _ => {}
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! Once any caller has received the result of a key, the handler is not started again under this
//! key, and the result does not change within the retention. If a process crashes after its handler
//! took effect and before the result is stored, this library cannot undo the effect, but the next
//! call under the key learns that an earlier attempt began and left no result.
//!
//! # Keys whose past is not known
//!
//! When a call has claimed its key, it can be unknown for two reasons whether the effect has
//! happened before. The settings of the namespace decide what follows: with
//! [`at_most_once`](IdempotencyBuilder::at_most_once) the key is parked, which means that the
//! handler does not run until a person or a probe decides; with
//! [`at_least_once`](IdempotencyBuilder::at_least_once) the handler runs again. The reasons are:
//!
//! - *Lapsed*: an earlier attempt began and left no result. It crashed, hangs, or failed without
//!   knowing whether it took effect ([`Lapsed`]).
//! - *Forgotten*: fewer nodes than a majority know whether there was an earlier attempt, because
//!   the others are new or lost data, and the key may have been used before that ([`Forgotten`]).
//!   If only a minority of the nodes is new or lost data, nothing changes, and a result is replayed
//!   as long as a majority has it. With a single node (one server or one Sentinel group) keys are
//!   forgotten after the first start, after each restart and after each failover.
//!
//! Give the time at which each request was made ([`Call::created_at`]) or before which no key was
//! in use ([`IdempotencyBuilder::in_use_since`]), so that only requests made before the loss of
//! data count as forgotten. Without such a time every new key counts as forgotten until one
//! retention has passed since the loss. [`NodeEvent::KeysForgotten`](crate::node::NodeEvent),
//! [`Status::Forgotten`], [`Idempotency::metrics`] and a line of the log report a loss of data. A
//! [probe](Call::probe), a function that looks whether the effect happened, decides about both
//! kinds of keys. About forgotten keys an operator can also decide, once for all keys that were
//! forgotten because of the same loss ([`Decision`]).
//!
//! # What is not promised
//!
//! The library does not promise that an effect in another system happens exactly once. For that,
//! the other system must refuse old fencing tokens *and* recognise the key
//! ([`Context::child_key`]), or make the effect and store the key in one transaction, or tell a
//! probe whether the effect happened.

mod batch;
mod birth;
mod builder;
mod call;
mod canonical;
mod claim;
pub mod consumer;
mod context;
mod detached;
mod error;
mod failed;
mod in_flight;
mod key;
mod metrics;
pub(crate) mod operator_decision;
mod outcome;
mod policy;
mod run;
mod step;
mod store;
mod unknown_past;

pub use birth::{created_in_ulid, created_in_uuid_v7};
pub use builder::{Idempotency, IdempotencyBuilder};
pub use call::{Call, Probing};
pub use claim::{Claim, Claimed};
pub use context::Context;
pub use detached::Detached;
pub use error::{CodecError, NotRecorded, RunError};
pub use failed::{Effect, Failed};
pub use key::KeyName;
pub use metrics::IdempotencyMetrics;
pub use operator_decision::{Decided, Decision};
pub use outcome::{NoValue, Outcome, Parked, ParkedReason, Probed, Resolved, Status};
pub use policy::{Forgotten, Lapsed};
pub use step::StepError;
