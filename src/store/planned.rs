//! What was planned for an op, on whatever it is, and what the answer to it means.

use super::beliefs::Beliefs;
use super::write::{Answer, Write};
use super::{locks, records};
use crate::error::NodeError;
use crate::op::{Op, Reply};
use crate::rules::header::Header;

#[derive(Clone, Debug)]
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

/// The op is executed as a conditional write.
pub(crate) fn is_written(op: &Op) -> bool {
    op.record_key().is_some() || locks::are_written(op)
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

    /// If the answer came to an op `behind` one of its key that has to be planned again, so has it.
    pub(crate) fn judge(
        &self,
        (h, op): (&Header, &Op),
        (answer, behind): (Answer, bool),
        beliefs: &mut Beliefs,
    ) -> Judged {
        let waits = behind && matches!(answer, Answer::Not(_) | Answer::Shown(_));
        match self {
            _ if waits => Judged::Again,
            Self::Record(planned) => {
                let (judged, shown) = records::judge(h, planned, answer);
                if let Some(key) = op.record_key() {
                    beliefs.learn(key, shown, matches!(judged, Judged::Again));
                }
                judged
            }
            Self::Lock(planned) => {
                let (judged, shown) = locks::judge(h, planned, answer);
                if let (Some(keys), Some(shown)) = (op.lock_keys(), shown) {
                    beliefs.learn_lock(keys, shown);
                }
                judged
            }
            #[cfg(test)]
            Self::Write(_) => Judged::Again,
        }
    }
}
