//! The result of a release (renewal 5, 6), by the answers of the nodes that may have the lock.

use crate::error::NodeOutcome;
use crate::op::Reply;
use crate::quorum::answers::Answers;
use crate::quorum::{Answer, Machine, Progress};
use crate::time::Moment;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A majority still had the lock of this owner token, and deleted it.
    Released,
    Gone,
    Other,
    Unknown(Vec<NodeOutcome>),
}

#[derive(Clone, Debug)]
pub struct Release {
    by: Moment,
    answers: Answers,
}

impl Release {
    pub fn new(n: usize, by: Moment) -> Self {
        Self { by, answers: Answers::new(n) }
    }

    pub fn never_granted(&mut self, node: usize) {
        self.answers.put(node, &Ok(Reply::Absent));
    }
}

impl Machine for Release {
    type Decision = Found;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Progress<Found> {
        self.answers.put(node, reply);
        self.on_time(now)
    }

    /// A minority that answers "absent" may never have granted.
    fn on_time(&mut self, now: Moment) -> Progress<Found> {
        let (need, silent) = (self.answers.need(), self.answers.silent());
        let deleted = self.answers.count(|r| *r == Reply::Done);
        let absent = self.answers.count(|r| *r == Reply::Absent);
        let other = self.answers.replies().count() - deleted - absent;
        let held = self.answers.n() - absent - other >= need;
        Progress::Decided(if deleted >= need {
            Found::Released
        } else if other >= need {
            Found::Other
        } else if !held && other + silent < need {
            Found::Gone
        } else if silent == 0 || now >= self.by {
            Found::Unknown(self.answers.outcomes(&NodeOutcome::no_answer()))
        } else {
            return Progress::Wait(self.by);
        })
    }
}
