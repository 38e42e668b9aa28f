//! One extension of a lease over the nodes (design §5.3).

use std::sync::Arc;

use crate::driver::Core;
use crate::driver::lease::Lease;
use crate::error::{ExtendError, NodeOutcome};
use crate::node::mailbox::{Mailbox, Quarantine};
use crate::op::Reply;
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
        let old = lease.until();
        let new = valid_until(sent, lease.ttl, self.config.drift);
        let deadline = self.node_deadline(sent);
        // What a renewal promises must last as the grant does (§5.6).
        let mailbox = Mailbox::at(self.n(), lease.durability().level);
        let mut machine = Extend::new(self.n(), old, new, deadline);
        let max_ttl = self.config.max_ttl;
        let sent_all = lease.while_held(sent, || {
            for node in 0..self.n() {
                // It may re-create the key there, so a release must go there too.
                lease.mailbox.mark(node);
            }
            // A minority that forgot us answers when the majority has decided: its word is heeded
            // now.
            let forgotten: Vec<_> =
                (0..self.n()).map(|i| lease.forgotten_in(i, sent, max_ttl)).collect();
            lease.begin_round(&mailbox, new);
            for (node, epoch) in forgotten.into_iter().enumerate() {
                self.send(node, lease.extend_op(epoch), deadline.min(old), &mailbox);
            }
        });
        if !sent_all {
            // A lapsed hold is never revived, not even by a majority that would still agree.
            return Err(ExtendError::Lost);
        }
        let mut reasserted = 0_u32;
        // Nodes that say nothing can be put back there while this hold lasts.
        let mut shut = 0_u32;
        let mut step = Step::Wait(deadline.min(old));
        loop {
            step = match step {
                Step::Wait(at) => match self.mail_until(&mailbox, at).await {
                    (now, Some((node, Ok(Reply::Quarantined { epoch, remaining }))))
                        if reasserted & (1 << node) == 0
                            && lease.may_reassert(
                                node,
                                Quarantine { epoch, ends: now + remaining },
                                (now, max_ttl),
                            ) =>
                    {
                        // It forgot us, or knows us for too short a time. We asked before we knew;
                        // now we know, and may put it back.
                        reasserted |= 1 << node;
                        lease.while_held(now, || {
                            let op = lease.extend_op(Some(epoch));
                            self.send(node, op, deadline.min(old), &mailbox);
                        });
                        Step::Wait(deadline.min(old))
                    }
                    (now, Some((node, reply))) => {
                        if let Ok(Reply::Quarantined { remaining, .. }) = &reply
                            && now + *remaining >= lease.until()
                        {
                            shut |= 1 << node;
                        }
                        machine.on_reply(now, node, &reply)
                    }
                    (now, None) => machine.on_time(now),
                },
                Step::Extended(until) => {
                    lease.keep(mailbox.achieved());
                    lease.prolong(until);
                    return Ok(until);
                }
                Step::Unknown(outcomes)
                    if lease.is_valid(self.env.now())
                        && !self.is_hopeless(lease, &outcomes, shut) =>
                {
                    return Err(ExtendError::Unknown(self.no_quorum(outcomes)));
                }
                Step::Lost | Step::Unknown(_) => return Err(ExtendError::Lost),
            };
        }
    }

    /// Whether no majority can ever confirm the lease again: its last write is not certain to stand
    /// on so many nodes, and they neither prolong nor take back what there may be of it. What is in
    /// quarantine past the deadline stays shut: only a confirmation by the node itself would open
    /// it, and it gives none.
    fn is_hopeless(&self, lease: &Lease, outcomes: &[NodeOutcome], shut: u32) -> bool {
        let gone = |(node, outcome): &(usize, &NodeOutcome)| {
            let fate = self.verdicts.fate(lease, *node);
            shut & (1 << *node) != 0
                && matches!(outcome, NodeOutcome::Quarantined(_))
                && fate.is_none_or(|fate| !fate.is_safe())
        };
        // Who refuses is not counted: somebody's attempt may stand there that is given up again.
        let gone = outcomes.iter().enumerate().filter(gone).count();
        self.n() - gone < majority(self.n())
    }
}
