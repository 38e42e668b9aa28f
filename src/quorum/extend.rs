//! One attempt to extend (renewal 1, 9).
//!
//! Counts from its own send; needs a majority before the old validity ends *and* inside the new
//! one; revives nothing; releases nothing.
//!
//! The caller sends [`ask_all`](Extend::ask_all) first. A node is asked a second time where that
//! helps: naming the quarantine, once it is known, or the same, once its clock is known. A clock
//! that stepped forward may have ended the lease, and its holder must not learn that only with the
//! next renewal.

use std::time::Duration;

use crate::error::{NodeFault, NodeOutcome};
use crate::op::{Op, QuarantineId, Reply};
use crate::quorum::holdings::{Known, Quarantine};
use crate::quorum::majority::majority;
use crate::quorum::{Answer, Machine, Progress};
use crate::time::Moment;

/// Result of an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Held until this new deadline.
    Until(Moment),
    /// A majority belongs to another owner, or no majority can ever confirm the lease again.
    Lost,
    /// Too few answers; the old deadline holds.
    Unknown(Vec<NodeOutcome>),
}

/// The times of one extension.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// End of the current validity: an answer after it counts for nothing (invariant 3).
    pub old: Moment,
    /// End of the new validity.
    pub new: Moment,
    /// End of the wait for stragglers.
    pub deadline: Moment,
    /// Longest lease of any client: the base of each quarantine.
    pub max_ttl: Duration,
}

/// The machine of one extension.
#[derive(Clone, Debug)]
pub struct Extend<K> {
    /// What extends the lease on a node, without the name of a quarantine.
    op: Op,
    times: Times,
    /// What is known of the lease and of a node, by number, when it is asked or answers.
    known: K,
    votes: Vec<NodeOutcome>,
    /// Nodes, by bit, whose clocks were not what was believed when they were asked first.
    late: u32,
    /// Nodes that were asked to take back what they forgot.
    reasserted: u32,
    /// Nodes that will not confirm the lease any more: past its deadline they are in quarantine,
    /// and may not be asked to take it back. Only a confirmation of their own would change that.
    shut: u32,
}

impl<K: Fn(usize) -> Known> Extend<K> {
    /// An extension by `op` over `n` nodes.
    pub fn new(n: usize, op: Op, times: Times, known: K) -> Self {
        let times = Times { deadline: times.deadline.min(times.old), ..times };
        let votes = vec![NodeOutcome::Silent; n];
        Self { op, times, known, votes, late: 0, reasserted: 0, shut: 0 }
    }

    /// Returns the first requests, to all nodes.
    pub fn ask_all(&self, now: Moment) -> Vec<(usize, Op)> {
        (0..self.votes.len()).map(|node| (node, self.ask(node, now))).collect()
    }

    /// Returns the request to a node. It names the quarantine of which the node spoke last: one in
    /// a minority may have answered only after the majority had decided.
    fn ask(&self, node: usize, now: Moment) -> Op {
        self.naming((self.known)(node).reassert(now, self.times.max_ttl))
    }

    fn naming(&self, quarantine: Option<QuarantineId>) -> Op {
        let mut op = self.op.clone();
        if let Op::Extend { reassert, .. } | Op::ExtendClaim { reassert, .. } = &mut op {
            *reassert = quarantine;
        }
        op
    }

    /// Returns the second request to a node that gave this answer, if it is to be asked at once.
    fn ask_again(&mut self, now: Moment, node: usize, reply: &Answer) -> Option<Op> {
        let bit = 1 << node;
        self.shut &= !bit;
        let late = matches!(reply, Err(e) if e.fault() == NodeFault::PastDeadline);
        if late && self.late & bit == 0 {
            self.late |= bit;
            return Some(self.ask(node, now));
        }
        let Ok(Reply::Quarantined { id, remaining, .. }) = reply else { return None };
        let quarantine = Quarantine { id: *id, ends: now + *remaining };
        let known = (self.known)(node);
        if !known.may_reassert(quarantine, self.times.max_ttl) {
            if quarantine.ends >= known.until {
                self.shut |= bit;
            }
            return None;
        }
        if self.reasserted & bit != 0 {
            return None;
        }
        self.reasserted |= bit;
        Some(self.naming(Some(*id)))
    }

    /// Decides that too few have answered, or that no majority can ever confirm the lease again,
    /// because nodes are shut. One that refuses does not count as shut: it may have an attempt that
    /// is given up again.
    fn undecided(&self) -> Progress<Extension> {
        let n = self.votes.len();
        if n - (self.shut.count_ones() as usize) < majority(n) {
            return Progress::Decided(Extension::Lost);
        }
        let said = |vote: &NodeOutcome| match vote {
            NodeOutcome::Silent => NodeOutcome::no_answer(),
            said => said.clone(),
        };
        Progress::Decided(Extension::Unknown(self.votes.iter().map(said).collect()))
    }
}

impl<K: Fn(usize) -> Known> Machine for Extend<K> {
    type Decision = Extension;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Progress<Extension> {
        if let Some(op) = self.ask_again(now, node, reply) {
            return Progress::Send(vec![(node, op)], self.times.deadline);
        }
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
        if now >= self.times.old || now >= self.times.new {
            return self.undecided();
        }
        let count = |o: &NodeOutcome| self.votes.iter().filter(|v| *v == o).count();
        let need = majority(self.votes.len());
        Progress::Decided(if count(&NodeOutcome::Granted) >= need {
            Extension::Until(self.times.new)
        } else if count(&NodeOutcome::Refused) >= need {
            Extension::Lost
        } else if count(&NodeOutcome::Silent) == 0 || now >= self.times.deadline {
            return self.undecided();
        } else {
            return Progress::Wait(self.times.deadline);
        })
    }
}
