//! The guard of a term.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::error::ProclaimError;
use super::value::{Words, check_value};
use crate::durability::Achieved;
use crate::error::{ExtendError, ReleaseError};
use crate::lock::{LockGuard, LostSignal};
use crate::receipt::Receipt;
use crate::time::Moment;
use crate::token::FencingToken;

/// A term of office.
///
/// A belief with a deadline, like every guard: the keeper renews it at a quarter of the ttl under
/// the exact owner and term, an error never prolongs it, and it ends at the latest at
/// [`valid_until`](Self::valid_until) by this machine's own clock, which is before anyone else can
/// win. Select what a leader does against [`lost`](Self::lost), and hand [`term`](Self::term) to
/// whatever it writes. A lost leadership never comes back: campaign again.
///
/// Dropping it resigns in the background; [`resign`](Self::resign) says whether it led until then.
#[must_use = "a dropped leadership resigns at once"]
pub struct Leadership {
    guard: LockGuard,
    words: Mutex<Words>,
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
    pub(super) fn new(guard: LockGuard, words: Words) -> Self {
        Self { guard, words: Mutex::new(words) }
    }

    /// The election's name.
    pub fn name(&self) -> &str {
        self.guard.name()
    }

    /// The term: larger than that of every earlier leader of this name.
    pub fn term(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// The term by its other name, for resources that know locks as well.
    pub fn fencing_token(&self) -> FencingToken {
        self.guard.fencing_token()
    }

    /// What was proclaimed last, also if [`proclaim`](Self::proclaim) has yet to learn whether a
    /// majority took it.
    pub fn value(&self) -> Arc<str> {
        Arc::clone(&self.words.lock().unwrap_or_else(PoisonError::into_inner).value)
    }

    /// When the belief ends unless it is renewed, on the clock of the handle's `Env`.
    pub fn valid_until(&self) -> Moment {
        self.guard.valid_until()
    }

    /// What is left of the validity; zero once lost.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// How durable the term and its words were when they were proclaimed or renewed last.
    pub fn durability(&self) -> Achieved {
        self.guard.durability()
    }

    /// Whether this process still leads, by a look at its own suspend-proof clock. Never turns true
    /// again once it was false.
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// Resolves when the leadership is lost: at the latest at the deadline, earlier if a majority
    /// says that somebody else leads.
    ///
    /// # Cancellation safety
    /// May be dropped and asked again at will.
    pub async fn lost(&self) {
        self.guard.lost().await;
    }

    /// As [`lost`](Self::lost), for tasks that do not have the leadership.
    pub fn lost_signal(&self) -> LostSignal {
        self.guard.lost_signal()
    }

    pub(super) fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// As [`LockGuard::receipts`].
    pub fn receipts(&self) -> Vec<Receipt> {
        self.guard.receipts()
    }

    /// As [`LockGuard::failover`]: what became of the leadership where a node changed servers.
    ///
    /// # Cancellation safety
    /// Dropped, it takes no verdict; the next call tells it.
    pub async fn failover(&self) -> Option<Receipt> {
        self.guard.failover().await
    }

    /// Says something else, in the same term: a majority of the nodes has the value when it
    /// returns, and every later [`leader`](super::Election::leader) shows it or a later one. Also
    /// renews.
    ///
    /// # Errors
    /// [`ProclaimError::Lost`] if the leadership is over, [`ProclaimError::Unknown`] if too few
    /// nodes answered, [`ProclaimError::Config`] if the value is too long.
    ///
    /// # Cancellation safety
    /// Dropped, the value may be seen now, and is carried by the next renewal all the same.
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<(), ProclaimError> {
        let value = value.into();
        let of = || self.guard.resource();
        check_value(&value).map_err(|e| ProclaimError::Config(e.of(of())))?;
        if !self.guard.is_valid() {
            return Err(ProclaimError::Lost(of()));
        }
        {
            // Numbered and handed to the lease in one step: renewals never carry them out of order.
            let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
            words.say(&value);
            self.guard.lease().set_meta(words.encode());
        }
        match self.guard.extend().await {
            Ok(_) => Ok(()),
            Err(ExtendError::Lost(of)) => Err(ProclaimError::Lost(of)),
            Err(ExtendError::Unknown(e)) => Err(ProclaimError::Unknown(e)),
        }
    }

    /// Ends the term on every node that may know of it; the next candidate is woken by the nodes.
    /// Decided at the majority, finished in the background. `Ok` says that it led until then.
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    ///
    /// # Cancellation safety
    /// Dropped at any await, the resignation goes on in the background.
    pub async fn resign(self) -> Result<(), ReleaseError> {
        self.guard.release().await
    }
}
