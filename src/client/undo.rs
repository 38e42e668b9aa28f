//! Cleanup after an attempt or a claim that was lost, or whose future was dropped.
//!
//! Each has an [`Undo`] from the moment at which its first byte may be sent. Dropped at any await
//! it takes back by token on every node that may have granted. The queue keeps order, so that runs
//! after the grant wherever both arrive. `node_queue/pending_releases.rs` repeats it until a node
//! has answered.

use std::sync::Arc;
use std::time::Duration;

use crate::client::Core;
use crate::client::node_queue::Pending;
use crate::client::reply_collector::ReplyCollector;
use crate::op::Op;
use crate::time::Moment;

/// Releases what an attempt may hold, unless it is disarmed.
pub(super) struct Undo<'a> {
    pub(super) core: &'a Core,
    pub(super) op: Op,
    pub(super) until: Moment,
    pub(super) replies: Arc<ReplyCollector>,
    pub(super) armed: bool,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.core.undo(&self.op, &self.replies, self.until);
        }
    }
}

impl Core {
    /// Returns the time at which even a node with a slow clock has forgotten a lease that was sent
    /// at `sent`.
    pub(crate) fn forgotten_at(&self, sent: Moment, ttl: Duration) -> Moment {
        sent + ttl + self.config.drift.of(ttl) + self.config.node_deadline
    }

    /// Cleans up on every node that may hold something of the attempt, now and again until it is
    /// certain, at the latest until `until`, when the ttl has done it. Needs no runtime and no
    /// caller: it is what `Drop` calls.
    pub(crate) fn undo(&self, op: &Op, replies: &Arc<ReplyCollector>, until: Moment) {
        let deadline = self.node_deadline(self.env.now());
        for node in (0..self.n()).filter(|i| replies.may_hold(*i)) {
            let release = Pending::release(op.clone(), deadline, node, replies, until);
            self.queues[node].submit(release);
        }
    }
}
