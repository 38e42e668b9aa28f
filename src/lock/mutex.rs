//! A mutex: a lock with one holder at a time.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument as _;

use crate::client::Core;
use crate::client::acquire::{AFTER_QUARANTINE, LockAttempt, acquire_deadline, not_acquired};
use crate::client::close::Operation;
use crate::client::fair::{FRESH, Fair, OnQueued, taken_locally};
use crate::client::lease::Lease;
use crate::client::local_locks::{LocalGuard, LocalLocks};
use crate::client::retry::{Attempt, AttemptTerms, GivenUp, RetryTerms, Wait, retry};
use crate::client::runtime::within;
use crate::durability::Durability;
use crate::error::{AcquireError, Resource, Taken};
use crate::lock::LockGuard;
use crate::lock::acquiring::Acquiring;
use crate::name::LockKeys;
use crate::op::{LockMode, Queued};
use crate::quorum::acquire::Loss;
use crate::retry_policy::RetryPolicy;
use crate::span::{Call, operation};
use crate::time::Moment;

/// A lock with a name, which [`acquire`](Self::acquire) acquires. It is cheap to make and to clone,
/// so a program may keep one for each name, or make one for each call. Made by
/// [`Redlock::mutex`](crate::Redlock::mutex).
///
/// The classic `SET NX PX` clients of other languages (redlock-py, redsync, node-redlock, rslock,
/// redislock) exclude this lock, and it excludes them, if they use the same Redis key. They do not
/// wait in the lock's queue. As long as handles wait in the queue, a released lock is reserved for
/// the first of them, so a classic client hardly ever gets it, and neither does
/// [`try_acquire`](Self::try_acquire).
#[derive(Clone, Debug)]
pub struct Mutex {
    pub(super) core: Arc<Core>,
    pub(super) name: Arc<str>,
    pub(super) kind: fn(Arc<str>) -> Resource,
    pub(super) keys: LockKeys,
    pub(super) ttl: Duration,
    pub(super) acquire_timeout: Option<Duration>,
    pub(super) fair: bool,
    pub(super) renew: bool,
    pub(super) max_hold: Option<Duration>,
    pub(super) retry: RetryPolicy,
    pub(super) level: Durability,
}

/// Result of a single attempt to acquire, such as [`Mutex::try_acquire`].
#[derive(Debug)]
#[must_use]
pub enum TryAcquire<G = LockGuard> {
    /// The lock was acquired, and this guard holds it.
    Acquired(G),
    /// Another owner holds the lock, or it is reserved for a `Redlock` handle that waits.
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

    pub(super) fn map<H>(self, guard: impl FnOnce(G) -> H) -> TryAcquire<H> {
        match self {
            Self::Acquired(held) => TryAcquire::Acquired(guard(held)),
            Self::Taken(taken) => TryAcquire::Taken(taken),
        }
    }
}

impl Mutex {
    pub(super) fn new(core: Arc<Core>, name: &str, keys: LockKeys) -> Self {
        Self {
            name: name.into(),
            kind: Resource::Lock,
            keys,
            ttl: core.config.ttl,
            acquire_timeout: None,
            fair: false,
            renew: true,
            max_hold: None,
            retry: RetryPolicy::default(),
            level: Durability::Primary,
            core,
        }
    }

    /// Returns the lock's name, as it was given to [`Redlock::mutex`](crate::Redlock::mutex).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes one attempt to acquire the lock, and does not wait for it. A lock that was just
    /// released and is reserved for a waiting `Redlock` handle counts as taken, too. So while
    /// handles wait for the lock all the time, a single attempt hardly ever gets it; use
    /// [`acquire`](Self::acquire) then, which waits in the same queue.
    ///
    /// # Errors
    /// [`AcquireError::NoQuorum`] if too few nodes gave an answer that counts,
    /// [`AcquireError::Closed`] if the handle is closed. It is not an error that the lock is taken.
    ///
    /// # Cancellation safety
    /// If dropped at any await, the lock is not held: grants of nodes are released in the
    /// background, and end with the ttl at the latest.
    pub async fn try_acquire(&self) -> Result<TryAcquire, AcquireError> {
        let operation = operation!("try_acquire", of = %self.resource());
        self.try_in(LockMode::Exclusive, operation).await
    }

