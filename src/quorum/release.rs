//! Result of a release (renewal 5, 6): the release goes by token to all nodes; their answers
//! decide.

use crate::error::{NodeError, NodeOutcome};
use crate::op::Reply;
use crate::quorum::majority::majority;
use crate::quorum::{Answer, Machine, Progress};
use crate::time::Moment;

/// Answer of a majority to a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A majority still held our token and deleted it.
    Released,
    /// The lock does not exist on a majority any more.
    Gone,
    /// Another owner has the lock on a majority.
    Other,
    /// Too few answers.
    Unknown(Vec<NodeOutcome>),
}

/// The machine of one release.
#[derive(Clone, Debug)]
pub struct Release {
    /// End of the wait for answers.
    by: Moment,
    votes: Vec<Vote>,
}

#[derive(Clone, Debug)]
enum Vote {
    Silent,
    Deleted,
    Absent,
    Other,
    Failed(NodeError),
}

impl Release {
    /// Makes the machine of a release over `n` nodes; answers are awaited until `by`.
    pub fn new(n: usize, by: Moment) -> Self {
        Self { by, votes: vec![Vote::Silent; n] }
    }

    /// Records that the node certainly never had the lock, and is not asked.
    pub fn never_granted(&mut self, node: usize) {
        self.votes[node] = Vote::Absent;
    }

    fn unknown(&self) -> Found {
        let outcome = |v: &Vote| match v {
            Vote::Silent => NodeOutcome::no_answer(),
            Vote::Deleted => NodeOutcome::Granted,
            Vote::Absent | Vote::Other => NodeOutcome::Refused,
            Vote::Failed(e) => NodeOutcome::Failed(e.clone()),
        };
        Found::Unknown(self.votes.iter().map(outcome).collect())
    }
}

impl Machine for Release {
    type Decision = Found;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Progress<Found> {
        self.votes[node] = match reply {
            Ok(Reply::Done) => Vote::Deleted,
            Ok(Reply::Absent) => Vote::Absent,
            Ok(_) => Vote::Other,
            Err(e) => Vote::Failed(e.clone()),
        };
        self.on_time(now)
    }

    /// Decides by the answers so far. A majority of "deleted" proves the hold; a minority that
    /// never granted answers "absent", which must not hide that proof.
    fn on_time(&mut self, now: Moment) -> Progress<Found> {
        let n = self.votes.len();
        let need = majority(n);
        let (mut deleted, mut absent, mut other, mut silent) = (0, 0, 0, 0);
        for vote in &self.votes {
            match vote {
                Vote::Deleted => deleted += 1,
                Vote::Absent => absent += 1,
                Vote::Other => other += 1,
                Vote::Silent => silent += 1,
                Vote::Failed(_) => {}
            }
        }
        // Nodes that are silent or failed may complete a majority that held the lock, or may answer
        // "other".
        let held = n - absent - other >= need;
        Progress::Decided(if deleted >= need {
            Found::Released
        } else if other >= need {
            Found::Other
        } else if !held && other + silent < need {
            Found::Gone
        } else if silent == 0 || now >= self.by {
            self.unknown()
        } else {
            return Progress::Wait(self.by);
        })
    }
}
