//! A reentrant mutex. The owner is a value that the caller passes, never a thread or a task. Its
//! acquires share one guard, one lease and one fencing token.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Mutex as TokioMutex;

use super::{LockGuard, Mutex, TryAcquire};
use crate::client::Core;
use crate::client::acquire::acquire_deadline;
use crate::client::runtime::within;
use crate::error::{AcquireError, ReleaseError, Taken};
use crate::sync::SyncMutex;

/// Locked while an acquire sends requests.
type Slot = TokioMutex<Weak<LockGuard>>;

/// The holder of a [`ReentrantMutex`], for example a request, a session or an order of the
/// application. Clones are the same owner. The locks of different `Redlock` handles are separate,
/// even if they have the same name.
///
/// Pass the owner to the functions that acquire the same lock again, or make it the
/// [`current`](Self::current) one of a task by [`scope`](Self::scope).
#[derive(Clone, Default)]
pub struct Owner(Arc<SyncMutex<Slots>>);

#[derive(Default)]
struct Slots {
    /// By the address of the handle's state, and the lock's name.
    by_name: HashMap<(usize, Arc<str>), Arc<Slot>>,
    /// Then the next look-up first removes the unused ones.
    sweep_at: usize,
}

tokio::task_local! {
    static CURRENT: Owner;
}

impl Owner {
    /// Makes a new owner, which is different from all others and holds no lock.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs a future, in which [`current`](Self::current) returns this owner. Tasks that the future
    /// spawns do not inherit it.
    ///
    /// # Cancellation safety
    /// If dropped, `work` is dropped at its current await.
    pub async fn scope<T>(&self, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self.clone(), work).await
    }

    /// Returns the owner of the innermost [`scope`](Self::scope) around the call, if there is one.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    fn slot(&self, core: &Arc<Core>, name: &Arc<str>) -> Arc<Slot> {
        let mut slots = self.0.lock();
        if slots.by_name.len() >= slots.sweep_at {
            // Nobody else has it, so no call uses it.
            slots.by_name.retain(|_, slot| {
                Arc::strong_count(slot) > 1
                    || slot.try_lock().is_ok_and(|guard| guard.strong_count() > 0)
            });
            slots.sweep_at = 2 * slots.by_name.len() + 16;
        }
        let handle = Arc::as_ptr(core).addr();
        Arc::clone(slots.by_name.entry((handle, Arc::clone(name))).or_default())
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Owner {}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owner").field(&Arc::as_ptr(&self.0)).finish()
    }
}

/// A mutex that an [`Owner`] may acquire again while it holds it. Made by
/// [`Mutex::reentrant`].
///
/// Only the first acquire of an owner sends requests to the nodes. Further acquires return at once,
/// with the same fencing token. The lock is released when the owner's last guard is released or
/// dropped; the order of the guards does not matter. On the nodes the lock is an ordinary [`Mutex`]
/// of the same name, so the two exclude each other.
///
/// **This works only for reentrant mutexes of one handle and its clones.** If the owner acquires
/// the same name by another handle, or by a plain mutex, a read-write lock or a multi-lock, the
/// call waits for the lock of its own owner until the timeout.
///
/// All guards of the owner have the settings of the mutex by which the owner first acquired the
/// lock: the ttl, the durability, and `max_hold`, which a further acquire does not prolong. There
/// is no `run`: await [`lost`](LockGuard::lost) beside the work of the outermost guard. A reentrant
/// mutex cannot be a read-write lock or [degrade](Mutex::on_unavailable).
///
/// ```
/// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
/// # use palisade::{MemoryNode, Redlock};
/// use palisade::Owner;
/// let redlock = Redlock::builder().node(MemoryNode::new()).build()?;
/// let mutex = redlock.mutex("order:9").build()?.reentrant();
/// let owner = Owner::new();
/// let outer = mutex.acquire(&owner).await?;
/// let inner = mutex.acquire(&owner).await?; // does not ask the nodes
/// assert_eq!(inner.fencing_token(), outer.fencing_token());
/// assert_eq!(inner.release().await?, 1); // held once more
/// assert_eq!(outer.release().await?, 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ReentrantMutex(Mutex);

impl Mutex {
    /// Returns the reentrant form of this lock, with the same settings.
    pub fn reentrant(self) -> ReentrantMutex {
        ReentrantMutex(self)
    }
}

