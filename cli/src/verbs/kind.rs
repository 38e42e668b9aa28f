//! The kinds of locks that `palisade lock` acquires.

use std::time::Duration;

use clap::Args;
use futures_util::future::join_all;
use palisade::error::AcquireError;
use palisade::internal::given;
use palisade::{
    Inspection, LockGuard, MultiMutex, MultiMutexBuilder, Mutex, NodeView, Permit, RwLock,
    Semaphore, SemaphoreBuilder, TryAcquire,
};

use super::inspect::{line, number};
use super::{Ground, permits};
use crate::codes::Fail;

/// Options that name a lock and its kind.
#[derive(Debug, Args)]
pub(super) struct KindArgs {
    /// Name of the lock
    pub(super) name: String,
    /// Hold the lock for reading: other processes with this option may hold it at the same time,
    /// processes without it may not
    #[arg(long)]
    read: bool,
    /// Hold one of K permits of the semaphore NAME, which has nothing to do with the lock NAME. The
    /// command gets the number of its permit, 0 to K - 1, as `PALISADE_SLOT`
    #[arg(long, value_name = "K", conflicts_with = "read")]
    permits: Option<u16>,
    /// Hold this lock, too; may be given several times. All locks are acquired together, or none
    #[arg(long, value_name = "NAME", conflicts_with_all = ["read", "permits"])]
    pub(super) also: Vec<String>,
}

impl KindArgs {
    /// Returns the lock that the options name. Its acquisition waits for at most `wait`.
    pub(super) fn lock(&self, ground: &Ground, wait: Option<Duration>) -> Result<Kind, Fail> {
        if let Some(permits) = self.permits {
            let semaphore = ground.redlock.semaphore(&self.name, permits);
            let semaphore = given(semaphore, wait, SemaphoreBuilder::acquire_timeout);
            return Ok(Kind::Permit(semaphore.build()?));
        }
        if !self.also.is_empty() {
            let names = || std::iter::once(&self.name).chain(&self.also);
            let locks = ground.redlock.multi(names());
            let locks = given(locks, wait, MultiMutexBuilder::acquire_timeout);
            let each: Result<_, Fail> = names().map(|name| ground.mutex(name, None)).collect();
            return Ok(Kind::Several(locks.build()?, each?));
        }
        let mutex = ground.mutex(&self.name, wait)?;
        Ok(if self.read { Kind::Reading(RwLock::from(mutex)) } else { Kind::Exclusive(mutex) })
    }
}

/// A lock of any kind, not yet held.
pub(super) enum Kind {
    Exclusive(Mutex),
    /// A lock that this process holds for reading, together with other readers.
    Reading(RwLock),
    Permit(Semaphore),
    /// A lock of several names together, and the mutex of each name, to show its holder.
    Several(MultiMutex, Vec<Mutex>),
}

/// A lock of any kind that is held.
pub(super) struct Acquired {
    pub(super) guard: LockGuard,
    /// Slot (number) of the permit, if the lock is a semaphore's permit.
    pub(super) slot: Option<u16>,
}

impl From<LockGuard> for Acquired {
    fn from(guard: LockGuard) -> Self {
        Self { guard, slot: None }
    }
}

impl Acquired {
    fn permit(permit: Permit) -> Self {
        Self { slot: Some(permit.slot()), guard: permit.into() }
    }
}

