//! The result of a release (renewal 5, 6). The caller sends the release, with the owner token, to
//! each node that may have the lock, and their answers decide.

use crate::error::{NodeError, NodeOutcome};
use crate::op::Reply;
use crate::quorum::majority::majority;
use crate::quorum::{Answer, Machine, Progress};
use crate::time::Moment;

/// Answer of a majority of the nodes to a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A majority still held the lock for our owner token, and deleted it.
    Released,
    /// The lock was not on a majority any more, and no other owner has it on a majority.
    Gone,
    /// A majority answered that another owner has the lock.
    Other,
    /// Too few nodes answered. Contains the answer of each node.
    Unknown(Vec<NodeOutcome>),
}

/// The state machine that decides one release.
#[derive(Clone, Debug)]
pub struct Release {
    /// Moment until which answers are awaited.
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
    /// Makes the machine of a release over `n` nodes, whose answers are awaited until `by`.
    pub fn new(n: usize, by: Moment) -> Self {
        Self { by, votes: vec![Vote::Silent; n] }
    }

    /// Records that the node certainly never had the lock, and so is not sent the release.
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

    /// Decides by the answers so far. If a majority answers "deleted", the lock was held until
    /// then. A node of the minority that never granted the lock answers "absent", which must not
    /// hide this.
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
        // A node that is silent or failed may have held the lock, too, so it counts as one that
        // did.
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
