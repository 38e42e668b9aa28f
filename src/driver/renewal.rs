//! One extension of a lease over the nodes (renewal 1, 9).

use std::sync::Arc;
use std::time::Duration;

use crate::driver::Core;
use crate::driver::lease::Lease;
use crate::error::{ExtendError, NodeError, NodeFault};
use crate::node::mailbox::{Mailbox, Quarantine};
use crate::op::{Op, Reply};
use crate::quorum::extend::{Extend, Step};
use crate::quorum::majority::majority;
use crate::time::{Moment, valid_until};

impl Core {
    /// Extends by the lease's own ttl, counted from this send. A failure releases nothing.
    ///
    /// # Cancellation safety
    /// Dropped, the requests still run on the nodes; the lease keeps its old deadline, which is
    /// earlier than theirs.
    pub(crate) async fn extend(&self, lease: &Arc<Lease>) -> Result<Moment, ExtendError> {
        let sent = self.env.now();
        if let Some(outcomes) = self.cannot_wait().filter(|_| lease.is_valid(sent)) {
            return Err(ExtendError::Unknown(self.no_quorum(outcomes)));
        }
        let old = lease.until();
        let new = valid_until(sent, lease.ttl, self.config.drift);
        let deadline = self.node_deadline(sent);
        // What a renewal promises must last as the grant does (durability 1).
        let mailbox = Mailbox::at(self.n(), lease.durability().level);
        let mut machine = Extend::new(self.n(), old, new, deadline);
        let max_ttl = self.config.max_ttl;
        let sent_all = lease.while_held(sent, || {
            for node in 0..self.n() {
                // It may re-create the key there, so a release must go there too.
                lease.mailbox.mark(node);
            }
            // A minority in quarantine answers when the majority has decided: its word is heeded
            // now.
            let named: Vec<_> =
                (0..self.n()).map(|i| lease.quarantine(i, (sent, max_ttl))).collect();
            lease.begin_round(&mailbox, new);
            for (node, quarantine) in named.into_iter().enumerate() {
                self.send(node, lease.extend_op(quarantine), deadline.min(old), &mailbox);
            }
        });
        if !sent_all {
            // A lapsed hold is never revived, not even by a majority that would still agree.
            return Err(ExtendError::Lost(lease.resource()));
        }
        let mut doors = Doors::default();
        let mut step = Step::Wait(deadline.min(old));
        loop {
            step = match step {
                Step::Wait(at) => match self.mail_until(&mailbox, at).await {
                    (now, Some((node, reply))) => {
                        if let Some(op) = doors.ask(lease, node, &reply, (now, max_ttl)) {
                            lease.while_held(now, || {
                                self.send(node, op, deadline.min(old), &mailbox);
                            });
                            Step::Wait(deadline.min(old))
                        } else {
                            machine.on_reply(now, node, &reply)
                        }
                    }
                    (now, None) => machine.on_time(now),
                },
                // Another renewal has found it lost meanwhile, and it was told.
                Step::Extended(_) if lease.is_lost() => {
                    return Err(ExtendError::Lost(lease.resource()));
                }
                Step::Extended(until) => {
                    lease.keep(mailbox.achieved());
                    lease.prolong(until);
                    return Ok(until);
                }
                Step::Unknown(outcomes)
                    if lease.is_valid(self.env.now()) && !self.is_hopeless(lease, doors) =>
                {
                    let why = self.no_quorum(outcomes).of(lease.resource());
                    return Err(ExtendError::Unknown(why));
                }
                Step::Lost | Step::Unknown(_) => return Err(ExtendError::Lost(lease.resource())),
            };
        }
    }

    /// Whether no majority can ever confirm the lease again: too many nodes are shut, and it is not
    /// certain that its last write stands there.
    fn is_hopeless(&self, lease: &Lease, doors: Doors) -> bool {
        let gone = |node: &usize| {
            let fate = self.verdicts.fate(lease, *node);
            doors.shut & (1 << *node) != 0 && fate.is_none_or(|fate| !fate.is_safe())
        };
        // Who refuses is not counted: somebody's attempt may stand there that is given up again.
        let gone = (0..self.n()).filter(gone).count();
        self.n() - gone < majority(self.n())
    }
}

/// The nodes that are asked once more within one renewal, and those that will not confirm it.
#[derive(Clone, Copy, Default)]
struct Doors {
    /// Their clocks were not what was believed when they were asked first.
    late: u32,
    /// They were asked to take back what they forgot.
    reasserted: u32,
    /// They will not confirm the lease any more: past its deadline they are in quarantine, and may
    /// not be asked to take it back. Only a confirmation of their own would change that.
    shut: u32,
}

impl Doors {
    /// What the node is to be asked again at once: naming the quarantine, now that it is known, or
    /// the same, now that its clock is known. A clock that stepped forward may have ended the
    /// lease, and its holder must not hear of that only with the next renewal.
    fn ask(
        &mut self,
        lease: &Lease,
        node: usize,
        reply: &Result<Reply, NodeError>,
        (now, max_ttl): (Moment, Duration),
    ) -> Option<Op> {
        let bit = 1 << node;
        self.shut &= !bit;
        let late = matches!(reply, Err(e) if e.fault() == NodeFault::PastDeadline);
        if late && self.late & bit == 0 {
            self.late |= bit;
            return Some(lease.extend_op(lease.quarantine(node, (now, max_ttl))));
        }
        let Ok(Reply::Quarantined { id, remaining, .. }) = reply else { return None };
        let quarantine = Quarantine { id: *id, ends: now + *remaining };
        if !lease.may_reassert(node, quarantine, (now, max_ttl)) {
            if quarantine.ends >= lease.until() {
                self.shut |= bit;
            }
            return None;
        }
        if self.reasserted & bit != 0 {
            return None;
        }
        self.reasserted |= bit;
        Some(lease.extend_op(Some(*id)))
    }
}
