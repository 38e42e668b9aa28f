//! What was planned for an op, on whatever it is, and what the answer to it means.

use super::beliefs::Beliefs;
use super::lock::Shown;
use super::write::{Answer, Write};
use super::{locks, records};
use crate::error::NodeError;
use crate::op::{Op, Reply};
use crate::rules::header::Header;

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a batch has few of them")]
pub(crate) enum Planned {
    Record(records::Planned),
    Lock(locks::Planned),
    #[cfg(test)]
    Write(Write),
}

#[derive(Debug)]
pub(crate) enum Judged {
    Reply(Result<Reply, NodeError>),
    /// The server's memory is full.
    Full,
    /// The record or lock is not as it was believed to be: another plan is needed.
    Again,
}

impl Planned {
    pub(crate) fn write(&self) -> &Write {
        match self {
            Self::Record(planned) => &planned.write,
            Self::Lock(planned) => &planned.write,
            #[cfg(test)]
            Self::Write(write) => write,
        }
    }

    /// Number of neighbours that this writes.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Lock(planned) => planned.count,
            Self::Record(_) => 1,
            #[cfg(test)]
            Self::Write(_) => 1,
        }
    }

    /// If the answer came to an op `behind` one of its key that has to be planned again, so has it.
    pub(crate) fn judge(
        &self,
        (h, op): (&Header, &Op),
        (answer, behind): (Answer, bool),
        beliefs: &mut Beliefs,
    ) -> Judged {
        let waits =
            behind && matches!(answer, Answer::Not(_) | Answer::Shown(_) | Answer::Refused(_));
        match self {
            _ if waits => Judged::Again,
            Self::Record(planned) => {
                let (judged, shown) = records::judge(h, planned, answer);
                if let Some(key) = op.record_key() {
                    beliefs.learn(key, shown, matches!(judged, Judged::Again));
                }
                judged
            }
            Self::Lock(planned) => learned(op, locks::judge(h, op, planned, answer), beliefs),
            #[cfg(test)]
            Self::Write(_) => Judged::Again,
        }
    }
}

/// An acquire that needed no plan.
pub(crate) fn judge_one(h: &Header, op: &Op, answer: Answer, beliefs: &mut Beliefs) -> Judged {
    learned(op, locks::judge_one(h, op, answer), beliefs)
}

fn learned(op: &Op, judged: (Judged, Option<Vec<Shown>>), beliefs: &mut Beliefs) -> Judged {
    if let (Some(keys), Some(shown)) = (op.lock_keys(), judged.1) {
        beliefs.learn_lock(keys, shown);
    }
    judged.0
}
