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
//! Once any caller has received a result, the handler is not started again, and the result does not
//! change within the retention. A crash between the effect and its record cannot be undone by this
//! library, but it is always visible.
//!
//! # Keys whose past is not known
//!
//! Two questions can be open when a call has claimed its key. The settings of the namespace answer
//! both ([`at_most_once`](IdempotencyBuilder::at_most_once) parks,
//! [`at_least_once`](IdempotencyBuilder::at_least_once) runs again):
//!
//! - *Lapsed*: an earlier attempt began and left no result. It crashed, hangs, or failed without
//!   knowing whether it took effect ([`Lapsed`]).
//! - *Forgotten*: a majority of the nodes cannot say whether there was an earlier attempt. They are
//!   new, or lost data, and the key may be older than that ([`Forgotten`]). A minority of such
//!   nodes changes nothing, and a result is replayed as long as a majority has it. With one node or
//!   one Sentinel group this is the case after the first start, after each restart and after each
//!   failover.
//!
//! Give the time at which each request was made ([`Call::created_at`],
//! [`IdempotencyBuilder::in_use_since`]), and the second question is open only for requests made
//! before the loss; otherwise it is open for every new key until one retention has passed.
//! [`NodeEvent::KeysForgotten`](crate::node::NodeEvent), [`Status::Forgotten`],
//! [`Idempotency::metrics`] and a line of the log report such a loss. A [probe](Call::probe) that
//! can see the effect answers both questions. The second question is also answered by an operator,
//! for all keys that a loss concerns at once ([`Decision`]).
//!
//! # What is not promised
//!
//! The library does not promise that an effect in another system happens exactly once. For that,
//! the other system must refuse old fencing tokens *and* recognise the key
//! ([`Context::child_key`]), or make the effect and its record in one transaction, or answer a
//! probe.

mod batch;
mod birth;
mod builder;
mod call;
mod canonical;
mod claim;
pub mod consumer;
mod context;
pub(crate) mod decision;
mod detached;
mod error;
mod failed;
mod in_flight;
mod key;
mod metrics;
mod outcome;
mod past;
mod policy;
mod run;
mod step;
mod store;

pub use birth::{created_in_ulid, created_in_uuid_v7};
pub use builder::{Idempotency, IdempotencyBuilder};
pub use call::{Call, Probing};
pub use claim::{Claim, Claimed};
pub use context::Context;
pub use decision::{Decided, Decision};
pub use detached::Detached;
pub use error::{CodecError, NotRecorded, RunError};
pub use failed::{Effect, Failed};
pub use key::KeyName;
pub use metrics::IdempotencyMetrics;
pub use outcome::{NoValue, Outcome, Parked, ParkedReason, Probed, Resolved, Status};
pub use policy::{Forgotten, Lapsed};
pub use step::StepError;
