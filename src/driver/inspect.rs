//! Reading who holds a name, from all nodes, decided at the majority.

use crate::driver::Core;
use crate::error::{NodeError, NodeFault};
use crate::name::LockKeys;
use crate::node::mailbox::Mailbox;
use crate::op::{Holder, Op, Reply};
use crate::quorum::leader::{Answer, Leading, Sight};
use crate::token::OwnerToken;

impl Core {
    /// One read. `read` picks the owner's own words, with their number, out of what a node keeps;
    /// it must refuse what another owner left behind. Never `Pending`.
    ///
    /// # Cancellation safety
    /// Dropped, nothing is left behind but, with `wait`, the request for a hint.
    pub(crate) async fn inspect<W: Clone>(
        &self,
        keys: &LockKeys,
        wait: bool,
        read: impl Fn(OwnerToken, &Holder) -> Option<(u64, W)>,
    ) -> Sight<W> {
        if let Some(outcomes) = self.cannot_wait() {
            return Sight::NoQuorum(outcomes);
        }
        let deadline = self.node_deadline(self.env.now());
        let mailbox = Mailbox::new(self.n());
        let mut machine = Leading::new(self.n());
        self.send_all(&Op::Inspect { keys: keys.clone(), wait }, deadline, &mailbox);
        let mut sight = Sight::Pending;
        while matches!(sight, Sight::Pending) {
            sight = match self.mail_until(&mailbox, deadline).await {
                (_, Some((node, reply))) => machine.on_answer(node, answer(reply, &read)),
                (_, None) => machine.on_time(),
            };
        }
        sight
    }
}

fn answer<W>(
    reply: Result<Reply, NodeError>,
    read: impl Fn(OwnerToken, &Holder) -> Option<(u64, W)>,
) -> Answer<W> {
    match reply {
        Ok(Reply::Holder(Some(holder))) => match holder.owner {
            Some(owner) => Answer::Held {
                owner,
                remaining: holder.remaining.unwrap_or_default(),
                words: read(owner, &holder),
            },
            None => Answer::Absent,
        },
        Ok(Reply::Holder(None)) => Answer::Absent,
        Ok(Reply::Quarantined { remaining, began_empty, .. }) => {
            Answer::Quarantined(remaining, began_empty)
        }
        Ok(_) => Answer::Failed(NodeError::not_executed(
            NodeFault::Protocol,
            "not an answer to the question who holds the name",
        )),
        Err(e) => Answer::Failed(e),
    }
}
