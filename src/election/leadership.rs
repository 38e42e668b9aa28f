//! The `Leadership`: the value that this process has while it leads an election.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::Instrument as _;

use super::Election;
use super::error::ProclaimError;
use super::state::Course;
use super::value::{Metadata, check_value};
use crate::client::failover::Failover;
use crate::durability::Achieved;
use crate::error::{ExtendError, ReleaseError};
use crate::lock::{LockGuard, LostSignal};
use crate::name::LockKeys;
use crate::span::operation;
use crate::sync::SyncMutex;
use crate::time::Moment;
use crate::token::FencingToken;

/// A term of office: the leadership of an election, from the win until it is lost or resigned.
///
/// A leadership is valid until a deadline, like a lock guard. A background task extends the
/// deadline after each quarter of the ttl. The leadership ends at the latest at
/// [`valid_until`](Self::valid_until) by this machine's own clock. No other process can win before
/// that time. Run the leader's work in a `select!` with [`lost`](Self::lost), and send
/// [`term`](Self::term) with each write. A lost leadership never becomes valid again; to lead
/// again, campaign again.
///
/// Dropping a `Leadership` resigns in the background. [`resign`](Self::resign) also reports whether
/// the leadership was valid until the resignation.
#[must_use = "a dropped leadership resigns at once"]
pub struct Leadership {
    guard: LockGuard,
    metadata: SyncMutex<Metadata>,
    keys: LockKeys,
    course: Arc<Course>,
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("name", &self.name())
            .field("term", &self.term())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl Leadership {
    pub(super) fn new(guard: LockGuard, metadata: Metadata, of: &Election) -> Self {
        let (keys, course) = (of.keys.clone(), Arc::clone(&of.course));
        Self { guard, metadata: SyncMutex::new(metadata), keys, course }
    }

    /// Returns the election's name.
    pub fn name(&self) -> &str {
        self.guard.name()
    }

    /// Returns the term. It is larger than the term of every earlier leader of this election.
    pub fn term(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Returns the [`term`](Self::term), for code that also handles locks.
    pub fn fencing_token(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Returns the last value passed to [`proclaim`](Self::proclaim), or the first value. A
    /// majority of the nodes may not have confirmed it yet.
    pub fn value(&self) -> Arc<str> {
        Arc::clone(&self.metadata.lock().value)
    }

    /// Returns the time at which the validity of the leadership ends; a renewal extends it. Compare
    /// it with [`Redlock::now`](crate::Redlock::now).
    pub fn valid_until(&self) -> Moment {
        self.guard.valid_until()
    }

    /// Returns the end of the leadership's validity as an instant of tokio's clock, like
    /// [`LockGuard::deadline`](crate::LockGuard::deadline).
    pub fn deadline(&self) -> Instant {
        self.guard.deadline()
    }

    /// Returns the time until the validity of the leadership ends; zero after a loss of the
    /// leadership.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Returns the required durability level, and the number of replicas that had the last win,
    /// proclamation or renewal.
    pub fn durability(&self) -> Achieved {
        self.guard.durability()
    }

    /// Returns true if this process still leads, by its own clock, which also counts while the
    /// machine is suspended. Sends nothing. After the first `false`, every later result is `false`.
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// Resolves when the leadership is lost: at the deadline, or earlier if a majority of the nodes
    /// reports another leader.
    ///
    /// # Cancellation safety
    /// May be dropped and called again at any time.
    pub async fn lost(&self) {
        self.guard.lost().await;
    }

    /// Returns a signal that resolves at the same time as [`lost`](Self::lost). It is for tasks
    /// without access to the leadership.
    pub fn lost_signal(&self) -> LostSignal {
        self.guard.lost_signal()
    }

    pub(super) fn guard(&self) -> &LockGuard {
        &self.guard
    }

    pub(super) fn keys(&self) -> &LockKeys {
        &self.keys
    }

    pub(super) fn course(&self) -> &Course {
        &self.course
    }

    /// Returns the time in which no other process can lead: the rest of the validity, plus the
    /// [drain time](super::ElectionBuilder::drain). After a loss, the leader's unfinished work has
    /// to end within this time. The result is zero after a resignation, and after a majority of the
    /// nodes has reported another leader.
    pub fn drain_remaining(&self) -> Duration {
        let (lease, now) = (self.guard.lease(), self.guard.core().env.now());
        match lease.over_since() {
            Some(over) if !over.lost || over.at < lease.until() => Duration::ZERO,
            _ => (lease.until() + lease.drain).since(now),
        }
    }

    /// Resolves after a failover of a node, with the state of the leadership after that failover,
    /// like [`LockGuard::failover`].
    ///
    /// # Cancellation safety
    /// If the future is dropped, no failover is lost: the next call returns it.
    pub async fn failover(&self) -> Failover {
        self.guard.failover().await
    }

    /// Publishes another value in the same term, and renews the lease. After `Ok`, a majority of
    /// the nodes has the value, and every later [`leader`](super::Election::leader) returns this
    /// value or a newer one.
    ///
    /// # Errors
    /// [`ProclaimError::Lost`] if the leadership is over, [`ProclaimError::Unknown`] if too few
    /// nodes answered, [`ProclaimError::Config`] if the value is too long.
    ///
    /// # Cancellation safety
    /// If the future is dropped, readers may already see the value. The next renewal sends the
    /// value in any case.
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<(), ProclaimError> {
        let value = value.into();
        let of = || self.guard.resource();
        check_value(&value).map_err(|e| ProclaimError::Config(e.of(of())))?;
        if !self.guard.is_valid() {
            return Err(ProclaimError::Lost(of()));
        }
        {
            // Held until the value has its number and the lease has the metadata, so that renewals
            // never send values out of order.
            let mut metadata = self.metadata.lock();
            metadata.publish(&value);
            self.guard.lease().set_meta(metadata.encode());
        }
        match self.guard.extend().await {
            Ok(_) => Ok(()),
            Err(ExtendError::Lost(of)) => Err(ProclaimError::Lost(of)),
            Err(ExtendError::Unknown(e)) => Err(ProclaimError::Unknown(e)),
        }
    }

    /// Ends the term on every node. The nodes then wake the waiting candidates. The call returns as
    /// soon as a majority of the nodes has replied; the resignation at the other nodes continues in
    /// the background. `Ok` means that the leadership was valid until the resignation.
    ///
    /// # Errors
    /// The errors of [`LockGuard::release`]: the leadership was lost before, or too few nodes
    /// confirmed its end.
    ///
    /// # Cancellation safety
    /// If the future is dropped at any await, the resignation continues in the background.
    pub async fn resign(self) -> Result<(), ReleaseError> {
        let operation = operation!("resign", of = %self.guard.resource());
        operation.token(self.term());
        let resigned = self.guard.release().instrument(operation.span()).await;
        operation.over(match &resigned {
            Ok(()) => "resigned",
            Err(ReleaseError::Unconfirmed(_)) => "unconfirmed",
            Err(ReleaseError::Lost(_) | ReleaseError::TakenByOther(_)) => "lost",
        });
        resigned
    }
}
