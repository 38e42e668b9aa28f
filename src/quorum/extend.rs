//! One attempt to extend a lease (rules renewal 1, 9 in docs/design).
//!
//! The new validity counts from the moment at which the extension was sent. A majority must confirm
//! the extension before the old validity ends *and* before the new validity ends. An extension
//! never revives a lease that has ended, and never releases a lease.
//!
//! The caller first sends the requests of [`ask_all`](Extend::ask_all). Two kinds of answers lead
//! to a second request to the same node:
//! - The node is in quarantine, because it may have lost leases. It then extends a lease only if
//!   the request names this quarantine. So the second request names it, if the holder may do so
//!   (rule quarantine 6 in docs/design).
//! - The request was past its deadline by the node's clock. The request is repeated once, because
//!   the answer has shown the reading of this clock. The clock may have stepped forward and ended
//!   the lease, and the holder has to learn this before the next renewal.

use std::time::Duration;

use crate::error::{NodeFault, NodeOutcome};
use crate::op::{Op, QuarantineId, Reply};
use crate::quorum::grant::{Known, Quarantine};
use crate::quorum::{Answer, Machine, Progress, majority};
use crate::time::Moment;

/// Result of an extension of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    /// The lease is valid until this new deadline.
    Until(Moment),
    /// The lease has ended: a majority answered that another owner has the name, or no majority can
    /// ever confirm the lease again.
    Lost,
    /// Too few nodes confirmed the extension, so the old deadline stays. Contains the answer of
    /// each node.
    Unknown(Vec<NodeOutcome>),
}

/// Times that limit one extension of a lease.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// End of the lease's present validity. An answer after this time does not count (invariant 3
    /// of `quorum`).
    pub old: Moment,
    /// End of the lease's validity if this extension succeeds.
    pub new: Moment,
    /// Moment until which the state machine waits for answers.
    pub deadline: Moment,
    /// Longest lease of any client. Each quarantine (time without grants) is at least this long.
    pub max_ttl: Duration,
}

/// The state machine that decides one extension of a lease.
#[derive(Clone, Debug)]
pub struct Extend<K> {
    /// Op that extends the lease on a node. This op does not contain the identifier of the node's
    /// quarantine (time in which it grants nothing) yet.
    op: Op,
    times: Times,
    /// Returns the known facts about the lease and about the node with this number: the end of the
    /// lease's validity, the node's confirmation of the lease, and its last quarantine (time in
    /// which it grants nothing). The state machine calls this function for each request and each
    /// answer.
    known: K,
    votes: Vec<NodeOutcome>,
    /// Bit set of the nodes that got a second request, because the first request was past its
    /// deadline when it arrived at the node.
    late: u32,
    /// Bit set of the nodes in quarantine (they may have lost leases) whose request contained the
    /// identifier of the node's quarantine, so that the node could extend the lease in it.
    reasserted: u32,
    /// Bit set of the nodes that will not confirm the lease any more. The quarantine of such a node
    /// (a time in which it grants nothing) ends after the lease. The holder may not extend the
    /// lease in this quarantine, because the node's earlier confirmation of the lease ended too
    /// early.
    shut: u32,
}

impl<K: Fn(usize) -> Known> Extend<K> {
    /// Makes the state machine of one extension of a lease on `n` nodes. `op` is the request to
    /// each node.
    pub fn new(n: usize, op: Op, times: Times, known: K) -> Self {
        let times = Times { deadline: times.deadline.min(times.old), ..times };
        let votes = vec![NodeOutcome::Silent; n];
        Self { op, times, known, votes, late: 0, reasserted: 0, shut: 0 }
    }

    /// Returns the first request to each node.
    pub fn ask_all(&self, now: Moment) -> Vec<(usize, Op)> {
        (0..self.votes.len()).map(|node| (node, self.ask(node, now))).collect()
    }

    /// Returns the request to a node. If the node has reported a quarantine (it may have lost
    /// leases) in which the holder may extend the lease, the request contains the identifier of
    /// this quarantine. The report may have arrived after the last renewal was decided, if the node
    /// was not needed for a majority.
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

    /// Handles a node's answer. Returns the second request to this node, if one is needed.
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

    /// Decides an extension that no majority has confirmed or refused. The lease is lost if the
    /// nodes outside of `shut` (the nodes that can never confirm the lease again) are fewer than a
    /// majority; otherwise the result is unknown. A node that refused is not in `shut`, because it
    /// may have granted another attempt that will be rolled back. After that it may confirm the
    /// lease.
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
        // A node in quarantine may have lost the lease, but it did not give the lease to another
        // owner. So its answer neither confirms the lease nor proves that the lease is lost.
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
