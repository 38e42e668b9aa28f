//! Attempts to acquire a lock, for the retry loops of `acquire`, of a take-over and of a campaign.

use std::sync::Arc;
use std::time::Duration;

use crate::client::Core;
use crate::client::acquire::{AcquireRequest, Acquired};
use crate::client::retry::{Attempt, AttemptTerms, GivenUp, Prospect};
use crate::durability::Durability;
use crate::error::{AcquireError, Advice, NoQuorum, Resource};
use crate::name::LockKeys;
use crate::quorum::acquire::Loss;
use crate::span::Call;
use crate::time::Moment;

/// Longest wait of a call without `acquire_timeout`.
const WAIT: Duration = Duration::from_secs(30);
/// Time for which such a call goes on after the end of a quarantine: enough for two attempts and
/// the rounding of clocks.
const AFTER_QUARANTINE: Duration = Duration::from_secs(1);

/// The attempts of one call to acquire a lock.
pub(crate) struct LockAttempt<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) keys: &'a LockKeys,
    pub(crate) ttl: Duration,
    pub(crate) level: Durability,
    /// True if the deadline moves to the end of a quarantine that prevents a majority.
    pub(crate) waits_for_quarantine: bool,
    /// Span and metrics of the calling operation.
    pub(crate) operation: &'a Call,
}

impl<'a> LockAttempt<'a> {
    /// Returns the request of one attempt.
    pub(super) fn ask(&self, terms: AttemptTerms) -> AcquireRequest<'a> {
        let AttemptTerms { if_held, left: within } = terms;
        AcquireRequest { if_held, within, ..AcquireRequest::new(self.keys, self.ttl, self.level) }
    }
}

impl Attempt for LockAttempt<'_> {
    type Granted = Acquired;
    type Refused = Loss;

    async fn make(&mut self, terms: AttemptTerms) -> Result<Acquired, Loss> {
        self.operation.attempt();
        self.core.attempt(self.ask(terms)).await
    }

    fn prospect(&mut self, loss: &Loss, deadline: &mut Option<Moment>) -> Option<Prospect> {
        if let Loss::NoQuorum(outcomes) = loss {
            let why = self.core.no_quorum(outcomes.clone());
            if is_hopeless(&why) {
                return None;
            }
            if self.waits_for_quarantine
                && let Some(left) = why.quarantine()
            {
                let end = self.core.env.now() + left + AFTER_QUARANTINE;
                *deadline = deadline.map(|deadline| deadline.max(end));
            }
        }
        Some(Prospect::after(loss))
    }
}

/// Returns the time after which no attempt begins.
pub(crate) fn acquire_deadline(core: &Core, timeout: Option<Duration>) -> Moment {
    core.env.now() + timeout.unwrap_or(WAIT)
}

/// Returns true if only a person can remove the cause, for example a wrong password.
pub(crate) fn is_hopeless(why: &NoQuorum) -> bool {
    matches!(why.advice(), Advice::Misconfigured | Advice::Rebuild)
}

/// Returns the error of a call that made no further attempt.
pub(crate) fn not_acquired(core: &Core, of: Resource, given_up: GivenUp<Loss>) -> AcquireError {
    let GivenUp { refused, waited, closed } = given_up;
    match refused {
        _ if closed => AcquireError::Closed(of),
        Loss::Taken(taken) => AcquireError::TimedOut { of, waited, taken },
        Loss::NoQuorum(outcomes) => {
            let why = core.no_quorum(outcomes).of(of);
            AcquireError::NoQuorum(NoQuorum { waited: Some(waited), ..why })
        }
    }
}
