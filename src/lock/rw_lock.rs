//! A read-write lock: one writer, or many readers (readers).

use std::ops::Deref;
use std::sync::Arc;

use super::run::run_under;
use super::{HandOver, Inspection, LockGuard, Mutex, TryAcquire, WorkError};
use crate::error::{AcquireError, HandOverError, ReleaseError};
use crate::op::LockMode;
use crate::span::operation;

/// A named read-write lock, not yet held. Cheap to clone and to make; use one per name or per call.
/// Made by [`Redlock::rw_lock`](crate::Redlock::rw_lock).
///
/// Many readers hold it at the same time, 4,096 at most, or one writer. The writer's lock is a
/// [`Mutex`] of the same name, so it also excludes mutexes and the classic `SET NX PX` clients of
/// other languages, and a reader excludes them as a writer does.
///
/// A writer that waits keeps out readers that begin to wait later, if the nodes receive a request
/// of it at least every 3 s. They do by default: a waiting call asks again after a second at most,
/// or after the pause of its [`retry`](super::MutexBuilder::retry) if that is longer. A pause is up
/// to twice the policy's `max`, so keep `max` below 1.5 s. A node has places for 64 waiting
/// handles; a writer behind them keeps no reader out. After the writer, all readers that wait for
/// it are woken together. A writer that gives up, or whose process dies while it waits, keeps new
/// readers out for 3 s at most.
///
/// There is no call that makes a reader a writer: two readers that both wait to become the writer
/// would wait for each other. Release the read lock, acquire the write lock, and read again what
/// may have changed in between. A task that holds a read lock and calls [`write`](Self::write) on
/// the same name deadlocks with itself, until the timeout. So does one that calls
/// [`read`](Self::read) again while any writer waits, be it of the same process: the writer waits
/// for the first guard, and the second read for the writer.
///
/// A read-write lock is neither reentrant nor degrading; these are forms of a [`Mutex`].
#[derive(Clone, Debug)]
pub struct RwLock(Mutex);

impl From<Mutex> for RwLock {
    /// Makes the read-write lock whose writer is this mutex, with its settings.
    fn from(mutex: Mutex) -> Self {
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
    /// As [`Mutex::acquire`].
    ///
    /// # Cancellation safety
    /// As [`Mutex::acquire`].
    pub async fn read(&self) -> Result<ReadGuard, AcquireError> {
        self.read_lock().await.map(ReadGuard)
    }

    async fn read_lock(&self) -> Result<LockGuard, AcquireError> {
        let operation = operation!("acquire", of = %self.0.resource());
        self.0.acquire_in(LockMode::Shared, operation, &mut |_| ()).await
    }

    /// Acquires the lock for writing, as [`Mutex::acquire`].
    ///
    /// A call that times out loses its place before the readers that came later. So rather than
    /// calling it again and again, set one
    /// [`acquire_timeout`](super::MutexBuilder::acquire_timeout) that is as long as the whole wait.
    ///
    /// # Errors
    /// As [`Mutex::acquire`].
    ///
    /// # Cancellation safety
    /// As [`Mutex::acquire`]. If dropped while it waits, it may keep new readers out for another
    /// 3 s.
    pub async fn write(&self) -> Result<WriteGuard, AcquireError> {
        self.0.acquire().await.map(WriteGuard)
    }

    /// Makes one attempt to acquire the lock for reading. A lock for which a writer waits counts as
    /// taken.
    ///
    /// # Errors
    /// As [`Mutex::try_acquire`].
    ///
    /// # Cancellation safety
    /// As [`Mutex::try_acquire`].
    pub async fn try_read(&self) -> Result<TryAcquire<ReadGuard>, AcquireError> {
        let operation = operation!("try_acquire", of = %self.0.resource());
        Ok(match self.0.try_in(LockMode::Shared, operation).await? {
            TryAcquire::Acquired(guard) => TryAcquire::Acquired(ReadGuard(guard)),
            TryAcquire::Taken(taken) => TryAcquire::Taken(taken),
        })
    }

    /// Makes one attempt to acquire the lock for writing.
    ///
    /// # Errors
    /// As [`Mutex::try_acquire`].
    ///
    /// # Cancellation safety
    /// As [`Mutex::try_acquire`].
    pub async fn try_write(&self) -> Result<TryAcquire<WriteGuard>, AcquireError> {
        Ok(match self.0.try_acquire().await? {
            TryAcquire::Acquired(guard) => TryAcquire::Acquired(WriteGuard(guard)),
            TryAcquire::Taken(taken) => TryAcquire::Taken(taken),
        })
    }

    /// Acquires the lock for reading, runs `work` while it is held, and releases it, as
    /// [`Mutex::run`].
    ///
    /// # Errors
    /// As [`Mutex::run`].
    ///
    /// # Cancellation safety
    /// As [`Mutex::run`].
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
    /// As [`Mutex::run`].
    ///
    /// # Cancellation safety
    /// As [`Mutex::run`].
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
    /// [`AcquireError::Closed`].
    ///
    /// # Cancellation safety
    /// Reads only: may be dropped at any time.
    pub async fn inspect(&self) -> Result<Inspection, AcquireError> {
        self.0.inspect().await
    }
}

/// A guard of a lock that is held for reading. It has all methods of [`LockGuard`] that take
/// `&self`.
///
/// Its [`fencing_token`](LockGuard::fencing_token) orders it among the writers: it is not below
/// that of any earlier writer, and below that of each later one. Readers at the same time may have
/// the same token. A resource that compares it can refuse a reader that was paused while a later
/// writer wrote, and a writer that was paused while later readers read: see the manual's page
/// [locks](crate::manual::locks).
#[derive(Debug)]
#[must_use = "a dropped guard releases its lock at once"]
pub struct ReadGuard(LockGuard);

/// A guard of a lock that is held for writing. It has all methods of [`LockGuard`] that take
/// `&self`.
#[derive(Debug)]
#[must_use = "a dropped guard releases its lock at once"]
pub struct WriteGuard(LockGuard);

impl Deref for ReadGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.0
    }
}

