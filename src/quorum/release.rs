//! What a release found (renewal 5, 6): by token on all nodes, outcome from what they say.

use crate::error::{NodeError, NodeOutcome};
use crate::op::Reply;
use crate::quorum::majority::majority;

/// What a majority said to a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Not decided yet.
    Pending,
    /// A majority still held our token and deleted it.
    Released,
    /// Gone on a majority.
    Gone,
    /// Somebody else's on a majority.
    Other,
    /// Too few answers.
    Unknown(Vec<NodeOutcome>),
}

/// The machine of one release.
#[derive(Clone, Debug)]
pub struct Release {
    votes: Vec<Vote>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Vote {
    Silent,
    Deleted,
    Absent,
    Other,
    Failed(NodeError),
}

impl Release {
    /// A release over `n` nodes.
    pub fn new(n: usize) -> Self {
        Self { votes: vec![Vote::Silent; n] }
    }

    /// A node answered, or failed to.
    pub fn on_reply(&mut self, node: usize, reply: &Result<Reply, NodeError>) -> Found {
        self.votes[node] = match reply {
            Ok(Reply::Done) => Vote::Deleted,
            Ok(Reply::Absent) => Vote::Absent,
            Ok(_) => Vote::Other,
            Err(e) => Vote::Failed(e.clone()),
        };
        self.found()
    }

    /// A node that certainly never had the lock: nothing to ask.
    pub fn never_granted(&mut self, node: usize) -> Found {
        self.votes[node] = Vote::Absent;
        self.found()
    }

    /// What the answers so far mean. A majority of "deleted" proves the hold; a minority that never
    /// granted says "absent" and must not hide that.
    pub fn found(&self) -> Found {
        let count = |v: &Vote| self.votes.iter().filter(|x| *x == v).count();
        let n = self.votes.len();
        let need = majority(n);
        let (deleted, absent, other) =
            (count(&Vote::Deleted), count(&Vote::Absent), count(&Vote::Other));
        let silent = count(&Vote::Silent);
        if deleted >= need {
            Found::Released
        } else if n - absent - other >= need {
            // The silent and the failed may still have been a majority.
            if silent > 0 { Found::Pending } else { self.unknown() }
        } else if other >= need {
            Found::Other
        } else if other + silent >= need {
            Found::Pending
        } else {
            Found::Gone
        }
    }

    /// Gives up on the silent ones.
    pub fn unknown(&self) -> Found {
        let outcome = |v: &Vote| match v {
            Vote::Silent => NodeOutcome::no_answer(),
            Vote::Deleted => NodeOutcome::Granted,
            Vote::Absent | Vote::Other => NodeOutcome::Refused,
            Vote::Failed(e) => NodeOutcome::Failed(e.clone()),
        };
        Found::Unknown(self.votes.iter().map(outcome).collect())
    }
}
