//! A lock of several names, which are acquired and released together.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument as _;

use super::acquiring::Acquiring;
use super::multi_wait::MultiWait;
use super::{LockGuard, Mutex, MutexBuilder, TryAcquire};
use crate::client::Core;
use crate::client::acquire::{acquire_deadline, not_acquired};
use crate::client::retry::GivenUp;
use crate::durability::Durability;
use crate::error::{AcquireError, ConfigError, ReleaseError, Resource};
use crate::name::{LockKeys, check_lock};
use crate::quorum::backoff::RetryPolicy;
use crate::safe_text::Quoted;
use crate::span::{Call, operation};

/// Most names of one multi-lock. A node decides about all of them in one step.
const NAMES_MAX: usize = 32;

/// Settings of a [`MultiMutex`], made by [`Redlock::multi`](crate::Redlock::multi). They are those
/// of a [`MutexBuilder`], without `fair`.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct MultiMutexBuilder {
    core: Arc<Core>,
    names: Vec<Arc<str>>,
    settings: MutexBuilder,
}

impl MultiMutexBuilder {
    pub(crate) fn new(core: Arc<Core>, mut names: Vec<Arc<str>>) -> Self {
        names.sort_unstable();
        let settings = MutexBuilder::new(Arc::clone(&core), &names.join(", "));
        Self { core, names, settings }
    }

    /// Sets the lease length, as [`MutexBuilder::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { settings: self.settings.ttl(ttl), ..self }
    }

    /// Sets the longest time for which [`acquire`](MultiMutex::acquire) waits, as
    /// [`MutexBuilder::acquire_timeout`].
    pub fn acquire_timeout(self, timeout: Duration) -> Self {
        Self { settings: self.settings.acquire_timeout(timeout), ..self }
    }

    /// Sets whether a background task renews the locks, as [`MutexBuilder::auto_renew`].
    pub fn auto_renew(self, renew: bool) -> Self {
        Self { settings: self.settings.auto_renew(renew), ..self }
    }

    /// Sets how long after the acquire the locks are renewed, as [`MutexBuilder::max_hold`].
    pub fn max_hold(self, limit: Duration) -> Self {
        Self { settings: self.settings.max_hold(limit), ..self }
    }

    /// Sets two pauses, as [`MutexBuilder::retry`]: between attempts at all names together, which
    /// no release ends earlier, and while the call waits for its turn at one name, which a release
    /// of this name ends.
    pub fn retry(self, policy: RetryPolicy) -> Self {
        Self { settings: self.settings.retry(policy), ..self }
    }

    /// Sets how many replicas must have a grant, as [`MutexBuilder::durability`].
    pub fn durability(self, level: Durability) -> Self {
        Self { settings: self.settings.durability(level), ..self }
    }

    /// Checks the names and the settings, and builds the lock. Nothing is sent to the nodes.
    ///
    /// # Errors
    /// [`ConfigError`] if there are not 2 to 32 names or one is there twice, and for the first name
    /// or setting that breaks a rule of a mutex.
    pub fn build(self) -> Result<MultiMutex, ConfigError> {
        let Self { core, names, settings } = self;
        if !(2..=NAMES_MAX).contains(&names.len()) {
            let rule = format!("between 2 and {NAMES_MAX}; for one name use `mutex`");
            return Err(ConfigError::new("names", format!("{} names", names.len()), rule));
        }
        let mut pairs = names.iter().zip(&names[1..]);
        if let Some((twice, _)) = pairs.find(|(name, next)| name == next) {
            let rule = "each name once: leave out the second";
            return Err(ConfigError::new("names", Quoted(twice).to_string(), rule));
        }
        let keys = |name: &Arc<str>| LockKeys::prefixed(&core.config.prefix, name);
        let keys: Vec<_> = names.iter().map(keys).collect();
        for (name, keys) in names.iter().zip(&keys) {
            check_lock(name, keys).map_err(|e| e.of(Resource::Lock(Arc::clone(name))))?;
        }
        let mutex = settings.build_for(LockKeys::many(keys.clone()))?;
        Ok(MultiMutex { mutex, names: names.into(), keys: keys.into() })
    }
}

