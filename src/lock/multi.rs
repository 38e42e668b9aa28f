//! A lock of several names, which are acquired and released together.

use std::sync::Arc;

use tracing::Instrument as _;

use super::acquiring::Acquiring;
use super::guard::contains_guard;
use super::multi_wait::MultiWait;
use super::{Built, LockGuard, Mutex, MutexBuilder, TryAcquire};
use crate::client::Core;
use crate::client::acquire::{acquire_deadline, not_acquired};
use crate::client::retry::GivenUp;
use crate::error::{AcquireError, ConfigError, ReleaseError, Resource};
use crate::name::{LockKeys, check_lock};
use crate::safe_text::Quoted;
use crate::span::{Call, operation};

/// A node decides about all names of a multi-lock in one step.
const NAMES_MAX: usize = 32;

/// Settings of a [`MultiMutex`], made by [`Redlock::multi`](crate::Redlock::multi).
pub type MultiMutexBuilder = MutexBuilder<MultiMutex>;

impl MutexBuilder<MultiMutex> {
    pub(crate) fn of_names(core: Arc<Core>, mut names: Vec<Arc<str>>) -> Self {
        names.sort_unstable();
        Self::with(core, &names.join(", "), names)
    }
}

fn keys_of(mutex: &Mutex, names: &[Arc<str>]) -> Vec<LockKeys> {
    names.iter().map(|name| LockKeys::prefixed(&mutex.core.config.prefix, name)).collect()
}

impl Built for MultiMutex {
    type Of = Vec<Arc<str>>;

    fn check(mutex: &Mutex, names: &Self::Of) -> Result<(), ConfigError> {
        if !(2..=NAMES_MAX).contains(&names.len()) {
            let rule = format!("between 2 and {NAMES_MAX}; for one name use `mutex`");
            return Err(ConfigError::new("names", format!("{} names", names.len()), rule));
        }
        let mut pairs = names.iter().zip(&names[1..]);
        if let Some((twice, _)) = pairs.find(|(name, next)| name == next) {
            let rule = "each name once: leave out the second";
            return Err(ConfigError::new("names", Quoted(twice).to_string(), rule));
        }
        for (name, keys) in names.iter().zip(keys_of(mutex, names)) {
            check_lock(name, &keys).map_err(|e| e.of(Resource::Lock(Arc::clone(name))))?;
        }
        Ok(())
    }

    fn make(mutex: Mutex, names: Self::Of) -> Self {
        let keys = keys_of(&mutex, &names);
        let mutex = Mutex { keys: LockKeys::many(keys.clone()), ..mutex };
        Self { mutex, names: names.into(), keys: keys.into() }
    }
}

/// A lock of several names, not yet held: all of them are acquired, or none. Cheap to clone. Made
/// by [`Redlock::multi`](crate::Redlock::multi).
///
/// Each name is also the name of a [`Mutex`](crate::Mutex). So the multi-lock and a mutex, readers
/// or classic clients of one of its names exclude each other. Two calls for several names never
/// wait for each other in a ring, in whatever order the names are given. Do not hold one of the
/// names while you make the call: the call would wait for your own guard.
///
/// A call that has to wait first makes attempts at all names together, after growing, random
/// pauses. If the names were not free together for 250 ms, the call collects them: it waits for one
/// name after the other in the nodes' queues. So it also succeeds while other callers and readers
/// of single names always leave one name taken, as long as they do not hold the second or a later
/// name for longer than the ttl. While the call waits for the next name, it holds the names that it
/// has collected, for 500 ms (twice [`node_deadline`](crate::RedlockBuilder::node_deadline)) at
/// first and never for longer than its ttl; then it releases them. Another caller of a collected
/// name may have to wait for this time for each name that the call still lacks. An inspection shows
/// a collected name as held.
///
/// If an operator [takes](crate::Mutex::take_over) one name from the holder, the whole guard is
/// lost at its next renewal. The other names are free when the guard is dropped, at the latest
/// after the ttl.
#[derive(Clone, Debug)]
pub struct MultiMutex {
    mutex: Mutex,
    names: Arc<[Arc<str>]>,
    keys: Arc<[LockKeys]>,
}

impl MultiMutex {
    /// Returns the names of the lock, sorted.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Acquires all names, or none: makes attempts until one succeeds or the
    /// [`acquire_timeout`](MutexBuilder::acquire_timeout) has passed.
    ///
    /// # Errors
    /// The same errors as [`Mutex::acquire`](crate::Mutex::acquire). The error contains all names,
    /// and does not show which of them is taken. To find out, [inspect](crate::Mutex::inspect) a
    /// mutex of each name.
    ///
    /// # Cancellation safety
    /// If dropped at any await, there is no guard. Grants of nodes, and names that were collected,
    /// are released in the background, and end with the ttl at the latest. The places of the call
    /// in the nodes' queues pass to the next waiters.
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
    /// The same errors as [`Mutex::try_acquire`](crate::Mutex::try_acquire).
    ///
    /// # Cancellation safety
    /// If dropped at any await, there is no guard, as with [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<TryAcquire<MultiGuard>, AcquireError> {
        Ok(self.mutex.try_acquire().await?.map(|guard| self.guard(guard)))
    }

    fn guard(&self, guard: LockGuard) -> MultiGuard {
        MultiGuard { guard, names: Arc::clone(&self.names) }
    }
}

/// A guard of several names that are held together. It has all methods of [`LockGuard`] that take
/// `&self`. The names have one deadline and are lost together. They have one
/// [`fencing_token`](LockGuard::fencing_token), which is larger than every earlier token of each of
/// the names. A `MultiGuard` can be converted into a [`LockGuard`], but a hand-over of that guard
/// fails and releases all names.
#[derive(Debug)]
#[must_use = "a dropped guard releases its locks at once"]
pub struct MultiGuard {
    guard: LockGuard,
    names: Arc<[Arc<str>]>,
}

contains_guard! {
    /// Returns the inner guard, for code that takes a guard of any kind.
    MultiGuard, guard
}

impl MultiGuard {
    /// Returns the names of the lock, sorted.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Releases all names, as [`LockGuard::release`].
    ///
    /// # Errors
    /// The same errors as [`LockGuard::release`]. `Ok` means that all names were held until this
    /// release. [`ReleaseError::TakenByOther`] means that other owners have one or more of the
    /// names.
    ///
    /// # Cancellation safety
    /// If dropped at any await, the release continues in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}