impl Deref for WriteGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.0
    }
}

impl From<ReadGuard> for LockGuard {
    /// Returns the inner guard, for code that takes a guard of any kind. The lock is still held for
    /// reading, so it cannot be [handed over](LockGuard::hand_over).
    fn from(guard: ReadGuard) -> Self {
        guard.0
    }
}

impl From<WriteGuard> for LockGuard {
    /// Returns the inner guard, for code that takes a guard of any kind.
    fn from(guard: WriteGuard) -> Self {
        guard.0
    }
}

impl ReadGuard {
    /// Releases the lock, as [`LockGuard::release`].
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    ///
    /// # Cancellation safety
    /// As [`LockGuard::release`].
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.0.release().await
    }
}

impl WriteGuard {
    /// Releases the lock, as [`LockGuard::release`].
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    ///
    /// # Cancellation safety
    /// As [`LockGuard::release`].
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.0.release().await
    }

    /// Hands the lock over to another process, as [`LockGuard::hand_over`]. There the guard is a
    /// plain [`LockGuard`].
    ///
    /// # Errors
    /// As [`LockGuard::hand_over`].
    ///
    /// # Cancellation safety
    /// As [`LockGuard::hand_over`].
    pub async fn hand_over(self) -> Result<HandOver, HandOverError> {
        self.0.hand_over().await
    }

    /// Becomes a reader, so that other readers may hold the lock, too. No writer gets the lock in
    /// between, and the token stays the same. The validity is that of an
    /// [`extend`](LockGuard::extend). [`max_hold`](super::MutexBuilder::max_hold) still counts from
    /// the acquire.
    ///
    /// The nodes are asked once. Where too few answer, the guard is valid as before, readers are
    /// refused there, and the next renewals ask again; without
    /// [`auto_renew`](super::MutexBuilder::auto_renew) the next [`extend`](LockGuard::extend) does.
    /// A guard that was lost stays lost: check [`is_valid`](LockGuard::is_valid). If this writer
    /// had waited for the lock, a node may still have its place in the queue, which keeps readers
    /// out for 3 s at most.
    ///
    /// # Cancellation safety
    /// If dropped, the lock is released in the background, as by a drop of the guard.
    pub async fn downgrade(self) -> ReadGuard {
        ReadGuard(self.0.downgrade().await)
    }
}
