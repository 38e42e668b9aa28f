//! A result per key, once: message consumers and request handlers that may be called twice.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use palisade::{Idempotency, MemoryNode, Outcome, Redlock};
//! # let redlock = Redlock::builder().node(MemoryNode::new()).build()?;
//! let orders = Idempotency::builder(&redlock).namespace("orders").build()?;
//! let order = ("alice", 3);
//! for _ in 0..2 {
//!     let call = orders.key("client-key-1").fingerprint(&order);
//!     match call.run(|cx| async move { Ok::<_, String>(cx.fencing_token()) }).await? {
//!         Outcome::Executed { value, .. } => println!("done now: {value}"),
//!         Outcome::Replayed(value) => println!("was done before: {value}"),
//!         Outcome::InFlight { retry_after } => println!("ask again in {retry_after:?}"),
//!         Outcome::Mismatch => println!("this key belongs to another request"),
//!         Outcome::Parked(why) => println!("nobody knows whether it was done: {why}"),
//!         _ => {}
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! What is promised: the handler is not started again once anyone has seen its result; a result
//! once seen never changes, within the retention. A crash between the effect and its record cannot
//! be undone from here, but it is never hidden: the next caller finds a *lapsed* attempt and the
//! policy decides ([`Lapsed`], [`Call::probe`]).
//!
//! A node that restarted or failed over cannot say "never seen" until one retention has passed. A
//! minority of such nodes changes nothing. With a majority of them (with one node or one Sentinel
//! group: after any failover) a key without a stored result is answered as *forgotten*, and the
//! policy or the probe decides. Three groups, a retention no longer than redelivery needs, and a
//! probe keep that rare.
//!
//! What cannot be promised: that an effect in a foreign system happens exactly once. For that the
//! system must refuse old fencing tokens *and* recognise the key ([`Context::child_key`]), or take
//! effect and record in one transaction, or answer a probe.

mod birth;
mod builder;
mod call;
mod canonical;
mod context;
mod error;
mod failed;
mod key;
mod metrics;
mod outcome;
mod policy;
mod run;
mod store;

pub use birth::{created_in_ulid, created_in_uuid_v7};
pub use builder::{Idempotency, IdempotencyBuilder};
pub use call::{Call, Probing};
pub use context::Context;
pub use error::{CodecError, NotRecorded, RunError};
pub use failed::{Effect, Failed};
pub use key::KeyName;
pub use metrics::IdempotencyMetrics;
pub use outcome::{Outcome, Parked, ParkedReason, Probed, Resolved, Status};
pub use policy::{Forgotten, Lapsed};
