//! Locks: a mutex, and the guard that holds it.

mod guard;
mod mutex;
mod pauses;

pub use guard::LockGuard;
pub(crate) use guard::{failover, lost};
pub(crate) use mutex::{Bid, acquire_within};
pub use mutex::{Mutex, TryAcquire};
