//! One attempt to extend (renewal 1, 9).
//!
//! The new validity counts from the extension's own send. It needs a majority before the old
//! validity ends *and* before the new one ends. An extension never revives a lease and never
//! releases one.
//!
//! The caller sends the requests of [`ask_all`](Extend::ask_all) first. A node is asked a second
//! time if that can help: with the name of its quarantine, once that is known, or with the same
//! request, once its clock is known. A clock that stepped forward may have ended the lease, and its
//! holder must not learn that only from the next renewal.

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

/// Times of one extension.
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
    /// Op that extends the lease on a node, without the name of a quarantine.
    op: Op,
    times: Times,
    /// Returns what is known of the lease and of a node, by number; called for each request and
    /// answer.
    known: K,
    votes: Vec<NodeOutcome>,
    /// Nodes, by bit, that were asked again because the first request was past its deadline there.
    late: u32,
    /// Nodes, by bit, that were asked with the name of their quarantine.
    reasserted: u32,
    /// Nodes, by bit, that will not confirm the lease any more: their quarantine lasts past the
    /// lease's end, and their earlier confirmation does not allow to re-assert the lease. Only a
    /// new confirmation by the node would change that.
    shut: u32,
}

impl<K: Fn(usize) -> Known> Extend<K> {
    /// Makes the machine of an extension by `op` over `n` nodes.
    pub fn new(n: usize, op: Op, times: Times, known: K) -> Self {
        let times = Times { deadline: times.deadline.min(times.old), ..times };
        let votes = vec![NodeOutcome::Silent; n];
        Self { op, times, known, votes, late: 0, reasserted: 0, shut: 0 }
    }

    /// Returns the first requests, to all nodes.
    pub fn ask_all(&self, now: Moment) -> Vec<(usize, Op)> {
        (0..self.votes.len()).map(|node| (node, self.ask(node, now))).collect()
    }

    /// Returns the request to a node, with the name of the quarantine that the node reported last:
    /// a node of the minority may have reported it only after the last renewal was decided.
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

    /// Returns the second request to a node that gave this answer, if one is to be sent at once.
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
    /// because nodes are shut. A node that refuses does not count as shut: it may have granted an
    /// attempt that will be rolled back.
    fn undecided(&self) -> Progress<Extension> {
        let n = self.votes.len();
        if n - (self.shut.count_ones() as usize) < majority(n) {
            return Progress::Decided(Extension::Lost);
        }
        let outcome = |vote: &NodeOutcome| match vote {
            NodeOutcome::Silent => NodeOutcome::no_answer(),
            other => other.clone(),
        };
        Progress::Decided(Extension::Unknown(self.votes.iter().map(outcome).collect()))
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
            // The lease was forgotten, not given to another owner: neither a vote nor a proof of a
            // loss.
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
