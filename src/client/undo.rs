//! Cleanup after an attempt or a claim that was lost, or whose future was dropped.
//!
//! Each attempt has an [`Undo`] from the moment at which its first byte may be sent. When the
//! attempt is dropped at any await, the `Undo` takes back by token what any node may have granted.
//! The queue keeps order, so the undo operation runs after the grant wherever both arrive.
//! `node_queue/pending_releases.rs` repeats it until a node has answered.

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
    /// Returns the time at which even a node with a slow clock has dropped a lease that was sent at
    /// `sent`.
    pub(crate) fn forgotten_at(&self, sent: Moment, ttl: Duration) -> Moment {
        sent + ttl + self.config.drift.of(ttl) + self.config.node_deadline
    }

    /// Cleans up on every node that may hold something of the attempt, and repeats that until it is
    /// certain, at the latest until `until`, when the ttl has ended the lease. Needs no runtime and
    /// no caller, because `Drop` calls it.
    pub(crate) fn undo(&self, op: &Op, replies: &Arc<ReplyCollector>, until: Moment) {
        let deadline = self.node_deadline(self.env.now());
        for node in (0..self.n()).filter(|i| replies.may_hold(*i)) {
            let release = Pending::release(op.clone(), deadline, node, replies, until);
            self.queues[node].submit(release);
        }
    }
}
