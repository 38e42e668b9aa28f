//! A mutex: a lock with one holder at a time.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument as _;

use crate::client::Core;
use crate::client::acquire::{AcquireRequest, Acquired};
use crate::client::close::Operation;
use crate::client::lease::{Lease, Subject};
use crate::client::retry::{RetryTerms, Wait, retry};
use crate::durability::Durability;
use crate::error::{AcquireError, Resource, Taken};
use crate::lock::LockGuard;
use crate::lock::acquire::{LockAttempt, acquire_deadline, not_acquired};
use crate::lock::acquiring::Acquiring;
use crate::name::LockKeys;
use crate::quorum::acquire::Loss;
use crate::quorum::backoff::RetryPolicy;
use crate::span::{Call, operation};

/// A named lock, not yet held. Cheap to clone and to make; use one per name or per call. Made by
/// [`Redlock::mutex`](crate::Redlock::mutex).
///
/// On one Redis key it excludes, and is excluded by, the classic `SET NX PX` clients of other
/// languages (redlock-py, redsync, node-redlock, rslock, redislock). Those clients do not wait in
/// the lock's queue: as long as the queue is not empty, a lock that is released is reserved for its
/// first waiter, and a classic client, like [`try_acquire`](Self::try_acquire), hardly ever gets
/// it.
#[derive(Clone, Debug)]
pub struct Mutex {
    pub(super) core: Arc<Core>,
    pub(super) name: Arc<str>,
    pub(super) keys: LockKeys,
    pub(super) ttl: Duration,
    pub(super) acquire_timeout: Option<Duration>,
    pub(super) renew: bool,
    pub(super) max_hold: Option<Duration>,
    pub(super) retry: RetryPolicy,
    pub(super) level: Durability,
}

/// Result of a single attempt to acquire, such as [`Mutex::try_acquire`].
#[derive(Debug)]
#[must_use]
pub enum TryAcquire<G = LockGuard> {
    /// The lock is held by the guard.
    Acquired(G),
    /// Another owner holds the lock.
    Taken(Taken),
}

impl<G> TryAcquire<G> {
    /// Returns the guard, if the lock was acquired.
    pub fn acquired(self) -> Option<G> {
        match self {
            Self::Acquired(guard) => Some(guard),
            Self::Taken(_) => None,
        }
    }
}

impl Mutex {
    /// Returns the name as given to [`Redlock::mutex`](crate::Redlock::mutex).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes one attempt. A lock that was just released and is reserved for a waiter counts as
    /// taken, too: where the queue is never empty, a single attempt hardly ever gets the lock. Then
    /// use [`acquire`](Self::acquire), which has a place in the queue.
    ///
    /// # Errors
    /// [`AcquireError::NoQuorum`] or [`AcquireError::Closed`]. "Taken" is not an error.
    ///
    /// # Cancellation safety
    /// If dropped at any await, nothing is held: what nodes granted is released in the background,
    /// and ends with the ttl at the latest.
    pub async fn try_acquire(&self) -> Result<TryAcquire, AcquireError> {
        let operation = operation!("try_acquire", of = %self.resource());
        let call = Acquiring::begin(&self.core, &self.name);
        let tried = self.try_it(&operation).instrument(operation.span()).await;
        call.over(
            operation,
            tried.as_ref().map(|tried| match tried {
                TryAcquire::Acquired(guard) => Some(guard),
                TryAcquire::Taken(_) => None,
            }),
        );
        tried
    }

    async fn try_it(&self, operation: &Call) -> Result<TryAcquire, AcquireError> {
        let _operation = self.begin()?;
        operation.attempt();
        match self.core.attempt(AcquireRequest::new(&self.keys, self.ttl, self.level)).await {
            Ok(won) => Ok(TryAcquire::Acquired(self.guard(won))),
            Err(Loss::Taken(taken)) => Ok(TryAcquire::Taken(taken)),
            Err(Loss::NoQuorum(_)) if !self.core.closing.is_open() => {
                Err(AcquireError::Closed(self.resource()))
            }
            Err(Loss::NoQuorum(outcomes)) => {
                Err(self.core.no_quorum(outcomes).of(self.resource()).into())
            }
        }
    }

    /// Acquires the lock: makes attempts until it is held or
    /// [`acquire_timeout`](super::MutexBuilder::acquire_timeout) has passed. The nodes wake the
    /// call when the lock is released; where there are no hints it polls with growing, jittered
    /// pauses. Each attempt has a fresh owner token and is rolled back if it fails. Of several
    /// handles that wait, the one that has waited longest is usually the next.
    ///
    /// # Errors
    /// [`AcquireError::TimedOut`] if the lock stayed taken, [`AcquireError::NoQuorum`] if too few
    /// nodes could be asked until the end (at once if a person has to change a setting),
    /// [`AcquireError::Closed`] as soon as the handle is [closed](crate::Redlock::close).
    ///
    /// # Cancellation safety
    /// As [`try_acquire`](Self::try_acquire). If dropped while it waits, its turn passes to the
    /// next waiter.
    pub async fn acquire(&self) -> Result<LockGuard, AcquireError> {
        let operation = operation!("acquire", of = %self.resource());
        let call = Acquiring::begin(&self.core, &self.name);
        let acquired = self.wait_for_it(&operation).instrument(operation.span()).await;
        call.over(operation, acquired.as_ref().map(Some));
        acquired
    }

    async fn wait_for_it(&self, operation: &Call) -> Result<LockGuard, AcquireError> {
        let _operation = self.begin()?;
        let mut attempt = self.attempt(operation);
        let won = retry(&self.core, &mut attempt, self.retry_terms(Wait::Queue)).await;
        won.map(|won| self.guard(won))
            .map_err(|given_up| not_acquired(&self.core, self.resource(), given_up))
    }

    pub(super) fn attempt<'a>(&'a self, operation: &'a Call) -> LockAttempt<'a> {
        LockAttempt {
            core: &self.core,
            keys: &self.keys,
            ttl: self.ttl,
            level: self.level,
            waits_for_quarantine: self.acquire_timeout.is_none(),
            operation,
        }
    }

    pub(super) fn retry_terms(&self, wait: Wait) -> RetryTerms<'_> {
        let deadline = acquire_deadline(&self.core, self.acquire_timeout);
        RetryTerms { key: self.keys.lock(), wait, policy: self.retry, deadline: Some(deadline) }
    }

    pub(super) fn resource(&self) -> Resource {
        Resource::Lock(Arc::clone(&self.name))
    }

    /// Begins an operation; refused once the handle is closed.
    pub(super) fn begin(&self) -> Result<Operation<'_>, AcquireError> {
        self.core.closing.enter().ok_or_else(|| AcquireError::Closed(self.resource()))
    }

    pub(super) fn guard(&self, won: Acquired) -> LockGuard {
        self.guard_of(self.lease(won))
    }

    pub(super) fn lease(&self, won: Acquired) -> Lease {
        let renew_until = self.max_hold.map(|limit| self.core.env.now() + limit);
        let subject = Subject::Lock { of: self.resource(), keys: self.keys.clone() };
        let (id, times) = ((won.owner, won.token), (won.ttl, won.until));
        let meters = Arc::clone(&self.core.meters.lock(&self.name).leases);
        Lease::new(subject, id, times, renew_until, won.replies, None, meters)
    }

    pub(super) fn guard_of(&self, lease: Lease) -> LockGuard {
        lease.count();
        LockGuard::new(Arc::clone(&self.core), Arc::new(lease), Arc::clone(&self.name), self.renew)
    }
}