impl ReentrantMutex {
    /// Returns the name as given to [`Redlock::mutex`](crate::Redlock::mutex).
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Acquires the lock for this owner. If the owner already holds the lock by this handle, the
    /// call returns a further guard at once, without a request to the nodes. This works even after
    /// [`Redlock::close`](crate::Redlock::close), so that running work can end. Otherwise the call
    /// acquires the lock as [`Mutex::acquire`] does. If the owner makes several calls at the same
    /// time, one call asks the nodes, and the other calls wait for its result.
    ///
    /// # Errors
    /// The same errors as [`Mutex::acquire`], and [`AcquireError::Lost`] if the owner still has a
    /// guard of this lock that was lost. The lock is not acquired anew then, because the code with
    /// the earlier guard relies on the lock that was lost.
    ///
    /// # Cancellation safety
    /// If dropped, this call gets no guard, and its grants are released in the background. If the
    /// call that sends requests to the nodes is dropped, the next waiting call of the same owner
    /// sends them.
    pub async fn acquire(&self, owner: &Owner) -> Result<ReentrantGuard, AcquireError> {
        let Mutex { core, acquire_timeout, .. } = &self.0;
        let slot = owner.slot(core, &self.0.name);
        if let Ok(mut held) = slot.try_lock() {
            return self.enter(&mut held, &self.0).await;
        }
        let began = core.env.now();
        let deadline = acquire_deadline(core, *acquire_timeout);
        let locked = within(deadline.since(began), slot.lock()).await;
        let now = core.env.now();
        let Some(mut held) = locked else {
            let (of, waited, taken) = (self.0.resource(), now.since(began), same_owner_asks());
            return Err(AcquireError::TimedOut { of, waited, taken });
        };
        let mutex = Mutex { acquire_timeout: Some(deadline.since(now)), ..self.0.clone() };
        self.enter(&mut held, &mutex).await
    }

    async fn enter(
        &self,
        held: &mut Weak<LockGuard>,
        mutex: &Mutex,
    ) -> Result<ReentrantGuard, AcquireError> {
        if let Some(guard) = self.again(held)? {
            return Ok(guard);
        }
        let guard = Arc::new(mutex.acquire().await?);
        *held = Arc::downgrade(&guard);
        Ok(ReentrantGuard(guard))
    }

    fn again(&self, held: &Weak<LockGuard>) -> Result<Option<ReentrantGuard>, AcquireError> {
        match held.upgrade() {
            Some(guard) if guard.is_valid() => Ok(Some(ReentrantGuard(guard))),
            Some(_) => Err(AcquireError::Lost(self.0.resource())),
            None => Ok(None),
        }
    }

    /// Returns a further guard at once if the owner holds the lock. Otherwise makes one attempt to
    /// acquire it. While another call of the same owner sends requests to the nodes, the lock
    /// counts as taken.
    ///
    /// # Errors
    /// The same errors as [`Mutex::try_acquire`], and [`AcquireError::Lost`] if the owner still has
    /// a guard of this lock that was lost.
    ///
    /// # Cancellation safety
    /// If dropped at any await, the lock is not held, as with [`Mutex::try_acquire`].
    pub async fn try_acquire(
        &self,
        owner: &Owner,
    ) -> Result<TryAcquire<ReentrantGuard>, AcquireError> {
        let slot = owner.slot(&self.0.core, &self.0.name);
        let Ok(mut held) = slot.try_lock() else {
            return Ok(TryAcquire::Taken(same_owner_asks()));
        };
        if let Some(guard) = self.again(&held)? {
            return Ok(TryAcquire::Acquired(guard));
        }
        Ok(match self.0.try_acquire().await? {
            TryAcquire::Acquired(guard) => {
                let guard = Arc::new(guard);
                *held = Arc::downgrade(&guard);
                TryAcquire::Acquired(ReentrantGuard(guard))
            }
            TryAcquire::Taken(taken) => TryAcquire::Taken(taken),
        })
    }
}

fn same_owner_asks() -> Taken {
    Taken { retry_after: Some(Duration::ZERO), foreign: false, queued: None }
}

/// One of the guards that an [`Owner`] has of a [`ReentrantMutex`]. It dereferences to the
/// [`LockGuard`] that all guards of the owner share. So they have one fencing token, and are lost
/// together.
///
/// Guards may be sent to other tasks and dropped in any order.
#[derive(Debug)]
#[must_use = "the lock is released when the owner's last guard is dropped"]
pub struct ReentrantGuard(Arc<LockGuard>);

impl ReentrantGuard {
    /// Returns the number of guards that the owner has of this lock now, this one included.
    pub fn depth(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Drops this guard. If it was the owner's last guard of the lock, releases the lock as
    /// [`LockGuard::release`] does. Returns the number of guards that the owner has left.
    ///
    /// # Errors
    /// The same errors as [`LockGuard::release`]. If guards are left, the only error is
    /// [`ReleaseError::Lost`], for a lock that was lost.
    ///
    /// # Cancellation safety
    /// If dropped at any await, the release continues in the background.
    pub async fn release(self) -> Result<usize, ReleaseError> {
        let (left, is_valid) = (self.depth() - 1, self.is_valid());
        let of = self.resource();
        match Arc::into_inner(self.0) {
            Some(guard) => guard.release().await.map(|()| 0),
            // Another guard of the owner is dropped at the same time.
            None if is_valid => Ok(left),
            None => Err(ReleaseError::Lost(of)),
        }
    }
}

impl Deref for ReentrantGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.0
    }
}