impl Kind {
    /// Returns the name of the lock. If there are several names, returns the first one of the
    /// command line.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Exclusive(mutex) => mutex.name(),
            Self::Reading(lock) => lock.name(),
            Self::Permit(semaphore) => semaphore.name(),
            Self::Several(_, mutexes) => mutexes.first().map_or("", Mutex::name),
        }
    }

    /// Returns the names and the kind of the lock as text.
    pub(super) fn title(&self) -> String {
        match self {
            Self::Exclusive(mutex) => format!("lock {:?}", mutex.name()),
            Self::Reading(lock) => format!("lock {:?}", lock.name()),
            Self::Permit(semaphore) => format!("semaphore {:?}", semaphore.name()),
            Self::Several(locks, _) => {
                let names: Vec<_> = locks.names().iter().map(|name| format!("{name:?}")).collect();
                format!("locks {}", names.join(", "))
            }
        }
    }

    /// Returns the reason for which an attempt to acquire the lock was refused.
    pub(super) fn taken(&self) -> String {
        match self {
            Self::Exclusive(_) | Self::Reading(_) => {
                format!("{} is held by another owner", self.title())
            }
            Self::Permit(semaphore) => {
                format!("{}: other owners hold {}", self.title(), all_of(semaphore))
            }
            Self::Several(..) => format!("{}: another owner holds one of them", self.title()),
        }
    }

    /// Makes one attempt to acquire the lock.
    pub(super) async fn try_once(&self) -> Result<TryAcquire<Acquired>, AcquireError> {
        Ok(match self {
            Self::Exclusive(mutex) => each(mutex.try_acquire().await?, Acquired::from),
            Self::Reading(lock) => {
                each(lock.try_read().await?, |guard| LockGuard::from(guard).into())
            }
            Self::Permit(semaphore) => each(semaphore.try_acquire().await?, Acquired::permit),
            Self::Several(locks, _) => {
                each(locks.try_acquire().await?, |guard| LockGuard::from(guard).into())
            }
        })
    }

    /// Acquires the lock, and waits for it within one call of the library.
    pub(super) async fn acquire(&self) -> Result<Acquired, AcquireError> {
        match self {
            Self::Exclusive(mutex) => mutex.acquire().await.map(Acquired::from),
            Self::Reading(lock) => Ok(LockGuard::from(lock.read().await?).into()),
            Self::Permit(semaphore) => semaphore.acquire().await.map(Acquired::permit),
            Self::Several(locks, _) => Ok(LockGuard::from(locks.acquire().await?).into()),
        }
    }

    /// Returns the message that names the lock's holders while `palisade` waits for the lock.
    pub(super) async fn held(&self) -> String {
        let title = self.title();
        match self {
            Self::Exclusive(mutex) => {
                format!("{title} is held by {}; waiting", holders(mutex.inspect().await.ok()))
            }
            Self::Reading(lock) => {
                format!("{title} is held by {}; waiting", holders(lock.inspect().await.ok()))
            }
            Self::Permit(semaphore) => {
                let held = semaphore.inspect().await.map(|seen| seen.held()).unwrap_or_default();
                let all = all_of(semaphore);
                let by: Vec<_> = held.iter().map(permits::line).collect();
                format!("{title}: other owners hold {all}: {}; waiting", by.join(", "))
            }
            Self::Several(_, mutexes) => {
                let seen = join_all(mutexes.iter().map(Mutex::inspect)).await;
                let seen = mutexes.iter().zip(seen.into_iter().map(Result::ok));
                let by: Vec<_> = seen
                    .filter(|(_, seen)| seen.as_ref().is_some_and(|seen| !seen.is_free()))
                    .map(|(mutex, seen)| format!("{:?} by {}", mutex.name(), holders(seen)))
                    .collect();
                format!("{title}: other owners hold some of them: {}; waiting", by.join(", "))
            }
        }
    }
}

fn each<T>(tried: TryAcquire<T>, of: impl FnOnce(T) -> Acquired) -> TryAcquire<Acquired> {
    match tried {
        TryAcquire::Acquired(guard) => TryAcquire::Acquired(of(guard)),
        TryAcquire::Taken(taken) => TryAcquire::Taken(taken),
    }
}

/// Returns the permits of a semaphore in words.
fn all_of(semaphore: &Semaphore) -> String {
    match semaphore.permits() {
        1 => "its permit".to_owned(),
        n => format!("all {n} permits"),
    }
}

/// Returns for how long a majority of the nodes grants a free lock to its last holder only.
fn kept(seen: &Inspection) -> Option<Duration> {
    let kept = seen.nodes.iter().filter_map(|(_, view)| match view {
        NodeView::Kept(rest) => Some(*rest),
        _ => None,
    });
    (2 * kept.clone().count() > seen.nodes.len()).then(|| kept.max().unwrap_or_default())
}

/// Returns the holder or the readers of a lock in words.
fn holders(seen: Option<Inspection>) -> String {
    let readers = seen.as_ref().map_or(0, Inspection::reader_count);
    let kept = seen.as_ref().and_then(kept);
    match seen.and_then(|seen| seen.holder()) {
        Some(holder) => line(&holder),
        None if readers > 0 => number(readers),
        None => match kept {
            Some(rest) => format!(
                "nobody, and is kept for its last holder for {rest:.1?} at most, after a planned \
                 handover"
            ),
            None => "another process".to_owned(),
        },
    }
}
