//! The guard of a held lock.

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
use crate::lock::{LostSignal, is_lost};
use crate::op::LockMode;
use crate::span::operation;
use crate::time::Moment;
use crate::token::FencingToken;

/// A guard of a held lock.
///
/// It is a belief with a deadline, not a fact: [`is_valid`](Self::is_valid) and
/// [`lost`](Self::lost) report when it has ended, at the latest at
/// [`valid_until`](Self::valid_until) by this machine's own clock, which is before any other owner
/// can hold the name. Send [`fencing_token`](Self::fencing_token) with every write under the lock,
/// so that the resource can refuse a late one.
///
/// Dropping the guard releases in the background; [`release`](Self::release) also reports whether
/// the lock was held until then.
#[must_use = "a dropped guard releases its lock at once"]
pub struct LockGuard {
    core: Arc<Core>,
    lease: Arc<Lease>,
    name: Arc<str>,
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
    pub(crate) fn new(core: Arc<Core>, lease: Arc<Lease>, name: Arc<str>, renew: bool) -> Self {
        if renew {
            core.renewer.add(&core, &lease);
        } else {
            core.renewer.watch(&core, &lease);
        }
        Self { core, lease, name }
    }

    pub(crate) fn resource(&self) -> Resource {
        self.lease.resource()
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Returns the name as given to [`Redlock::mutex`](crate::Redlock::mutex).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the fencing token: larger than that of every earlier holder of this name.
    pub fn fencing_token(&self) -> FencingToken {
        self.lease.token
    }

    /// Returns the time at which the validity ends unless it is renewed; compare it with
    /// [`Redlock::now`](crate::Redlock::now).
    pub fn valid_until(&self) -> Moment {
        self.lease.until()
    }

    /// Returns the end of the validity as tokio's `Instant` (`into_std` has the standard
    /// library's), for timers and for calls that take a deadline; the present instant once the lock
    /// is lost.
    ///
    /// On some systems an `Instant` stands still while the machine is suspended, and the validity
    /// does not: after a wait, call this again, or check [`is_valid`](Self::is_valid).
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.remaining()
    }

    /// Returns how durable the lock was when it was last granted or renewed.
    pub fn durability(&self) -> Achieved {
        self.lease.durability()
    }

    /// Returns the time until the validity ends; zero once lost.
    pub fn remaining(&self) -> Duration {
        let now = self.core.env.now();
        if self.lease.is_valid(now) { self.lease.until().since(now) } else { Duration::ZERO }
    }

    /// Returns true if the lock is still held, by the local suspend-proof clock; sends nothing.
    /// Once it has returned false it never returns true again.
    pub fn is_valid(&self) -> bool {
        !is_lost(&self.core, &self.lease)
    }

    /// Resolves when the lock is lost: at the latest when the validity has ended, earlier if a
    /// majority of nodes reports another owner, or if after a failover no majority can confirm the
    /// lock any more. Select your work against it.
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

    /// Extends now by the lock's ttl, counted from the send, and returns the new deadline. A guard
    /// with automatic renewal does not need it.
    ///
    /// # Errors
    /// [`ExtendError::Lost`] if the lock is gone for good, [`ExtendError::Unknown`] if too few
    /// nodes answered; the old deadline still holds.
    ///
    /// # Cancellation safety
    /// If dropped, the old deadline still holds; the nodes may keep the key longer than the guard
    /// assumes.
    pub async fn extend(&self) -> Result<Moment, ExtendError> {
        let operation = operation!("extend", of = %self.resource());
        let result = self.core.extend_in(&self.lease, operation).await;
        if matches!(result, Err(ExtendError::Lost(_))) {
            self.lease.lose(self.core.env.now());
        }
        result
    }

    /// Makes the guard a reader's from now on, and asks the nodes to let other readers in.
    pub(super) async fn downgrade(self) -> Self {
        self.lease.downgrade_to(LockMode::Shared);
        // A node that is not reached keeps the exclusive grant, which only refuses more; the next
        // renewals ask it again.
        let _ = self.extend().await;
        self
    }

    /// Resolves when a node that had confirmed this lock failed over, was restarted or lost its
    /// data. A guard with automatic renewal is renewed at once then, and this returns the result of
    /// that renewal. [`Failover::Open`] is followed by [`Failover::Kept`] when a later renewal is
    /// confirmed; a guard without automatic renewal is `Open` until [`extend`](Self::extend)
    /// succeeds. Only the last verdict is kept, also from before the call, and it is returned once.
    /// Returns [`Failover::Lost`] whenever the lock is lost or released.
    ///
    /// # Cancellation safety
    /// If dropped, nothing is consumed; the next call returns it.
    pub async fn failover(&self) -> Failover {
        failover(&self.core, &self.lease).await
    }

    /// Releases on every node that may hold the lock. The result is that of the majority; the other
    /// nodes are released in the background. `Ok` means that the lock was held until this release.
    ///
    /// # Errors
    /// [`ReleaseError::TakenByOther`] if a majority has another owner. [`ReleaseError::Lost`] if
    /// the guard had ended before, even where nodes still had the lock, or if the lock was gone on
    /// a majority. [`ReleaseError::Unconfirmed`] if too few nodes answered.
    ///
    /// # Cancellation safety
    /// If dropped at any await, the release goes on in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.end().await
    }

    /// Releases as [`release`](Self::release) does, by reference; the guard is of no use after it.
    pub(crate) async fn end(&self) -> Result<(), ReleaseError> {
        let held = self.lease.end_held(self.core.env.now());
        self.core.renewer.remove(&self.lease);
        self.core.release(&self.lease, held).await
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        // If `release` has ended the lease already (`first` is false), its own requests are being
        // sent.
        let now = self.core.env.now();
        let first = self.lease.end(now);
        self.core.renewer.remove(&self.lease);
        if first && let Some(op) = self.lease.release_op(now) {
            let until = self.core.forgotten_at(now, self.lease.on_nodes());
            self.core.undo(&op, &self.lease.replies, until);
        }
    }
}

/// Returns the verdict on the next failover of a node that had confirmed a lease.
pub(crate) async fn failover(core: &Core, lease: &Lease) -> Failover {
    let over = || is_lost(core, lease);
    loop {
        // The wait is sliced as in `lost`: no event wakes this future when the deadline passes.
        let left = lease.until().since(core.env.now()).min(WATCH);
        if let Some(verdict) = within(left, lease.verdict(over)).await {
            return verdict;
        }
    }
}

/// Resolves when a lease is over: lost, ended, or past its deadline.
pub(crate) async fn lost(core: &Core, lease: &Lease) {
    loop {
        let now = core.env.now();
        if !lease.is_valid(now) {
            lease.lose(now);
            return;
        }
        // Sleep in slices: tokio timers do not advance while the machine is suspended, and a lease
        // without renewal has no renewer that would notice.
        let left = lease.until().since(now).min(WATCH);
        within(left, lease.over()).await;
    }
}
