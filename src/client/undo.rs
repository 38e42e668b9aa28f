//! Cleanup after an attempt or a claim that failed or was dropped.
//!
//! Each attempt creates an [`Undo`] before its first byte can be sent. If the attempt is dropped at
//! an await, the `Undo` releases the owner token on every node that may have granted something. The
//! node queue keeps the order of requests, so a node executes the undo operation after the request
//! for the grant. `node_queue/pending_releases.rs` repeats the undo operation until the node
//! answers.

use std::sync::Arc;
use std::time::Duration;

use crate::client::Core;
use crate::client::node_queue::Pending;
use crate::client::round::ReplyCollector;
use crate::op::Op;
use crate::time::Moment;

/// Cleanup of one attempt. The drop releases the grants that nodes may have of the attempt, unless
/// `armed` is false.
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
    /// Returns the time at which a lease of `ttl` that was requested at `sent` has ended on every
    /// node, even on a node with a slow clock.
    pub(crate) fn forgotten_at(&self, sent: Moment, ttl: Duration) -> Moment {
        sent + ttl + self.config.drift.of(ttl) + self.config.node_deadline
    }

    /// Undoes all attempts of a call on every node, as [`undo`](Self::undo) undoes one attempt. The
    /// attempts of the call have the same owner token.
    pub(crate) fn undo_everywhere(&self, op: &Op, until: Moment) {
        self.undo(op, &ReplyCollector::new(self.n()), until);
    }

    /// Undoes an attempt on every node that may have a grant of the attempt. The request is
    /// repeated until it has certainly taken effect, at most until `until`: at that time the ttl
    /// has ended the lease. This function needs no runtime and no waiting caller, because `Drop`
    /// calls it.
    pub(crate) fn undo(&self, op: &Op, replies: &Arc<ReplyCollector>, until: Moment) {
        let deadline = self.node_deadline(self.env.now());
        for node in (0..self.n()).filter(|i| replies.may_hold(*i)) {
            let release = Pending::release(op.clone(), deadline, node, replies, until);
            self.queues[node].submit(release);
        }
    }
}