    pub(super) async fn try_in(
        &self,
        mode: LockMode,
        operation: Call,
    ) -> Result<TryAcquire, AcquireError> {
        let call = Acquiring::begin(&self.core, &self.name);
        let tried = self.try_it(mode, &operation).instrument(operation.span()).await;
        call.over(
            operation,
            tried.as_ref().map(|tried| match tried {
                TryAcquire::Acquired(guard) => Some(guard),
                TryAcquire::Taken(_) => None,
            }),
        );
        tried
    }

    async fn try_it(&self, mode: LockMode, operation: &Call) -> Result<TryAcquire, AcquireError> {
        let _operation = self.begin()?;
        let won = self.attempt(mode, operation).make(AttemptTerms::SINGLE).await;
        self.tried(won.map(|won| self.guard(won)))
    }

    pub(super) fn tried<G>(&self, won: Result<G, Loss>) -> Result<TryAcquire<G>, AcquireError> {
        match won {
            Ok(guard) => Ok(TryAcquire::Acquired(guard)),
            Err(Loss::Taken(taken)) => Ok(TryAcquire::Taken(taken)),
            Err(Loss::NoQuorum(_)) if !self.core.closing.is_open() => {
                Err(AcquireError::Closed(self.resource()))
            }
            Err(Loss::NoQuorum(outcomes)) => {
                Err(self.core.no_quorum(outcomes).of(self.resource()).into())
            }
        }
    }

    /// Acquires the lock. Makes attempts until one succeeds or
    /// [`acquire_timeout`](super::MutexBuilder::acquire_timeout) has passed. The nodes notify the
    /// call when the lock is released; without a notification it tries again after growing, random
    /// pauses. Each attempt has a fresh owner token and is rolled back if it fails. Of several
    /// handles that wait, the one that has waited longest is usually the next to get the lock; of a
    /// [fair](super::MutexBuilder::fair) mutex it always is.
    ///
    /// # Errors
    /// [`AcquireError::TimedOut`] if another owner had the lock at the last attempt.
    /// [`AcquireError::NoQuorum`] if too few nodes gave an answer that counts at the last attempt.
    /// This error is returned without further attempts if only a person can remove the cause.
    /// [`AcquireError::Closed`] as soon as the handle is [closed](crate::Redlock::close).
    ///
    /// # Cancellation safety
    /// If dropped at any await, the lock is not held: grants of nodes are released in the
    /// background, and end with the ttl at the latest. If the call is dropped while it waits, its
    /// place in the queue passes to the next waiter.
    pub async fn acquire(&self) -> Result<LockGuard, AcquireError> {
        let operation = operation!("acquire", of = %self.resource());
        self.acquire_in(LockMode::Exclusive, operation, &mut |_| ()).await
    }

    /// Acquires the lock as [`acquire`](Self::acquire), and reports the position of a
    /// [fair](super::MutexBuilder::fair) caller while it waits. `on_queued` is called as soon as a
    /// majority of the nodes has the caller's place, and when the position changes, about once a
    /// second. It is not called if the lock is free, or if the mutex is not fair.
    ///
    /// ```
    /// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::{MemoryNode, Redlock};
    /// let redlock = Redlock::builder().node(MemoryNode::new()).build()?;
    /// let mutex = redlock.mutex("plotter").fair(true).build()?;
    /// let guard = mutex.acquire_with(|q| println!("{} jobs come first", q.ahead)).await?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The same errors as [`acquire`](Self::acquire).
    ///
    /// # Cancellation safety
    /// If dropped at any await, the lock is not held, and the caller loses its place in the queue.
    pub async fn acquire_with(
        &self,
        mut on_queued: impl FnMut(Queued) + Send,
    ) -> Result<LockGuard, AcquireError> {
        let operation = operation!("acquire", of = %self.resource());
        self.acquire_in(LockMode::Exclusive, operation, &mut on_queued).await
    }

    pub(super) async fn acquire_in(
        &self,
        mode: LockMode,
        operation: Call,
        on_queued: OnQueued<'_>,
    ) -> Result<LockGuard, AcquireError> {
        let call = Acquiring::begin(&self.core, &self.name);
        let waits = self.wait_for_it(mode, &operation, on_queued);
        let acquired = waits.instrument(operation.span()).await;
        call.over(operation, acquired.as_ref().map(Some));
        acquired
    }

