//! The guard: the value that a caller has while it holds a lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::client::failover::Failover;
use crate::client::lease::Lease;
use crate::client::runtime::within;
use crate::client::{Core, WATCH};
use crate::durability::Achieved;
use crate::error::{ExtendError, ReleaseError, Resource};
use crate::lock::inspect::digest;
use crate::lock::{LostSignal, is_lost, remaining};
use crate::op::LockMode;
use crate::span::operation;
use crate::time::Moment;
use crate::token::FencingToken;

/// A guard: the right to act as the holder of a lock, until a deadline.
///
/// The deadline is [`valid_until`](Self::valid_until) by this machine's own clock. It is before the
/// time at which any other owner can hold the lock, except for readers beside a reader. For a
/// permit of a semaphore, the lock is that of its slot. Renewals move the deadline.
/// [`is_valid`](Self::is_valid) and [`lost`](Self::lost) report a loss. A write of the holder may
/// arrive at its resource after the loss, so send [`fencing_token`](Self::fencing_token) with every
/// write, and let the resource refuse a late write.
///
/// Dropping the guard releases the lock in the background. [`release`](Self::release) also reports
/// whether the lock was held until the release.
#[must_use = "a dropped guard releases its lock at once"]
pub struct LockGuard {
    core: Arc<Core>,
    lease: Arc<Lease>,
    name: Arc<str>,
    renew: bool,
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.name)
            .field("fencing_token", &self.lease.token)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl LockGuard {
    pub(crate) fn new(core: &Arc<Core>, lease: Lease, name: &Arc<str>, renew: bool) -> Self {
        let lease = Arc::new(lease);
        if renew {
            core.renewer.add(core, &lease);
        } else {
            core.renewer.watch(core, &lease);
        }
        Self { core: Arc::clone(core), lease, name: Arc::clone(name), renew }
    }

    pub(crate) fn resource(&self) -> Resource {
        self.lease.resource()
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    pub(super) fn renews(&self) -> bool {
        self.renew
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Returns the lock's name, as it was given to [`Redlock::mutex`](crate::Redlock::mutex) or
    /// another method of the handle. For a lock of several names, returns all names, sorted and
    /// joined by `, `.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the fencing token, which is larger than that of every earlier holder of this lock.
    /// The token of a reader is not below that of any earlier writer, and may be equal to the
    /// tokens of other readers. The token of a permit is larger than that of every earlier holder
    /// of the same slot; tokens of two slots cannot be compared.
    pub fn fencing_token(&self) -> FencingToken {
        self.lease.token
    }

    /// Returns the identifier of this holder that [`Mutex::inspect`](crate::Mutex::inspect) and
    /// `palisade inspect` show. Log it, to find the process that holds a lock.
    pub fn owner(&self) -> String {
        digest(self.lease.owner)
    }

    /// Returns the deadline until which the lock is valid, unless it is renewed. Compare it with
    /// [`Redlock::now`](crate::Redlock::now).
    pub fn valid_until(&self) -> Moment {
        self.lease.until()
    }

    /// Returns the deadline of the lock as tokio's `Instant`, for timers and for calls that take a
    /// deadline; `into_std` converts it to the standard library's type. Once the lock is lost, it
    /// is the present instant.
    ///
    /// On some systems an `Instant` does not advance while the machine is suspended, although the
    /// lease of the lock does end. So after a wait call this again, or check
    /// [`is_valid`](Self::is_valid).
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.remaining()
    }

    /// Returns the durability level of the lock, and how many replicas had it when it was last
    /// granted or renewed.
    pub fn durability(&self) -> Achieved {
        self.lease.durability()
    }

    /// Returns the time until the deadline of the lock; zero once the lock is lost.
    pub fn remaining(&self) -> Duration {
        remaining(&self.core, &self.lease)
    }

    /// Returns true while the lock is held by the local clock, which also counts the time in which
    /// the machine is suspended. Sends nothing to the nodes. After this method has returned false,
    /// it never returns true again.
    pub fn is_valid(&self) -> bool {
        !is_lost(&self.core, &self.lease)
    }

    /// Resolves when the lock is lost: at the latest at its deadline, and earlier if a majority of
    /// the nodes reports another owner, or if after a failover no majority can confirm the lock any
    /// more. Await it beside your work, for example in `tokio::select!`, and stop the work when it
    /// resolves.
    ///
    /// # Cancellation safety
    /// May be dropped and called again at any time.
    pub async fn lost(&self) {
        lost(&self.core, &self.lease).await;
    }

    /// Returns a signal that resolves as [`lost`](Self::lost) does, for tasks that do not have the
    /// guard.
    pub fn lost_signal(&self) -> LostSignal {
        LostSignal::new(&self.core, &self.lease)
    }

    /// Extends the lock by its ttl, counted from the moment of sending, and returns the new
    /// deadline. With automatic renewal this is not needed.
    ///
    /// # Errors
    /// [`ExtendError::Lost`] if the lock is lost for good. [`ExtendError::Unknown`] if too few
    /// nodes answered; the lock is then held until its old deadline.
    ///
    /// # Cancellation safety
    /// If dropped, the lock is held until its old deadline, although the nodes may keep it for
    /// longer.
    pub async fn extend(&self) -> Result<Moment, ExtendError> {
        let operation = operation!("extend", of = %self.resource());
        let result = self.core.extend_in(&self.lease, operation, false).await;
        if matches!(result, Err(ExtendError::Lost(_))) {
            self.lease.lose(self.core.env.now());
        }
        result
    }

    pub(super) async fn downgrade(self) -> Self {
        self.lease.grant.lock().mode = LockMode::Shared;
        // A node that this does not reach still refuses readers, until a renewal reaches it.
        let _ = self.extend().await;
        self
    }

    /// Waits until a node that had confirmed this lock fails over, is restarted or loses its data,
    /// and returns whether the lock survived. If the guard has automatic renewal, the lock is
    /// renewed at once then, and the result of this renewal is returned. [`Failover::Open`] is
    /// followed by [`Failover::Kept`] when a later renewal is confirmed; without automatic renewal
    /// the result is `Open` until [`extend`](Self::extend) succeeds. Only the latest result is
    /// kept, even if it is from before the call, and it is returned once. [`Failover::Lost`] is
    /// returned whenever the lock is lost or released.
    ///
    /// # Cancellation safety
    /// If dropped, no result is consumed; the next call returns it.
    pub async fn failover(&self) -> Failover {
        failover(&self.core, &self.lease).await
    }

    /// Releases the lock on every node that may have it. Returns as soon as the answers of a
    /// majority decide; on the other nodes the release is repeated in the background. `Ok` means
    /// that the lock was held until this release.
    ///
    /// # Errors
    /// [`ReleaseError::TakenByOther`] if another owner has the lock on a majority of the nodes.
    /// [`ReleaseError::Lost`] if the guard was lost before the call, even if nodes still had the
    /// lock, or if a majority of the nodes did not have the lock any more.
    /// [`ReleaseError::Unconfirmed`] if too few nodes answered. The lock was held until this call;
    /// the release is repeated in the background, and the lock is free after its ttl at the latest.
    ///
    /// # Cancellation safety
    /// If dropped at any await, the release continues in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.end().await
    }

    /// As [`release`](Self::release), for callers that share the guard, which is of no use
    /// afterwards.
    pub(crate) async fn end(&self) -> Result<(), ReleaseError> {
        let held = self.lease.end_held(self.core.env.now());
        self.core.renewer.remove(&self.lease);
        self.core.release(&self.lease, held).await
    }

    pub(super) fn undo(&self, now: Moment) {
        if let Some(op) = self.lease.release_op(now) {
            let until = self.core.forgotten_at(now, self.lease.on_nodes());
            self.core.undo(&op, Some(&self.lease.grant), until);
        }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let now = self.core.env.now();
        let first = self.lease.end(now);
        self.core.renewer.remove(&self.lease);
        if first {
            self.undo(now);
        }
    }
}

pub(crate) async fn failover(core: &Core, lease: &Lease) -> Failover {
    let over = || is_lost(core, lease);
    loop {
        let left = lease.until().since(core.env.now()).min(WATCH);
        if let Some(verdict) = within(left, lease.verdict(over)).await {
            return verdict;
        }
    }
}

pub(crate) async fn lost(core: &Core, lease: &Lease) {
    loop {
        let now = core.env.now();
        if !lease.is_valid(now) {
            lease.lose(now);
            return;
        }
        // In short parts: tokio's timers do not advance while the computer is suspended, and
        // nothing notices the deadline of a lease without renewal.
        let left = lease.until().since(now).min(WATCH);
        within(left, lease.over()).await;
    }
}

/// Arguments: the docs of the conversion, the type, and its field with the guard.
macro_rules! contains_guard {
    ($(#[$doc:meta])* $guard:ty, $field:tt) => {
        impl std::ops::Deref for $guard {
            type Target = LockGuard;

            fn deref(&self) -> &LockGuard {
                &self.$field
            }
        }

        impl From<$guard> for LockGuard {
            $(#[$doc])*
            fn from(guard: $guard) -> Self {
                guard.$field
            }
        }
    };
}
pub(super) use contains_guard;
