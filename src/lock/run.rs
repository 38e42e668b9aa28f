//! Runs work under a lock, and stops it when the lock is lost.

use std::error::Error;
use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;

use super::{LockGuard, Mutex};
use crate::error::{AcquireError, Advice, Advise, NoQuorum, ReleaseError, Resource};

/// The error of work that was to run under a lock or a leadership. Either the work was not started,
/// or it is not certain that the lock was held until the end of the work and was then released.
///
/// If the work ended, [`into_value`](Self::into_value) returns its value.
#[non_exhaustive]
pub enum WorkError<T, E = AcquireError> {
    /// The lock was not acquired, or the election was not won, so the work was not started.
    NotStarted(E),
    /// The lock was lost before the work had ended, so another holder may have begun its own.
    /// Either the work was stopped at its current await or, if there is a `value`, it ended after
    /// the loss.
    #[non_exhaustive]
    Lost {
        /// The lock or the leadership that was lost.
        of: Resource,
        /// Value that the work returned, if it ended.
        value: Option<T>,
    },
    /// The work has ended, and the lock was held until its end, but too few nodes confirmed the
    /// release. The release is repeated in the background, and the lock ends with its ttl at the
    /// latest.
    #[non_exhaustive]
    Unconfirmed {
        /// Value that the work returned.
        value: T,
        /// Answers of the nodes to the release of the lock.
        error: NoQuorum,
    },
}

impl<T, E> WorkError<T, E> {
    /// Returns the value that the work returned, if it ended.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::NotStarted(_) => None,
            Self::Lost { value, .. } => value,
            Self::Unconfirmed { value, .. } => Some(value),
        }
    }
}

impl<T, E: Advise> WorkError<T, E> {
    /// Returns the advice for the error: what the caller can do about it.
    pub fn advice(&self) -> Advice {
        match self {
            Self::NotStarted(e) => e.advice(),
            Self::Lost { .. } => Advice::GiveUp,
            Self::Unconfirmed { error, .. } => error.advice(),
        }
    }
}

impl<T, E: Advise> Advise for WorkError<T, E> {
    fn advice(&self) -> Advice {
        Self::advice(self)
    }
}

impl<T, E: fmt::Debug> fmt::Debug for WorkError<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted(e) => f.debug_tuple("NotStarted").field(e).finish(),
            Self::Lost { of, .. } => f.debug_struct("Lost").field("of", of).finish_non_exhaustive(),
            Self::Unconfirmed { error, .. } => {
                f.debug_struct("Unconfirmed").field("error", error).finish_non_exhaustive()
            }
        }
    }
}

impl<T, E: fmt::Display> fmt::Display for WorkError<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted(e) => e.fmt(f),
            Self::Lost { of, value: None } => {
                write!(f, "{of}: lost, and the work was stopped; another holder may have begun it")
            }
            Self::Lost { of, value: Some(_) } => write!(
                f,
                "{of}: lost before the work had ended; what was done late needs its fencing token"
            ),
            Self::Unconfirmed { error, .. } => write!(
                f,
                "the work is done, its release is unconfirmed and goes on in the background: \
                 {error}"
            ),
        }
    }
}

impl<T, E: Error> Error for WorkError<T, E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            // `Display` shows the message of `e` itself.
            Self::NotStarted(e) => e.source(),
            Self::Lost { .. } | Self::Unconfirmed { .. } => None,
        }
    }
}

impl Mutex {
    /// Acquires the lock, runs `work` while it is held, and releases it.
    ///
    /// If the lock is lost, the work is stopped: its future is dropped at its next await. The work
    /// gets a shared guard, for example for its [fencing token](LockGuard::fencing_token). The lock
    /// is released when the work has ended, even if a clone of this `Arc` still exists.
    ///
    /// ```
    /// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
    /// # use palisade::{MemoryNode, Redlock};
    /// let redlock = Redlock::builder().node(MemoryNode::new()).build()?;
    /// let mutex = redlock.mutex("invoice:42").build()?;
    /// let written = mutex
    ///     .run(|guard| async move { format!("under token {}", guard.fencing_token()) })
    ///     .await?;
    /// # assert!(written.starts_with("under token"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`WorkError::NotStarted`] with the error of [`acquire`](Self::acquire). [`WorkError::Lost`]
    /// if the lock was lost before the work had ended. [`WorkError::Unconfirmed`] if the lock was
    /// held until the end of the work, but too few nodes confirmed the release. If the work itself
    /// returns a `Result`, this method returns it inside its own `Ok`, so write `run(…).await??`.
    ///
    /// # Cancellation safety
    /// If dropped, the work is dropped at its current await, and the lock is released in the
    /// background. If dropped before the lock is acquired, the lock is not held, and the work does
    /// not start.
    pub async fn run<T, F, Fut>(&self, work: F) -> Result<T, WorkError<T>>
    where
        F: FnOnce(Arc<LockGuard>) -> Fut,
        Fut: Future<Output = T>,
    {
        run_under(self.acquire().await, work).await
    }
}

pub(super) async fn run_under<T, F, Fut>(
    acquired: Result<LockGuard, AcquireError>,
    work: F,
) -> Result<T, WorkError<T>>
where
    F: FnOnce(Arc<LockGuard>) -> Fut,
    Fut: Future<Output = T>,
{
    let guard = Arc::new(acquired.map_err(WorkError::NotStarted)?);
    while_held(&guard, work(Arc::clone(&guard)), pending()).await
}

pub(crate) async fn while_held<T, E>(
    guard: &LockGuard,
    work: impl Future<Output = T>,
    stop: impl Future<Output = ()>,
) -> Result<T, WorkError<T, E>> {
    // So that stopped work is dropped before the lock is released.
    let value = {
        let (work, stop) = (pin!(work), pin!(stop));
        tokio::select! {
            biased;
            () = guard.lost() => None,
            () = stop => None,
            value = work => Some(value),
        }
    };
    let released = guard.end().await;
    let of = guard.resource();
    match (value, released) {
        (Some(value), Ok(())) => Ok(value),
        (Some(value), Err(ReleaseError::Unconfirmed(error))) => {
            Err(WorkError::Unconfirmed { value, error })
        }
        (value, _) => Err(WorkError::Lost { of, value }),
    }
}