    async fn wait_for_it(
        &self,
        mode: LockMode,
        operation: &Call,
        on_queued: OnQueued<'_>,
    ) -> Result<LockGuard, AcquireError> {
        let _operation = self.begin()?;
        let (began, mut terms) = (self.core.env.now(), self.retry_terms(self.wait(mode)));
        let line = self.line_up(&mut terms).await?;
        let mut attempt = self.attempt(mode, operation);
        attempt.fair = line.as_ref().map(|line| Fair::new(on_queued, line));
        let won = retry(&self.core, &mut attempt, terms).await;
        won.map(|won| self.guard(won)).map_err(|given_up| {
            let waited = self.core.env.now().since(began);
            not_acquired(&self.core, self.resource(), GivenUp { waited, ..given_up })
        })
    }

    pub(super) fn wait(&self, mode: LockMode) -> Wait {
        match mode {
            LockMode::Exclusive if self.fair => Wait::Fair,
            mode => Wait::Queue(mode),
        }
    }

    /// Past its deadline, this call reports the last answer to the call that makes attempts, or
    /// reads the lock if there is none of the last 3 s (`FRESH`).
    pub(super) async fn line_up(
        &self,
        terms: &mut RetryTerms<'_>,
    ) -> Result<Option<LocalGuard>, AcquireError> {
        if terms.wait != Wait::Fair {
            return Ok(None);
        }
        let (core, began) = (&self.core, self.core.env.now());
        let mut line = pin!(self.wait_locally(&core.fair_lines, None));
        loop {
            let left = terms.deadline.map_or(Duration::MAX, |end| end.since(core.env.now()));
            if let Some(done) = within(left, &mut line).await {
                return done.map(Some);
            }
            let now = core.env.now();
            let recorded = core.fair_lines.answer(&self.keys, self.level, (now - FRESH, now));
            // Nodes are asked only if no task polls the call that makes the attempts.
            let answer = tokio::select! {
                biased;
                done = &mut line => return done.map(Some),
                answer = recorded => answer,
                answer = core.look_at_lock(&self.keys) => answer,
            };
            let now = core.env.now();
            if self.acquire_timeout.is_none()
                && let Loss::NoQuorum(outcomes) = &answer
                && let Some(left) = core.no_quorum(outcomes.clone()).quarantine()
            {
                terms.deadline = Some(now + left + AFTER_QUARANTINE);
                continue;
            }
            let given_up = GivenUp { refused: answer, waited: now.since(began), closed: false };
            return Err(not_acquired(core, self.resource(), given_up));
        }
    }

    pub(super) async fn wait_locally(
        &self,
        locks: &Arc<LocalLocks>,
        deadline: Option<Moment>,
    ) -> Result<LocalGuard, AcquireError> {
        let (core, began) = (&self.core, self.core.env.now());
        let wait = async {
            tokio::select! {
                biased;
                () = core.closing.begun() => Err(AcquireError::Closed(self.resource())),
                guard = locks.lock(&self.keys) => Ok(guard),
            }
        };
        let Some(deadline) = deadline else { return wait.await };
        within(deadline.since(began), wait).await.unwrap_or_else(|| {
            let (of, waited) = (self.resource(), core.env.now().since(began));
            Err(AcquireError::TimedOut { of, waited, taken: taken_locally() })
        })
    }

    pub(super) fn attempt<'a>(&'a self, mode: LockMode, operation: &'a Call) -> LockAttempt<'a> {
        LockAttempt {
            core: &self.core,
            of: self.resource(),
            keys: &self.keys,
            mode,
            ttl: self.ttl,
            level: self.level,
            meters: Arc::clone(&self.core.meters.lock(&self.name).leases),
            operation,
            waits_for_quarantine: self.acquire_timeout.is_none(),
            awaits_all: false,
            taker: None,
            fair: None,
        }
    }

    pub(super) fn retry_terms(&self, wait: Wait) -> RetryTerms<'_> {
        let deadline = acquire_deadline(&self.core, self.acquire_timeout);
        RetryTerms {
            key: self.keys.lock(),
            wait,
            policy: self.retry,
            deadline: Some(deadline),
            since: None,
        }
    }

    pub(super) fn resource(&self) -> Resource {
        (self.kind)(Arc::clone(&self.name))
    }

    /// So that `close` waits for its end.
    pub(super) fn begin(&self) -> Result<Operation<'_>, AcquireError> {
        self.core.closing.enter().ok_or_else(|| AcquireError::Closed(self.resource()))
    }

    pub(super) fn guard(&self, mut won: Lease) -> LockGuard {
        won.renew_until = self.max_hold.map(|limit| self.core.env.now() + limit);
        won.count();
        LockGuard::new(&self.core, won, &self.name, self.renew)
    }
}
