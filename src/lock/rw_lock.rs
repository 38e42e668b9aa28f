//! A read-write lock: one writer, or many readers (`docs/design/readers.md`).

use std::sync::Arc;

use super::guard::contains_guard;
use super::run::run_under;
use super::{Built, HandOver, Inspection, LockGuard, Mutex, TryAcquire, WorkError};
use crate::error::{AcquireError, ConfigError, HandOverError, ReleaseError};
use crate::op::LockMode;
use crate::span::operation;

/// A named read-write lock, not yet held. It is cheap to clone and to make, so a program may keep
/// one for each name, or make one for each call. Made by
/// [`Redlock::rw_lock`](crate::Redlock::rw_lock).
///
/// At one time either one writer or readers hold the lock, up to 4,096 on each node. The writer's
/// lock is a [`Mutex`] of the same name, so it also excludes mutexes and the classic `SET NX PX`
/// clients of other languages. A reader excludes them too.
///
/// A writer that waits keeps out readers that begin to wait later, if the nodes receive a request
/// from the writer at least every 3 s. By default they do: a call that waits makes its next attempt
/// after a second at most, or after the pause of its [`retry`](super::MutexBuilder::retry) if that
/// is longer. A pause is up to twice the policy's `max`, so keep `max` below 1.5 s. A node has
/// places for 64 waiting handles; a writer that gets no place keeps no reader out. After the
/// writer, all readers that wait for the lock are woken together. A writer whose call ends without
/// the lock, or whose process dies while it waits, keeps new readers out for 3 s at most.
///
/// There is no call that makes a reader a writer: two readers that both wait to become the writer
/// would wait for each other. Release the read lock, acquire the write lock, and read again the
/// data that may have changed in between. A task that holds a read lock and calls
/// [`write`](Self::write) on the same name waits for itself until the timeout. A task that holds a
/// read lock and calls [`read`](Self::read) again does the same if any writer waits, even one of
/// the same process: the writer waits for the first guard, and the second read waits for the
/// writer.
///
/// A read-write lock is neither reentrant nor degrading; these are forms of a [`Mutex`].
#[derive(Clone, Debug)]
pub struct RwLock(Mutex);

impl From<Mutex> for RwLock {
    fn from(mutex: Mutex) -> Self {
        Self(mutex)
    }
}

impl Built for RwLock {
    type Of = ();

    fn check(mutex: &Mutex, (): &()) -> Result<(), ConfigError> {
        Mutex::check(mutex, &())
    }

    fn make(mutex: Mutex, (): ()) -> Self {
        Self(mutex)
    }
}

impl RwLock {
    /// Returns the name as given to [`Redlock::rw_lock`](crate::Redlock::rw_lock).
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Acquires the lock for reading: makes attempts until it is held or the
    /// [`acquire_timeout`](super::MutexBuilder::acquire_timeout) has passed, as [`Mutex::acquire`].
    ///
    /// # Errors
    /// The same errors as [`Mutex::acquire`].
    ///
    /// # Cancellation safety
    /// If dropped at any await, the lock is not held, as with [`Mutex::acquire`].
    pub async fn read(&self) -> Result<ReadGuard, AcquireError> {
        self.read_lock().await.map(ReadGuard)
    }

    async fn read_lock(&self) -> Result<LockGuard, AcquireError> {
        let operation = operation!("acquire", of = %self.0.resource());
        self.0.acquire_in(LockMode::Shared, operation, &mut |_| ()).await
    }

    /// Acquires the lock for writing, as [`Mutex::acquire`].
    ///
    /// A call that times out loses its place in the queue, and with it the precedence over readers
    /// that came later. So do not repeat short calls: set one
    /// [`acquire_timeout`](super::MutexBuilder::acquire_timeout) that is as long as the whole wait.
    ///
    /// # Errors
    /// The same errors as [`Mutex::acquire`].
    ///
    /// # Cancellation safety
    /// If dropped at any await, the lock is not held, as with [`Mutex::acquire`]. If dropped while
    /// it waits, the call may keep new readers out for another 3 s.
    pub async fn write(&self) -> Result<WriteGuard, AcquireError> {
        self.0.acquire().await.map(WriteGuard)
    }

    /// Makes one attempt to acquire the lock for reading. A lock for which a writer waits counts as
    /// taken.
    ///
    /// # Errors
    /// The same errors as [`Mutex::try_acquire`].
    ///
    /// # Cancellation safety
    /// If dropped at any await, the lock is not held, as with [`Mutex::try_acquire`].
    pub async fn try_read(&self) -> Result<TryAcquire<ReadGuard>, AcquireError> {
        let operation = operation!("try_acquire", of = %self.0.resource());
        Ok(self.0.try_in(LockMode::Shared, operation).await?.map(ReadGuard))
    }

