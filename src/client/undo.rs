//! Cleanup after an attempt or a claim that lost, or whose future was dropped.
//!
//! Each attempt has an [`Undo`] from the moment at which its first byte may be sent. If the attempt
//! is dropped at any await, the `Undo` takes back, by owner token, what any node may have granted.
//! The node queue keeps the order, so the undo operation runs after the grant wherever both arrive.
//! `node_queue/pending_releases.rs` repeats it until the node has answered.

use std::sync::Arc;
use std::time::Duration;

use crate::client::Core;
use crate::client::node_queue::Pending;
use crate::client::reply_collector::ReplyCollector;
use crate::op::Op;
use crate::time::Moment;

/// Cleanup of one attempt. When it is dropped, it releases what nodes may hold of the attempt,
/// unless it was disarmed.
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
    /// Returns the time at which even a node with a slow clock has dropped a lease of `ttl` that
    /// was requested at `sent`.
    pub(crate) fn forgotten_at(&self, sent: Moment, ttl: Duration) -> Moment {
        sent + ttl + self.config.drift.of(ttl) + self.config.node_deadline
    }

    /// Takes back what any node may hold of a call that made several attempts under one owner
    /// token, as [`undo`](Self::undo).
    pub(crate) fn undo_everywhere(&self, op: &Op, until: Moment) {
        self.undo(op, &ReplyCollector::new(self.n()), until);
    }

    /// Takes back what nodes may hold of an attempt. The request goes to every node that may hold
    /// something, and is repeated until it has certainly had its effect, or until `until`, when the
    /// ttl has ended the lease. Needs neither a runtime nor a waiting caller, because `Drop` calls
    /// it.
    pub(crate) fn undo(&self, op: &Op, replies: &Arc<ReplyCollector>, until: Moment) {
        let deadline = self.node_deadline(self.env.now());
        for node in (0..self.n()).filter(|i| replies.may_hold(*i)) {
            let release = Pending::release(op.clone(), deadline, node, replies, until);
            self.queues[node].submit(release);
        }
    }
}
