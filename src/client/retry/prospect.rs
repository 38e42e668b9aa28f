//! The chance that a further attempt to get a lock or a claim succeeds after a refused one.

use std::time::Duration;

use crate::error::{NodeFault, NodeOutcome, Reach, Taken};
use crate::quorum::acquire::Loss;
use crate::quorum::majority;
use crate::time::Moment;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prospect {
    /// For at most this time unless the owner renews; `None`: no end is known.
    Held(Option<Duration>),
    /// No owner has a majority. All give back what they were granted.
    Collided,
    /// Expected to be free or decided within this time (zero: not known). No hint will say so.
    Settling(Duration),
    /// The next attempt is made with the ticket at once (fair 2).
    Ticketed,
    NoQuorum {
        crowded: bool,
    },
    /// Granted without the call's durability, and the others were too few. Other calls of the
    /// handle may have more success.
    NotDurable,
}

impl Prospect {
    pub(crate) fn after(loss: &Loss) -> Self {
        match loss {
            Loss::Taken(taken) => Self::of_taken(taken),
            Loss::NoQuorum(outcomes) if cannot_be_durable(outcomes) => Self::NotDurable,
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
    matches!(outcome, NodeOutcome::Failed(e) if e.reach() == Reach::NotAsked)
}

fn cannot_be_durable(outcomes: &[NodeOutcome]) -> bool {
    let fault = |outcome: &NodeOutcome| match outcome {
        NodeOutcome::Failed(e) => Some(e.fault()),
        _ => None,
    };
    let fails = outcomes.iter().filter(|outcome| fault(outcome) == Some(NodeFault::NotDurable));
    fails.count() + majority(outcomes.len()) > outcomes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::NodeError;

    #[test]
    fn a_node_without_the_durability_decides_only_with_others() {
        let fails = |fault| NodeOutcome::Failed(NodeError::maybe_executed(fault, "x"));
        let bad = || fails(NodeFault::NotDurable);
        let down = || fails(NodeFault::Disconnected);
        assert!(!cannot_be_durable(&[bad(), down(), NodeOutcome::Granted]));
        assert!(cannot_be_durable(&[bad(), bad(), NodeOutcome::Granted]));
        assert!(cannot_be_durable(&[bad()]));
    }
}
