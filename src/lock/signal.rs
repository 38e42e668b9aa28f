//! A signal that a lease has ended, for tasks that do not own its guard.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::lost;
use crate::client::Core;
use crate::client::lease::Lease;

/// A signal that a lock, a leadership or a claim is no longer held, because it was lost, released
/// or dropped.
///
/// It borrows nothing and is cheap to clone, so it can move into tasks:
///
/// ```
/// # use palisade::LockGuard;
/// # fn watch(guard: &LockGuard) {
/// let signal = guard.lost_signal();
/// tokio::spawn(async move {
///     signal.lost().await;
///     println!("stop writing");
/// });
/// # }
/// ```
#[derive(Clone)]
pub struct LostSignal {
    core: Arc<Core>,
    lease: Arc<Lease>,
}

impl fmt::Debug for LostSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LostSignal").field("is_lost", &self.is_lost()).finish_non_exhaustive()
    }
}

impl LostSignal {
    pub(crate) fn new(core: &Arc<Core>, lease: &Arc<Lease>) -> Self {
        Self { core: Arc::clone(core), lease: Arc::clone(lease) }
    }

    /// Returns true if the lock, leadership or claim has ended by the local clock, which also runs
    /// while the machine is suspended. Sends nothing to the nodes. After this method has returned
    /// true, it always returns true.
    pub fn is_lost(&self) -> bool {
        is_lost(&self.core, &self.lease)
    }

    /// Returns the time until the lock, leadership or claim ends, if it is not renewed. Zero after
    /// the end.
    pub fn remaining(&self) -> Duration {
        remaining(&self.core, &self.lease)
    }

    /// Resolves when the lock, leadership or claim has ended: when it is lost, at the latest at its
    /// own deadline, or when it is released or dropped.
    ///
    /// # Cancellation safety
    /// May be dropped and called again at any time.
    pub async fn lost(&self) {
        lost(&self.core, &self.lease).await;
    }
}

pub(crate) fn remaining(core: &Core, lease: &Lease) -> Duration {
    let now = core.env.now();
    if lease.is_valid(now) { lease.until().since(now) } else { Duration::ZERO }
}

/// Also marks the lease as lost, so that a late renewal does not make it valid again.
pub(crate) fn is_lost(core: &Core, lease: &Lease) -> bool {
    core.renewer.keep_running();
    let now = core.env.now();
    let over = !lease.is_valid(now);
    if over {
        lease.lose(now);
    }
    over
}
