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
//! After a caller has received the result of a key, no handler starts under this key, and the
//! result does not change within the retention. A process may crash after the effect of its handler
//! and before the result is stored. This library cannot undo such an effect. But the next call
//! under the key finds that an earlier attempt began and left no result.
//!
//! # Keys whose past is not known
//!
//! After a call has claimed its key, the effect may have happened in an earlier attempt, for two
//! reasons. With the setting [`at_most_once`](IdempotencyBuilder::at_most_once) such a key is
//! parked: the handler does not run until a person or a probe decides. With the setting
//! [`at_least_once`](IdempotencyBuilder::at_least_once) the handler runs again. The reasons are:
//!
//! - *Lapsed*: an earlier attempt began and left no result. This attempt crashed, hangs, or failed
//!   with an unknown effect ([`Lapsed`]).
//! - *Forgotten*: too few nodes can exclude an earlier attempt ([`Forgotten`]). The other nodes are
//!   new or have lost data, and the key may be older than the loss. If only a minority of the nodes
//!   is new or has lost data, no key is forgotten, and a result is replayed as long as a majority
//!   has it. With a single node (one server or one Sentinel group) keys are forgotten after the
//!   first start, after each restart and after each failover.
//!
//! Set the creation time of each request ([`Call::created_at`]) or the time of the namespace's
//! first use ([`IdempotencyBuilder::in_use_since`]). Then only requests from before the loss of
//! data count as forgotten. Without such a time every new key counts as forgotten until one
//! retention after the loss. [`NodeEvent::KeysForgotten`](crate::node::NodeEvent),
//! [`Status::Forgotten`], [`Idempotency::metrics`] and a line of the log report a loss of data. A
//! [probe](Call::probe) is a function that looks for the effect. It decides about lapsed and
//! forgotten keys. An operator can also decide about forgotten keys, with one decision for all keys
//! of the same loss ([`Decision`]).
//!
//! # What is not promised
//!
//! The library does not guarantee that an effect in another system happens exactly once. For that
//! guarantee the other system must meet one of three conditions. It refuses old fencing tokens
//! *and* recognises the key ([`Context::child_key`]). Or it makes the effect and stores the key in
//! one transaction. Or a probe can find in this system if the effect happened.

mod batch;
mod birth;
mod builder;
mod call;
mod canonical;
mod claim;
mod context;
mod detached;
mod error;
mod failed;
mod in_flight;
mod key;
pub(crate) mod lossless;
mod metrics;
pub(crate) mod operator_decision;
mod outcome;
mod policy;
mod run;
mod step;
mod store;
mod unknown_past;
pub(crate) mod waiting;

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
pub use outcome::{Outcome, Parked, ParkedReason, Probed, Resolved, Status};
pub use policy::{Forgotten, Lapsed};
pub use step::StepError;
