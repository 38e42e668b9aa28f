//! Locks: a mutex, a read-write lock and a semaphore, and the guards that hold them.

mod acquiring;
mod builder;
mod degrade;
mod guard;
mod hand_over;
mod inspect;
mod multi;
mod multi_wait;
mod mutex;
mod permits;
mod reentrant;
mod run;
mod rw_lock;
mod semaphore;
mod signal;
mod take_over;

use builder::Built;
pub use builder::MutexBuilder;
pub use degrade::{DegradableGuard, DegradingMutex, OnUnavailable};
pub use guard::LockGuard;
pub(crate) use guard::{failover, lost};
pub use hand_over::HandOver;
pub(crate) use hand_over::resume;
pub use inspect::digest;
pub(crate) use inspect::note;
pub use inspect::{Inspection, LockHolder, NodeView};
pub use multi::{MultiGuard, MultiMutex, MultiMutexBuilder};
pub use mutex::{Mutex, TryAcquire};
pub use permits::Permits;
pub use reentrant::{Owner, ReentrantGuard, ReentrantMutex};
pub use run::WorkError;
pub(crate) use run::while_held;
pub use rw_lock::{ReadGuard, RwLock, WriteGuard};
pub use semaphore::{
    NodePermits, Permit, PermitHolder, Semaphore, SemaphoreBuilder, SemaphoreInspection,
};
pub use signal::LostSignal;
pub(crate) use signal::{is_lost, remaining};
pub use take_over::TakenOver;
