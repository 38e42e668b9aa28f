//! One attempt to extend a lease. A majority must confirm it before the old validity ends *and*
//! before the new one ends (renewal 1, 9). Two answers lead to a second request to the same node:
//! - It is in quarantine. The second request names the quarantine, if the holder may (quarantine
//!   6).
//! - The request was past its deadline by the node's clock. The clock may have stepped forward and
//!   ended the lease, and the holder has to learn this before the next renewal.

use std::time::Duration;

use crate::error::{NodeFault, NodeOutcome};
use crate::op::{Op, QuarantineId, Reply};
use crate::quorum::grant::{Known, Quarantine};
use crate::quorum::{Answer, Machine, Progress, majority};
use crate::time::Moment;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    Until(Moment),
    /// A majority answered that another owner has the name, or no majority can ever confirm the
    /// lease again.
    Lost,
    Unknown(Vec<NodeOutcome>),
}

#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// End of the present validity. An answer after it does not count (invariant 3 of `quorum`).
    pub old: Moment,
    /// End of the validity if this extension succeeds.
    pub new: Moment,
    pub deadline: Moment,
    /// Longest lease of any client. Each quarantine is at least this long.
    pub max_ttl: Duration,
}

/// The state machine that decides one extension of a lease.
#[derive(Clone, Debug)]
pub struct Extend<K> {
    op: Op,
    times: Times,
    known: K,
    votes: Vec<NodeOutcome>,
    /// Bit set of the nodes that got a second request, because the first was late.
    late: u32,
    /// Bit set of the nodes in quarantine whose request named it.
    reasserted: u32,
    /// Their quarantine ends after the lease, and the holder may not name it.
    shut: u32,
}

impl<K: Fn(usize) -> Known> Extend<K> {
    pub fn new(n: usize, op: Op, times: Times, known: K) -> Self {
        let times = Times { deadline: times.deadline.min(times.old), ..times };
        let votes = vec![NodeOutcome::Silent; n];
        Self { op, times, known, votes, late: 0, reasserted: 0, shut: 0 }
    }

    pub fn ask_all(&self, now: Moment) -> Vec<(usize, Op)> {
        (0..self.votes.len()).map(|node| (node, self.ask(node, now))).collect()
    }

    /// The report of the quarantine may have arrived after the last renewal was decided.
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

    /// A node that refused is not in `shut`: it may have granted an attempt that will be rolled
    /// back, and then confirm the lease.
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
        // It neither confirms the lease nor proves its loss.
        self.votes[node] = NodeOutcome::of(reply);
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