/// A lock of several names, not yet held: all of them are acquired, or none. Cheap to clone. Made
/// by [`Redlock::multi`](crate::Redlock::multi).
///
/// Each name is that of a [`Mutex`](crate::Mutex), so a mutex, readers and classic clients of one
/// name exclude it, and it excludes them. Two calls for several names never wait for each other in
/// a ring, in whatever order the names are given. Hold no single one of the names while you call:
/// the call would wait for you.
///
/// A call that waits first asks for all names again after growing, random pauses. If they were not
/// free together for 250 ms, it collects them one after the other, by its turn in the nodes' queue
/// of each name. So it is served beside callers and readers of single names that leave no gap, as
/// long as they do not hold the second or a later name for longer than the ttl. It has the first
/// names while it waits for the next one, for 500 ms (twice
/// [`node_deadline`](crate::RedlockBuilder::node_deadline)) at first and never for longer than its
/// ttl; then it releases them. A caller of one name may be held up for so long for each name that
/// the call still lacks, and an inspection shows such a name as held.
///
/// If an operator [takes](crate::Mutex::take_over) one name away, the whole guard is lost at its
/// next renewal. The other names are free when the guard is dropped, at the latest after the ttl.
#[derive(Clone, Debug)]
pub struct MultiMutex {
    mutex: Mutex,
    names: Arc<[Arc<str>]>,
    /// Keys of each name.
    keys: Arc<[LockKeys]>,
}

impl MultiMutex {
    /// Returns the names, sorted.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Acquires all names, or none: makes attempts until one succeeds or the
    /// [`acquire_timeout`](MultiMutexBuilder::acquire_timeout) has passed.
    ///
    /// # Errors
    /// As for [`Mutex::acquire`](crate::Mutex::acquire). The error has all names, and does not say
    /// which of them is taken: [inspect](crate::Mutex::inspect) each name by a mutex.
    ///
    /// # Cancellation safety
    /// If dropped at any await, there is no guard. Grants of nodes, and names that were collected,
    /// are released in the background, and end with the ttl at the latest. The turns of the call
    /// pass to the next waiters.
    pub async fn acquire(&self) -> Result<MultiGuard, AcquireError> {
        let mutex = &self.mutex;
        let operation = operation!("acquire", of = %mutex.resource());
        let call = Acquiring::begin(&mutex.core, &mutex.name);
        let acquired = self.wait_for_all(&operation).instrument(operation.span()).await;
        call.over(operation, acquired.as_ref().map(Some));
        acquired.map(|guard| self.guard(guard))
    }

    async fn wait_for_all(&self, operation: &Call) -> Result<LockGuard, AcquireError> {
        let Self { mutex, keys: names, .. } = self;
        let _operation = mutex.begin()?;
        let began = mutex.core.env.now();
        let deadline = acquire_deadline(&mutex.core, mutex.acquire_timeout);
        let won = MultiWait { mutex, names, operation, began, deadline }.acquire().await;
        won.map(|won| mutex.guard(won)).map_err(|given_up| {
            let waited = mutex.core.env.now().since(began);
            not_acquired(&mutex.core, mutex.resource(), GivenUp { waited, ..given_up })
        })
    }

    /// Makes one attempt to acquire all names. If one of the names was just released and is
    /// reserved for a waiter, all names count as taken.
    ///
    /// # Errors
    /// As for [`Mutex::try_acquire`](crate::Mutex::try_acquire).
    ///
    /// # Cancellation safety
    /// As for [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<TryAcquire<MultiGuard>, AcquireError> {
        Ok(match self.mutex.try_acquire().await? {
            TryAcquire::Acquired(guard) => TryAcquire::Acquired(self.guard(guard)),
            TryAcquire::Taken(taken) => TryAcquire::Taken(taken),
        })
    }

    fn guard(&self, guard: LockGuard) -> MultiGuard {
        MultiGuard { guard, names: Arc::clone(&self.names) }
    }
}

/// A guard of several names that are held together. It has all methods of [`LockGuard`] that take
/// `&self`: one deadline, one loss, and one [`fencing_token`](LockGuard::fencing_token), which is
/// above every earlier one of each of the names. It can be made into a [`LockGuard`], but a
/// hand-over of it fails and releases all names.
#[derive(Debug)]
#[must_use = "a dropped guard releases its locks at once"]
pub struct MultiGuard {
    guard: LockGuard,
    names: Arc<[Arc<str>]>,
}

impl Deref for MultiGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl From<MultiGuard> for LockGuard {
    /// For code that takes a guard of any kind.
    fn from(guard: MultiGuard) -> Self {
        guard.guard
    }
}

impl MultiGuard {
    /// Returns the names, sorted.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Releases all names, as [`LockGuard::release`].
    ///
    /// # Errors
    /// As [`LockGuard::release`]. `Ok` means that all names were held until this release, and
    /// [`ReleaseError::TakenByOther`] that other owners have one or more of the names.
    ///
    /// # Cancellation safety
    /// As [`LockGuard::release`].
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}
