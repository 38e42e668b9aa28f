//! The handle of a leadership that this process holds.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
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
use crate::time::Moment;
use crate::token::FencingToken;

/// A term of office: the leadership of an election, from the win until it is lost or resigned.
///
/// Like every guard it is valid only until a deadline. The renewer extends it at a quarter of the
/// ttl, under the exact owner and term, and a renewal that fails extends nothing. It ends at the
/// latest at [`valid_until`](Self::valid_until) by this machine's own clock, which is before any
/// other process can win. Run the leader's work in a `select!` with [`lost`](Self::lost), and send
/// [`term`](Self::term) with each write. A lost leadership never becomes valid again, so campaign
/// again.
///
/// Dropping it resigns in the background. [`resign`](Self::resign) also reports whether the
/// leadership was held until then.
#[must_use = "a dropped leadership resigns at once"]
pub struct Leadership {
    guard: LockGuard,
    metadata: Mutex<Metadata>,
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
        Self { guard, metadata: Mutex::new(metadata), keys, course }
    }

    /// Returns the election's name.
    pub fn name(&self) -> &str {
        self.guard.name()
    }

    /// Returns the term, which is larger than that of every earlier leader of this name.
    pub fn term(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Returns the [`term`](Self::term), for code that also handles locks.
    pub fn fencing_token(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// Returns the value proclaimed last, even if it is not yet known whether a majority has it.
    pub fn value(&self) -> Arc<str> {
        Arc::clone(&self.metadata.lock().unwrap_or_else(PoisonError::into_inner).value)
    }

    /// Returns the time at which the validity ends unless it is renewed; compare it with
    /// [`Redlock::now`](crate::Redlock::now).
    pub fn valid_until(&self) -> Moment {
        self.guard.valid_until()
    }

    /// Returns the end of the validity as an instant of tokio's clock, as
    /// [`LockGuard::deadline`](crate::LockGuard::deadline) does.
    pub fn deadline(&self) -> Instant {
        self.guard.deadline()
    }

    /// Returns the time until the validity ends; zero once the leadership is lost.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Returns how durable the term and its value were when they were last proclaimed or renewed.
    pub fn durability(&self) -> Achieved {
        self.guard.durability()
    }

    /// Returns true if this process still leads, by its own suspend-proof clock; sends nothing.
    /// Once it has returned false it never returns true again.
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// Resolves when the leadership is lost. This is at its deadline, or earlier if a majority of
    /// the nodes reports another leader.
    ///
    /// # Cancellation safety
    /// May be dropped and called again at any time.
    pub async fn lost(&self) {
        self.guard.lost().await;
    }

    /// Returns a signal that resolves as [`lost`](Self::lost) does, for tasks without access to the
    /// leadership.
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

    /// Returns for how long no other process leads, whatever happens to this one: the rest of the
    /// validity, plus the [drain time](super::ElectionBuilder::drain) after it. After a loss it is
    /// the time in which the leader's unfinished work has to end. It is zero after a resignation,
    /// and once a majority of the nodes has reported another leader.
    pub fn drain_remaining(&self) -> Duration {
        let (lease, now) = (self.guard.lease(), self.guard.core().env.now());
        match lease.over_since() {
            Some(over) if !over.lost || over.at < lease.until() => Duration::ZERO,
            _ => (lease.until() + lease.drain).since(now),
        }
    }

    /// Resolves when a node failed over, with the state of the leadership after the failover, as
    /// [`LockGuard::failover`] does.
    ///
    /// # Cancellation safety
    /// If dropped, nothing is consumed: the next call returns the failover.
    pub async fn failover(&self) -> Failover {
        self.guard.failover().await
    }

    /// Publishes another value in the same term, and renews the lease. When this returns `Ok`, a
    /// majority of the nodes has the value, and every later [`leader`](super::Election::leader)
    /// returns it or a later one.
    ///
    /// # Errors
    /// [`ProclaimError::Lost`] if the leadership is over, [`ProclaimError::Unknown`] if too few
    /// nodes answered, [`ProclaimError::Config`] if the value is too long.
    ///
    /// # Cancellation safety
    /// If dropped, readers may already get the value, and the next renewal sends it in any case.
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<(), ProclaimError> {
        let value = value.into();
        let of = || self.guard.resource();
        check_value(&value).map_err(|e| ProclaimError::Config(e.of(of())))?;
        if !self.guard.is_valid() {
            return Err(ProclaimError::Lost(of()));
        }
        {
            // The value is numbered and passed to the lease under one mutex, so renewals never send
            // values out of order.
            let mut metadata = self.metadata.lock().unwrap_or_else(PoisonError::into_inner);
            metadata.publish(&value);
            self.guard.lease().set_meta(metadata.encode());
        }
        match self.guard.extend().await {
            Ok(_) => Ok(()),
            Err(ExtendError::Lost(of)) => Err(ProclaimError::Lost(of)),
            Err(ExtendError::Unknown(e)) => Err(ProclaimError::Unknown(e)),
        }
    }

    /// Ends the term on every node that may have it. The nodes then wake the waiting candidates.
    /// The result is that of a majority; the other nodes are released in the background. `Ok` means
    /// that the leadership was held until then.
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    ///
    /// # Cancellation safety
    /// If dropped at any await, the resignation goes on in the background.
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
