//! The handle of a leadership that is held.

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

/// A term of office.
///
/// Like every guard it is a belief with a deadline: the renewer renews it at a quarter of the ttl
/// under the exact owner and term, an error never extends it, and it ends at the latest at
/// [`valid_until`](Self::valid_until) by this machine's own clock, which is before any other
/// process can win. Select a leader's work against [`lost`](Self::lost), and send
/// [`term`](Self::term) with each write. A lost leadership never becomes valid again: campaign
/// again.
///
/// Dropping it resigns in the background; [`resign`](Self::resign) also reports whether the
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

    /// Returns the term: larger than that of every earlier leader of this name.
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

    /// Returns the end of the validity as [`LockGuard::deadline`](crate::LockGuard::deadline) does.
    pub fn deadline(&self) -> Instant {
        self.guard.deadline()
    }

    /// Returns the time until the validity ends; zero once lost.
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

    /// Resolves when the leadership is lost: at the latest at the deadline, earlier if a majority
    /// of the nodes reports another leader.
    ///
    /// # Cancellation safety
    /// May be dropped and called again at any time.
    pub async fn lost(&self) {
        self.guard.lost().await;
    }

    /// Returns a signal that resolves as [`lost`](Self::lost) does, for tasks that do not have the
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

    /// Returns the time for which no other process leads, whatever happens to this one: what is
    /// left of the validity, and the [drain time](super::ElectionBuilder::drain) after it. After a
    /// loss it is the time in which the leader's unfinished work has to end. Zero after a
    /// resignation, and once a majority of the nodes has reported another leader.
    pub fn drain_remaining(&self) -> Duration {
        let (lease, now) = (self.guard.lease(), self.guard.core().env.now());
        match lease.over_since() {
            Some(over) if !over.lost || over.at < lease.until() => Duration::ZERO,
            _ => (lease.until() + lease.drain).since(now),
        }
    }

    /// Resolves when a node failed over, with the state of the leadership after the failover; as
    /// [`LockGuard::failover`].
    ///
    /// # Cancellation safety
    /// If dropped, nothing is consumed; the next call returns it.
    pub async fn failover(&self) -> Failover {
        self.guard.failover().await
    }

    /// Publishes another value in the same term. When this returns a majority of the nodes has the
    /// value, and every later [`leader`](super::Election::leader) returns it or a later one. Also
    /// renews.
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
            // The value is numbered and passed to the lease under one lock, so renewals never send
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

    /// Ends the term on every node that may have it, and the nodes wake the next candidate. The
    /// result is that of the majority; the other nodes are released in the background. `Ok` means
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
