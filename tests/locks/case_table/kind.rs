//! The kinds of locks: how each is acquired, and what conflicts with it.

use std::collections::BTreeMap;
use std::time::Duration;

use palisade::{
    AcquireError, DegradableGuard, FencingToken, LockGuard, MultiGuard, OnUnavailable, Owner,
    Redlock, ReentrantGuard, ReleaseError, TryAcquire,
};

/// Number of permits of the semaphore. One holder acquires all of them.
const PERMITS: u16 = 2;

/// A kind of lock. Fair locks are not in the list: they have tests of their own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Mutex,
    Reader,
    Writer,
    Semaphore,
    Reentrant,
    Multi,
    Degrading,
    HandOver,
}

/// Fencing tokens of one holder, by slot. A lock without slots has one token, under slot 0.
pub(super) type Tokens = BTreeMap<u16, FencingToken>;

/// The guards of one holder.
pub(super) enum Held {
    One(LockGuard),
    Permits(BTreeMap<u16, LockGuard>),
    Reentrant([ReentrantGuard; 2]),
    Multi(MultiGuard),
    Degradable(DegradableGuard),
}

impl Held {
    pub(super) fn guards(&self) -> Vec<&LockGuard> {
        match self {
            Self::One(guard) => vec![guard],
            Self::Permits(all) => all.values().collect(),
            Self::Reentrant(both) => both.iter().map(|guard| &**guard).collect(),
            Self::Multi(guard) => vec![guard],
            Self::Degradable(guard) => guard.lock().into_iter().collect(),
        }
    }

    pub(super) fn tokens(&self) -> Tokens {
        if let Self::Permits(all) = self {
            return all.iter().map(|(slot, guard)| (*slot, guard.fencing_token())).collect();
        }
        self.guards().iter().map(|guard| (0, guard.fencing_token())).collect()
    }

    /// Releases all guards of the holder. Returns the first error.
    pub(super) async fn release(self) -> Result<(), ReleaseError> {
        match self {
            Self::One(guard) => guard.release().await,
            Self::Permits(all) => {
                let mut done = Ok(());
                for guard in all.into_values() {
                    done = done.and(guard.release().await);
                }
                done
            }
            Self::Reentrant([outer, inner]) => {
                let left = outer.release().await;
                inner.release().await.and(left).map(drop)
            }
            Self::Multi(guard) => guard.release().await,
            Self::Degradable(guard) => guard.release().await,
        }
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.guards().fmt(f)
    }
}

impl Kind {
    pub(super) const ALL: [Self; 8] = [
        Self::Mutex,
        Self::Reader,
        Self::Writer,
        Self::Semaphore,
        Self::Reentrant,
        Self::Multi,
        Self::Degrading,
        Self::HandOver,
    ];

    /// Acquires the lock for the first handle. For `HandOver`, the second handle acquires the lock
    /// and hands it over to the first handle.
    pub(super) async fn hold(
        self,
        [ours, other]: &[Redlock; 2],
        name: &str,
        within: Duration,
    ) -> Result<Held, AcquireError> {
        let mutex = |redlock: &Redlock| {
            redlock.mutex(name).acquire_timeout(within).build().expect("settings fit together")
        };
        let lock = ours.rw_lock(name).acquire_timeout(within).build().expect("a name");
        Ok(match self {
            Self::Mutex => Held::One(mutex(ours).acquire().await?),
            Self::Reader => Held::One(lock.read().await?.into()),
            Self::Writer => Held::One(lock.write().await?.into()),
            Self::Semaphore => {
                let semaphore = ours.semaphore(name, PERMITS).acquire_timeout(within);
                let semaphore = semaphore.build().expect("a name");
                let mut all = BTreeMap::new();
                for _ in 0..PERMITS {
                    let permit = semaphore.acquire().await?;
                    let taken = all.insert(permit.slot(), permit.into());
                    assert!(taken.is_none(), "a slot twice");
                }
                Held::Permits(all)
            }
            Self::Reentrant => {
                let (lock, owner) = (mutex(ours).reentrant(), Owner::new());
                Held::Reentrant([lock.acquire(&owner).await?, lock.acquire(&owner).await?])
            }
            Self::Multi => {
                let names = [name.to_owned(), format!("{name}-too")];
                let multi = ours.multi(names).acquire_timeout(within).build().expect("names");
                Held::Multi(multi.acquire().await?)
            }
            Self::Degrading => {
                let mutex = mutex(ours).on_unavailable(OnUnavailable::Local);
                // `degrade_after` is longer than the timeout of the call. So the call returns a
                // lock or an error, and never a guard without a lock.
                let mutex = mutex.degrade_after(within * 2).expect("a time");
                Held::Degradable(mutex.acquire().await?)
            }
            Self::HandOver => {
                let guard = mutex(other).acquire().await?;
                let ticket = guard.hand_over().await.expect("a majority answers");
                Held::One(ours.resume(&ticket).await.expect("the ticket is new"))
            }
        })
    }

    /// Acquires the lock after another holder, so that the token must be larger. Readers do not
    /// exclude each other, so a writer follows a reader.
    pub(super) async fn next(
        self,
        handles: &[Redlock; 2],
        name: &str,
        within: Duration,
    ) -> Result<Held, AcquireError> {
        match self {
            Self::Reader => Self::Writer.hold(handles, name, within).await,
            _ => self.hold(handles, name, within).await,
        }
    }

    /// Makes one attempt to acquire the lock while another holder has it. Returns true if the lock
    /// is taken.
    pub(super) async fn conflict(
        self,
        redlock: &Redlock,
        name: &str,
    ) -> Result<bool, AcquireError> {
        let lock = redlock.rw_lock(name).build().expect("a name");
        Ok(match self {
            Self::Reader => is_taken(&lock.try_write().await?),
            Self::Writer => is_taken(&lock.try_read().await?),
            Self::Semaphore => {
                let semaphore = redlock.semaphore(name, PERMITS).build().expect("a name");
                is_taken(&semaphore.try_acquire().await?)
            }
            Self::Reentrant => {
                let lock = redlock.mutex(name).build().expect("a name").reentrant();
                is_taken(&lock.try_acquire(&Owner::new()).await?)
            }
            Self::Multi => {
                let names = [format!("{name}-too"), format!("{name}-else")];
                is_taken(&redlock.multi(names).build().expect("names").try_acquire().await?)
            }
            Self::Mutex | Self::Degrading | Self::HandOver => {
                is_taken(&redlock.mutex(name).build().expect("a name").try_acquire().await?)
            }
        })
    }
}

fn is_taken<G>(tried: &TryAcquire<G>) -> bool {
    matches!(tried, TryAcquire::Taken(_))
}
