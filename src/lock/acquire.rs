//! One attempt to acquire a lock, as the retry loops of `acquire`, of a takeover and of an election
//! campaign make it.

use std::sync::Arc;
use std::time::Duration;

use crate::client::Core;
use crate::client::acquire::{AcquireRequest, Acquired};
use crate::client::retry::{Attempt, AttemptTerms, GivenUp, Prospect};
use crate::durability::Durability;
use crate::error::{AcquireError, Advice, NoQuorum, Resource, Taken};
use crate::lock::fair::Fair;
use crate::name::LockKeys;
use crate::op::{IfHeld, LockMode};
use crate::quorum::acquire::Loss;
use crate::span::Call;
use crate::time::Moment;

/// Longest time for which `acquire` waits for a lock if the caller set no `acquire_timeout`.
const WAIT: Duration = Duration::from_secs(30);
/// Time for which a call without `acquire_timeout` goes on after the end of a quarantine for which
/// it waited. It is enough for two attempts and for the rounding of clocks.
pub(super) const AFTER_QUARANTINE: Duration = Duration::from_secs(1);

/// Settings of all attempts that one call makes to acquire a lock.
pub(crate) struct LockAttempt<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) mode: LockMode,
    pub(crate) keys: &'a LockKeys,
    pub(crate) ttl: Duration,
    pub(crate) level: Durability,
    /// True if the call waits for the end of a quarantine that keeps a majority of the nodes from
    /// granting, even if that end is after the deadline of the call.
    pub(crate) waits_for_quarantine: bool,
    /// Tracing span of the operation that makes the attempts. The span counts the attempts.
    pub(crate) operation: &'a Call,
    /// State of a fair call; `None` for all others.
    pub(crate) fair: Option<Fair<'a>>,
}

impl<'a> LockAttempt<'a> {
    /// Returns the request that one attempt sends to the nodes.
    pub(super) fn ask(&self, terms: AttemptTerms) -> AcquireRequest<'a> {
        let AttemptTerms { mut if_held, left: within } = terms;
        if let (Some(Fair { ticket, .. }), Some(IfHeld::Queue(place))) = (&self.fair, if_held) {
            if_held = Some(IfHeld::Fair { place, ticket: *ticket });
        }
        let ask = AcquireRequest::new(self.keys, self.ttl, self.level);
        AcquireRequest { mode: self.mode, if_held, within, ..ask }
    }
}

impl Attempt for LockAttempt<'_> {
    type Granted = Acquired;
    type Refused = Loss;

    async fn make(&mut self, terms: AttemptTerms) -> Result<Acquired, Loss> {
        self.operation.attempt();
        let won = self.core.attempt(self.ask(terms)).await;
        if let Some(fair) = &self.fair {
            fair.attempted(&won, self.core.env.now());
        }
        won
    }

    fn prospect(&mut self, loss: &Loss, deadline: &mut Option<Moment>) -> Option<Prospect> {
        if let Loss::NoQuorum(outcomes) = loss {
            let why = self.core.no_quorum(outcomes.clone());
            if is_hopeless(&why) {
                return None;
            }
            if let Some(fair) = &mut self.fair {
                fair.unanswered(self.core.env.now());
            }
            if self.waits_for_quarantine
                && let Some(left) = why.quarantine()
            {
                let end = self.core.env.now() + left + AFTER_QUARANTINE;
                *deadline = deadline.map(|deadline| deadline.max(end));
            }
        }
        if let (Some(fair), Loss::Taken(Taken { queued: Some(queued), .. })) =
            (&mut self.fair, loss)
            && fair.refused(*queued, self.core.env.now())
        {
            return Some(Prospect::Ticketed);
        }
        Some(Prospect::after(loss))
    }
}

/// Returns the time after which a call that begins now makes no further attempt. `timeout` is its
/// `acquire_timeout`, if it was set.
pub(crate) fn acquire_deadline(core: &Core, timeout: Option<Duration>) -> Moment {
    core.env.now() + timeout.unwrap_or(WAIT)
}

/// Returns true if a retry cannot help, because a person has to remove the cause, for example a
/// wrong password.
pub(crate) fn is_hopeless(why: &NoQuorum) -> bool {
    matches!(why.advice(), Advice::Misconfigured | Advice::Rebuild)
}

/// Returns the error of a call that gave up, made from the refusal of its last attempt.
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
