//! One attempt to extend (renewal 1).
//!
//! Counts from its own send; needs a majority before the old validity ends *and* inside the new
//! one; revives nothing; releases nothing.

use crate::error::NodeOutcome;
use crate::op::Reply;
use crate::quorum::majority::{VoteCount, VoteResult};
use crate::quorum::{Answer, Machine, Progress};
use crate::time::Moment;

/// What an extension comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Held until this new deadline.
    Until(Moment),
    /// A majority belongs to somebody else: certainly lost.
    Lost,
    /// Too few answers; the old deadline holds.
    Unknown(Vec<NodeOutcome>),
}

/// The machine of one extension.
#[derive(Clone, Debug)]
pub struct Extend {
    /// End of the current belief: an answer after it counts for nothing (invariant 3).
    old: Moment,
    /// End of the new belief.
    new: Moment,
    /// When stragglers are given up.
    deadline: Moment,
    votes: Vec<NodeOutcome>,
}

impl Extend {
    /// An extension over `n` nodes of a hold that is valid until `old`, to `new`; answers are
    /// awaited until `deadline`.
    pub fn new(n: usize, old: Moment, new: Moment, deadline: Moment) -> Self {
        #[cfg(feature = "sim-bugs")]
        let old = if crate::bugs::on(crate::bugs::Bug::Revival) { new } else { old };
        Self { old, new, deadline: deadline.min(old), votes: vec![NodeOutcome::Silent; n] }
    }

    fn too_late(&self) -> Progress<Extension> {
        let said = |vote: &NodeOutcome| match vote {
            NodeOutcome::Silent => NodeOutcome::no_answer(),
            said => said.clone(),
        };
        Progress::Decided(Extension::Unknown(self.votes.iter().map(said).collect()))
    }
}

impl Machine for Extend {
    type Decision = Extension;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Progress<Extension> {
        self.votes[node] = match reply {
            Ok(Reply::Done) => NodeOutcome::Granted,
            // Forgotten, not given to another: no vote, and no proof of a loss either.
            Ok(Reply::Quarantined { remaining, began, .. }) => {
                NodeOutcome::quarantined(*remaining, *began)
            }
            Ok(_) => NodeOutcome::Refused,
            Err(e) => NodeOutcome::Failed(e.clone()),
        };
        self.on_time(now)
    }

    fn on_time(&mut self, now: Moment) -> Progress<Extension> {
        if now >= self.old || now >= self.new {
            return self.too_late();
        }
        let count = |o: &NodeOutcome| self.votes.iter().filter(|v| *v == o).count();
        let n = self.votes.len();
        let (yes, refused) = (count(&NodeOutcome::Granted), count(&NodeOutcome::Refused));
        let no = n - yes - count(&NodeOutcome::Silent);
        Progress::Decided(match (VoteCount { n, yes, no }).result() {
            VoteResult::Won => Extension::Until(self.new),
            _ if (VoteCount { n, yes: refused, no: 0 }).result() == VoteResult::Won => {
                Extension::Lost
            }
            VoteResult::Lost if count(&NodeOutcome::Silent) == 0 => {
                Extension::Unknown(self.votes.clone())
            }
            _ if now >= self.deadline => return self.too_late(),
            _ => return Progress::Wait(self.deadline),
        })
    }
}
