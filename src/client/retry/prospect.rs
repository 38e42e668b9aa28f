//! The chance that a further attempt to get a lock or a claim succeeds after a refused one.

use std::time::Duration;

use crate::client::Core;
use crate::error::{NodeFault, NodeOutcome, Reach, Taken};
use crate::quorum::acquire::Loss;
use crate::quorum::majority;
use crate::time::Moment;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prospect {
    /// At most this long, unless the owner renews.
    Held(Option<Duration>),
    Collided,
    /// Zero: not known. No hint will say so.
    Settling(Duration),
    /// The next attempt is made with the ticket at once (fair 2).
    Ticketed,
    NoQuorum {
        crowded: bool,
    },
    /// Other calls of the handle may have more success.
    NotDurable,
}

impl Prospect {
    pub(crate) fn after(loss: &Loss, is_refused: bool) -> Self {
        match loss {
            Loss::Taken(taken) => Self::of_taken(taken),
            Loss::NoQuorum(outcomes) if is_refused && outcomes.iter().any(is_not_durable) => {
                Self::NotDurable
            }
            Loss::NoQuorum(outcomes) => Self::NoQuorum { crowded: outcomes.iter().any(is_crowded) },
        }
    }

    pub(crate) fn of_taken(taken: &Taken) -> Self {
        match taken.retry_after {
            Some(Duration::ZERO) => Self::Collided,
            left => Self::Held(left),
        }
    }

    pub(super) fn is_answer(&self) -> bool {
        !matches!(self, Self::NoQuorum { .. } | Self::NotDurable)
    }

    pub(super) fn expires(&self, at: Moment) -> Moment {
        match self {
            Self::Held(Some(left)) => at + *left,
            _ => at,
        }
    }
}

pub(crate) fn is_crowded(outcome: &NodeOutcome) -> bool {
    matches!(outcome, NodeOutcome::Failed(e)
        if e.reach() == Reach::NotAsked && e.fault() != NodeFault::Credentials)
}

fn is_not_durable(outcome: &NodeOutcome) -> bool {
    matches!(outcome, NodeOutcome::Failed(e) if e.fault() == NodeFault::NotDurable)
}

impl Core {
    /// With more time, those that granted and those that were slow had been too few (renewal 12,
    /// fair 4).
    pub(crate) fn is_refused<'o>(
        &self,
        outcomes: impl IntoIterator<Item = &'o NodeOutcome>,
    ) -> bool {
        let now = self.env.now();
        let (mut may_grant, mut refusals) = (0, 0);
        for (node, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                NodeOutcome::Granted | NodeOutcome::Silent => may_grant += 1,
                NodeOutcome::Failed(e) => match e.reach() {
                    Reach::NotAsked => may_grant += 1,
                    Reach::Answered | Reach::Refused => refusals += 1,
                    Reach::Unreachable => {
                        let is_cut =
                            matches!(e.fault(), NodeFault::Timeout | NodeFault::Disconnected);
                        let deadline = self.config.node_deadline;
                        let is_slow = is_cut && self.queues[node].load().answers(now, deadline);
                        may_grant += usize::from(is_slow);
                    }
                },
                _ => refusals += 1,
            }
        }
        refusals > 0 && may_grant < majority(self.n())
    }
}
