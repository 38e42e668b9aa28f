//! Settings of a lock of any kind, all checked when it is built.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::{LockGuard, Mutex};
use crate::client::Core;
use crate::durability::Durability;
use crate::error::{AcquireError, ConfigError};
use crate::name::{LockKeys, check_lock};
use crate::retry_policy::RetryPolicy;

/// A kind of lock that a [`MutexBuilder`] builds.
pub trait Built: Sized {
    type Of;

    fn check(mutex: &Mutex, of: &Self::Of) -> Result<(), ConfigError>;

    fn make(mutex: Mutex, of: Self::Of) -> Self;
}

/// Settings of a lock: a [`Mutex`], a [`RwLock`](super::RwLock), a [`Semaphore`](super::Semaphore)
/// or a [`MultiMutex`](super::MultiMutex). Methods of [`Redlock`](crate::Redlock) make this
/// builder.
///
/// If the builder of a mutex is awaited itself, it builds the mutex and acquires it at once, which
/// is convenient for a lock that is used in one place only. The builders of other locks cannot be
/// awaited.
///
/// ```
/// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
/// # use palisade::{MemoryNode, Redlock};
/// let redlock = Redlock::builder().node(MemoryNode::new()).build()?;
/// let guard = redlock.mutex("invoice:42").await?;
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct MutexBuilder<L: Built = Mutex> {
    pub(super) mutex: Mutex,
    pub(super) of: L::Of,
}

impl<L: Built<Of = ()>> MutexBuilder<L> {
    pub(crate) fn new(core: Arc<Core>, name: &str) -> Self {
        Self::with(core, name, ())
    }
}

impl<L: Built> MutexBuilder<L> {
    pub(super) fn with(core: Arc<Core>, name: &str, of: L::Of) -> Self {
        let keys = LockKeys::prefixed(&core.config.prefix, name);
        Self { mutex: Mutex::new(core, name, keys), of }
    }

    /// Sets the lease length, between 10 ms and `max_ttl`. Default: the `ttl` of the `Redlock`
    /// handle. If the lock is renewed automatically, this length does not limit the time for which
    /// the lock may be held. It limits only the time for which other callers have to wait if this
    /// process dies while it holds the lock.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.mutex.ttl = ttl;
        self
    }

    /// Sets the longest time for which [`acquire`](Mutex::acquire) waits for the lock. The default
    /// is 30 s. It is longer if too few nodes can grant because nodes are in quarantine: then the
    /// call waits until shortly after enough of these quarantines have ended.
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.mutex.acquire_timeout = Some(timeout);
        self
    }

    /// Sets whether a background task renews the lock, each time a quarter of its ttl has passed.
    /// Default: true. Without renewal the lock is lost after one ttl unless
    /// [`LockGuard::extend`](super::LockGuard::extend) is called.
    pub fn auto_renew(mut self, renew: bool) -> Self {
        self.mutex.renew = renew;
        self
    }

    /// Sets the time after the acquire for which the lock is renewed, so that a stuck holder cannot
    /// keep the lock for ever. Default: no limit. No automatic renewal begins after this time, so
    /// the guard is lost at most about one ttl later. The limit does not apply to
    /// [`LockGuard::extend`](super::LockGuard::extend).
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.mutex.max_hold = Some(limit);
        self
    }

    /// Sets the pause that [`acquire`](Mutex::acquire) makes between two attempts if no node
    /// reports a release of the lock earlier. A pause is up to twice the policy's `max`. A writer
    /// of a [`RwLock`](super::RwLock) that waits keeps out later readers only if it sends a request
    /// at least every 3 s, so keep `max` below 1.5 s for writers.
    ///
    /// A [`MultiMutex`](super::MultiMutex) uses the policy for two pauses. One is the pause between
    /// two attempts to acquire all names together; no release ends this pause earlier. The other is
    /// the pause while the call waits for one name in the nodes' queues; a release of this name
    /// ends it.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.mutex.retry = policy;
        self
    }

    /// Sets the durability level: how many replicas of a node must have confirmed a grant, and each
    /// renewal, before the answer of the node counts. Default: [`Durability::Primary`].
    /// [`LockGuard::durability`](super::LockGuard::durability) returns the number of replicas that
    /// have confirmed.
    pub fn durability(mut self, level: Durability) -> Self {
        self.mutex.level = level;
        self
    }

    /// Checks the name and the settings, and builds the lock. Nothing is sent to the nodes.
    ///
    /// # Errors
    /// [`ConfigError`] for the first setting that breaks a rule, with the lock, the setting, its
    /// value and the rule. For a lock of several names also if there are fewer than 2 or more than
    /// 32 names, or if a name occurs twice.
    pub fn build(self) -> Result<L, ConfigError> {
        let Self { mutex, of } = self;
        L::check(&mutex, &of)?;
        check_settings(&mutex).map_err(|e| e.of(mutex.resource()))?;
        Ok(L::make(mutex, of))
    }
}

fn check_settings(mutex: &Mutex) -> Result<(), ConfigError> {
    let Mutex { level, core, ttl, renew, .. } = mutex;
    level.check()?;
    core.config.check_ttl(*ttl)?;
    if *renew { core.config.check_renewed(*ttl) } else { Ok(()) }
}

impl Built for Mutex {
    type Of = ();

    fn check(mutex: &Mutex, (): &()) -> Result<(), ConfigError> {
        check_lock(&mutex.name, &mutex.keys).map_err(|e| e.of(mutex.resource()))
    }

    fn make(mutex: Mutex, (): ()) -> Self {
        mutex
    }
}

impl MutexBuilder {
    /// Sets whether [`acquire`](Mutex::acquire) is first come, first served among all fair callers
    /// of the name. Default: false.
    ///
    /// If the position of one caller was [reported](Mutex::acquire_with) before another caller
    /// called, the first one gets the lock before the other. There are exceptions: the first caller
    /// sent no request for 3 s, it reached no majority of the nodes, a node lost its data, or more
    /// than 64 `Redlock` handles waited. Callers that begin at the same time get some order, which
    /// is the same on all nodes. Callers of one handle wait for each other in the order of their
    /// calls. Only the first of them has a position among the callers of other handles.
    ///
    /// The order applies to fair callers only. A mutex that is not fair,
    /// [`try_acquire`](Mutex::try_acquire) and classic `SET NX PX` clients may get the lock before
    /// a fair caller that waits. Readers of a [`RwLock`](super::RwLock) that come after the fair
    /// caller do not.
    ///
    /// A free lock needs no more requests than without this setting. A caller that has to wait
    /// makes one more round trip. If the first caller in the queue dies, the others wait up to 3 s
    /// for it, instead of up to 50 ms.
    pub fn fair(mut self, fair: bool) -> Self {
        self.mutex.fair = fair;
        self
    }
}

/// Calls [`build`](MutexBuilder::build), whose error becomes [`AcquireError::Config`], and then
/// [`acquire`](Mutex::acquire). If the future is dropped, the lock is not held.
impl IntoFuture for MutexBuilder {
    type Output = Result<LockGuard, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.build().map_err(AcquireError::Config)?.acquire().await })
    }
}
