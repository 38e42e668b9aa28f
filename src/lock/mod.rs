//! Locks: a mutex and the guard of what it holds.

mod guard;
mod inspect;
mod mutex;
mod pauses;

pub use guard::LockGuard;
pub(crate) use guard::{failover, lost};
pub(crate) use inspect::digest;
pub use inspect::{Holder, Inspection, NodeView, TakenOver};
pub(crate) use mutex::{Bid, acquire_within};
pub use mutex::{Mutex, TryAcquire};
