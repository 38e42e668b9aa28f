//! One extension of a lease over the nodes (renewal 1, 9). When it is due decides `renewer`.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument as _;

use crate::client::Core;
use crate::client::lease::Lease;
use crate::client::reply_collector::Quarantine;
use crate::client::round::Round;
use crate::error::{ExtendError, NodeFault};
use crate::op::{Op, Reply};
use crate::quorum::extend::{Extend, Extension};
use crate::quorum::majority::majority;
use crate::quorum::{Answer, Machine, Progress};
use crate::span::Call;
use crate::time::{Moment, valid_until};

impl Core {
    /// As [`extend`](Self::extend), as a call of its own.
    ///
    /// # Cancellation safety
    /// As [`extend`](Self::extend).
    pub(crate) async fn extend_in(
        &self,
        lease: &Arc<Lease>,
        operation: Call,
    ) -> Result<Moment, ExtendError> {
        operation.token(lease.token);
        let result = self.extend(lease).instrument(operation.span()).await;
        operation.over(word(&result));
        result
    }

    /// Extends by the lease's own ttl, counted from this send. A failure releases nothing.
    ///
    /// # Cancellation safety
    /// Dropped, the requests still run on the nodes; the lease keeps its old deadline, which is
    /// earlier than theirs.
    pub(crate) async fn extend(&self, lease: &Arc<Lease>) -> Result<Moment, ExtendError> {
        let lost = || Err(ExtendError::Lost(lease.resource()));
        let sent = self.env.now();
        let timer = match self.timer() {
            Ok(timer) => timer,
            Err(_) if !lease.is_valid(sent) => return lost(),
            Err(outcomes) => return Err(ExtendError::Unknown(self.no_quorum(outcomes))),
        };
        let (old, failovers) = (lease.until(), lease.failovers());
        let kept = valid_until(sent, lease.ttl + lease.drain, self.config.drift);
        // The nodes keep it for longer than its holder believes in it (election 8).
        let new = kept - lease.drain;
        let deadline = self.node_deadline(sent);
        let by = deadline.min(old);
        // What a renewal promises must last as the grant does (durability 1).
        let replies = lease.replies.next_round(kept);
        let max_ttl = self.config.max_ttl;
        let submit = |node, op| self.send(node, op, by, &replies);
        if !lease.send_extensions((sent, max_ttl), self.n(), submit) {
            // A lapsed hold is never revived, not even by a majority that would still agree.
            return lost();
        }
        let extend = Extend::new(self.n(), old, new, deadline);
        let mut machine = Renewal { extend, lease, max_ttl, by, late: 0, reasserted: 0, shut: 0 };
        let round = Round { replies: &replies, timer, until: by, of: Some(lease) };
        let result = match self.run(sent, &mut machine, round).await {
            // Another renewal may have found it lost, and said so.
            Extension::Until(until) if lease.prolong(until, replies.achieved(), failovers) => {
                Ok(until)
            }
            Extension::Unknown(outcomes)
                if lease.is_valid(self.env.now()) && !self.is_hopeless(machine.shut) =>
            {
                lease.left_open(failovers);
                Err(ExtendError::Unknown(self.no_quorum(outcomes).of(lease.resource())))
            }
            _ => lost(),
        };
        let now = self.env.now();
        lease.meters.renewal(word(&result), now.since(sent), (old.since(now), lease.ttl));
        result
    }

    /// Whether no majority can ever confirm the lease again, because these nodes are shut.
    fn is_hopeless(&self, shut: u32) -> bool {
        // A node that refuses does not count: it may have an attempt that is given up again.
        self.n() - (shut.count_ones() as usize) < majority(self.n())
    }
}

fn word(result: &Result<Moment, ExtendError>) -> &'static str {
    match result {
        Ok(_) => "renewed",
        Err(ExtendError::Lost(_)) => "lost",
        Err(ExtendError::Unknown(_)) => "no_quorum",
    }
}

/// An extension that asks nodes once more where that helps.
struct Renewal<'a> {
    extend: Extend,
    lease: &'a Lease,
    max_ttl: Duration,
    by: Moment,
    /// Nodes whose clocks were not what was believed when they were asked first.
    late: u32,
    /// They were asked to take back what they forgot.
    reasserted: u32,
    /// They will not confirm the lease any more: past its deadline they are in quarantine, and may
    /// not be asked to take it back. Only a confirmation of their own would change that.
    shut: u32,
}

impl Machine for Renewal<'_> {
    type Decision = Extension;

    fn on_reply(&mut self, now: Moment, node: usize, reply: &Answer) -> Progress<Extension> {
        match self.ask_again(now, node, reply) {
            Some(op) => Progress::Send(vec![(node, op)], self.by),
            None => self.extend.on_reply(now, node, reply),
        }
    }

    fn on_time(&mut self, now: Moment) -> Progress<Extension> {
        self.extend.on_time(now)
    }
}

impl Renewal<'_> {
    /// What the node is to be asked again at once: naming the quarantine, now that it is known, or
    /// the same, now that its clock is known. A clock that stepped forward may have ended the
    /// lease, and its holder must not learn that only with the next renewal.
    fn ask_again(&mut self, now: Moment, node: usize, reply: &Answer) -> Option<Op> {
        let bit = 1 << node;
        self.shut &= !bit;
        let late = matches!(reply, Err(e) if e.fault() == NodeFault::PastDeadline);
        if late && self.late & bit == 0 {
            self.late |= bit;
            return Some(self.lease.extend_again(node, (now, self.max_ttl)));
        }
        let Ok(Reply::Quarantined { id, remaining, .. }) = reply else { return None };
        let quarantine = Quarantine { id: *id, ends: now + *remaining };
        if !self.lease.may_reassert(node, quarantine, (now, self.max_ttl)) {
            if quarantine.ends >= self.lease.until() {
                self.shut |= bit;
            }
            return None;
        }
        if self.reasserted & bit != 0 {
            return None;
        }
        self.reasserted |= bit;
        Some(self.lease.extend_op(Some(*id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::tests::{ask, core, lease_of};
    use crate::error::NodeError;
    use crate::name::LockKeys;

    /// A node that keeps saying so would otherwise be asked without end.
    #[tokio::test]
    async fn a_node_whose_clock_was_not_as_believed_is_asked_once_more_and_no_more() {
        let core = core();
        let keys = LockKeys::new("k");
        let won = core.attempt(ask(&keys)).await.expect("free");
        let lease = lease_of(&core, &keys, won);
        let (now, until) = (core.env.now(), lease.until());
        let max_ttl = core.config.max_ttl;
        let extend = Extend::new(3, until, until + max_ttl, until);
        let (late, reasserted, shut) = (0, 0, 0);
        let lease = &lease;
        let mut renewal = Renewal { extend, lease, max_ttl, by: until, late, reasserted, shut };
        let reply = Err(NodeError::not_executed(NodeFault::PastDeadline, "late".to_owned()));
        for node in 0..3 {
            assert!(renewal.ask_again(now, node, &reply).is_some(), "node {node}");
            assert!(renewal.ask_again(now, node, &reply).is_none(), "node {node} again");
        }
    }
}