    /// Makes one attempt to acquire the lock for writing.
    ///
    /// # Errors
    /// The same errors as [`Mutex::try_acquire`].
    ///
    /// # Cancellation safety
    /// If dropped at any await, the lock is not held, as with [`Mutex::try_acquire`].
    pub async fn try_write(&self) -> Result<TryAcquire<WriteGuard>, AcquireError> {
        Ok(self.0.try_acquire().await?.map(WriteGuard))
    }

    /// Acquires the lock for reading, runs `work` while it is held, and releases it, as
    /// [`Mutex::run`].
    ///
    /// # Errors
    /// The same errors as [`Mutex::run`].
    ///
    /// # Cancellation safety
    /// If dropped, the work is dropped and the lock is released, as with [`Mutex::run`].
    pub async fn read_with<T, F, Fut>(&self, work: F) -> Result<T, WorkError<T>>
    where
        F: FnOnce(Arc<LockGuard>) -> Fut,
        Fut: Future<Output = T>,
    {
        run_under(self.read_lock().await, work).await
    }

    /// Acquires the lock for writing, runs `work` while it is held, and releases it, as
    /// [`Mutex::run`].
    ///
    /// # Errors
    /// The same errors as [`Mutex::run`].
    ///
    /// # Cancellation safety
    /// If dropped, the work is dropped and the lock is released, as with [`Mutex::run`].
    pub async fn write_with<T, F, Fut>(&self, work: F) -> Result<T, WorkError<T>>
    where
        F: FnOnce(Arc<LockGuard>) -> Fut,
        Fut: Future<Output = T>,
    {
        self.0.run(work).await
    }

    /// Asks every node for the holder or the readers, and waits for all answers. Changes nothing.
    ///
    /// # Errors
    /// [`AcquireError::Closed`] if the `Redlock` handle was closed.
    ///
    /// # Cancellation safety
    /// May be dropped at any time, because it only reads.
    pub async fn inspect(&self) -> Result<Inspection, AcquireError> {
        self.0.inspect().await
    }
}

/// A guard of a lock that is held for reading. It has all methods of [`LockGuard`] that take
/// `&self`.
///
/// Its [`fencing_token`](LockGuard::fencing_token) orders the reader among the writers: it is not
/// below that of any earlier writer, and below that of each later one. Readers at the same time may
/// have the same token. A resource that compares it can refuse a reader that was paused while a
/// later writer wrote, and a writer that was paused while later readers read: see the manual's page
/// [locks](crate::manual::locks).
#[derive(Debug)]
#[must_use = "a dropped guard releases its lock at once"]
pub struct ReadGuard(LockGuard);

/// A guard of a lock that is held for writing. It has all methods of [`LockGuard`] that take
/// `&self`.
#[derive(Debug)]
#[must_use = "a dropped guard releases its lock at once"]
pub struct WriteGuard(LockGuard);

contains_guard! {
    /// Returns the inner guard, for code that takes a guard of any kind. The lock is still held for
    /// reading, so it cannot be [handed over](LockGuard::hand_over).
    ReadGuard, 0
}

contains_guard! {
    /// Returns the inner guard, for code that takes a guard of any kind.
    WriteGuard, 0
}

impl ReadGuard {
    /// Releases the lock, as [`LockGuard::release`].
    ///
    /// # Errors
    /// The same errors as [`LockGuard::release`].
    ///
    /// # Cancellation safety
    /// If dropped at any await, the release continues in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.0.release().await
    }
}

impl WriteGuard {
    /// Releases the lock, as [`LockGuard::release`].
    ///
    /// # Errors
    /// The same errors as [`LockGuard::release`].
    ///
    /// # Cancellation safety
    /// If dropped at any await, the release continues in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.0.release().await
    }

    /// Hands the lock over to another process, as [`LockGuard::hand_over`]. There the guard is a
    /// plain [`LockGuard`].
    ///
    /// # Errors
    /// The same errors as [`LockGuard::hand_over`].
    ///
    /// # Cancellation safety
    /// If dropped, there is no ticket, and the lock is released in the background.
    pub async fn hand_over(self) -> Result<HandOver, HandOverError> {
        self.0.hand_over().await
    }

    /// Becomes a reader, so that other readers may hold the lock too. No writer gets the lock in
    /// between, and the fencing token stays the same. The lease is extended by the ttl, as with
    /// [`extend`](LockGuard::extend). [`max_hold`](super::MutexBuilder::max_hold) still counts from
    /// the acquire.
    ///
    /// Each node gets one request. If too few nodes answer, the guard is valid until its old
    /// deadline, and the nodes that did not get the request still refuse readers. The next renewals
    /// repeat the request; without [`auto_renew`](super::MutexBuilder::auto_renew) the next
    /// [`extend`](LockGuard::extend) does. A guard that was lost stays lost: check
    /// [`is_valid`](LockGuard::is_valid). If this writer had waited for the lock, a node may still
    /// have its place in the queue, which keeps readers out for 3 s at most.
    ///
    /// # Cancellation safety
    /// If dropped, the lock is released in the background, as by a drop of the guard.
    pub async fn downgrade(self) -> ReadGuard {
        ReadGuard(self.0.downgrade().await)
    }
}
