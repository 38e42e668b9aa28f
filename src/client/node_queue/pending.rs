//! A request to one node from its submission until its answer, and, for a release, until the node
//! has confirmed it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::client::reply_collector::{Origin, ReplyCollector};
use crate::durability::Durability;
use crate::error::{NodeError, NodeFault};
use crate::op::{Op, Reply};
use crate::quorum::Answer;
use crate::time::Moment;
use crate::token::OwnerToken;

/// Numbers of requests in one node queue that have no answer yet, and of those that are repeated
/// until the node confirms them.
#[derive(Debug, Default)]
pub(crate) struct Load {
    unanswered: AtomicUsize,
    owed: AtomicUsize,
}

impl Load {
    /// Returns the number of requests, mostly releases, that are repeated until the node confirms
    /// them.
    pub(crate) fn owed(&self) -> usize {
        self.owed.load(Ordering::SeqCst)
    }

    /// Returns true if no request is queued or in flight, and none is to be repeated.
    pub(crate) fn is_idle(&self) -> bool {
        self.unanswered.load(Ordering::SeqCst) == 0 && self.owed() == 0
    }
}

/// Entry of a request or of an owed release in the [`Load`] of its queue; it counts until it is
/// dropped.
#[derive(Debug)]
struct Counted {
    load: Arc<Load>,
    part: fn(&Load) -> &AtomicUsize,
}

impl Counted {
    fn new(load: &Arc<Load>, part: fn(&Load) -> &AtomicUsize) -> Self {
        part(load).fetch_add(1, Ordering::SeqCst);
        Self { load: Arc::clone(load), part }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.part)(&self.load).fetch_sub(1, Ordering::SeqCst);
    }
}

/// A request to one node. Its caller always gets an answer, even if the queue's runtime ends or the
/// node's code panics. A request that is *owed* is repeated until the node has answered it at a
/// time at which no earlier request of the same owner can take effect any more (renewal 6).
pub(crate) struct Pending {
    pub(super) op: Op,
    pub(super) deadline: Moment,
    /// Number of the node in the collectors `reply_to` and `attempt`.
    node: usize,
    /// Collector that receives the answer; `None` if no caller waits for it, or once it has been
    /// posted.
    reply_to: Option<Arc<ReplyCollector>>,
    /// Time until which the request is repeated if the node does not answer. For a release, the ttl
    /// has ended its lock by then. `None` if the request is not repeated.
    owed_until: Option<Moment>,
    /// Replies to the attempt that this release cleans up. The release is dropped once they show
    /// that the node holds nothing of the attempt.
    attempt: Option<Arc<ReplyCollector>>,
    /// Entry in the queue's [`Load`] until the request has its answer.
    unanswered: Option<Counted>,
    /// Entry in the queue's [`Load`] until the request need not be repeated any more.
    owed: Option<Counted>,
}

impl Pending {
    /// Makes a request whose answer goes to a collector.
    pub(crate) fn new(
        op: Op,
        deadline: Moment,
        node: usize,
        reply_to: &Arc<ReplyCollector>,
    ) -> Self {
        let mut pending = Self::silent(op, deadline, node);
        pending.reply_to = Some(Arc::clone(reply_to));
        pending
    }

    /// Makes a release that cleans up after an attempt and is repeated until `until` at the latest.
    /// No caller waits for its answer.
    pub(crate) fn release(
        op: Op,
        deadline: Moment,
        node: usize,
        attempt: &Arc<ReplyCollector>,
        until: Moment,
    ) -> Self {
        let mut pending = Self::silent(op, deadline, node).owed(until);
        pending.attempt = Some(Arc::clone(attempt));
        pending
    }

    fn silent(op: Op, deadline: Moment, node: usize) -> Self {
        let (reply_to, attempt, owed_until) = (None, None, None);
        Self { op, deadline, node, reply_to, owed_until, attempt, unanswered: None, owed: None }
    }

    /// Makes the request owed: if the node does not answer, it is repeated until `until`.
    pub(crate) fn owed(mut self, until: Moment) -> Self {
        self.owed_until = Some(until);
        self
    }

    /// Counts the request as unfinished work of a queue.
    pub(super) fn count(&mut self, load: &Arc<Load>) {
        self.unanswered = Some(Counted::new(load, |load| &load.unanswered));
        self.owed = self.owed_until.map(|_| Counted::new(load, |load| &load.owed));
    }

    /// Returns true if the request is repeated until the node has answered it.
    pub(super) fn is_owed(&self) -> bool {
        self.owed_until.is_some()
    }

    /// Returns true if the request is still to be repeated at `now`: its time is not over and, if
    /// it cleans up an attempt, the node may hold something of the attempt. That the node holds
    /// nothing may become known only after the attempt was given up.
    pub(super) fn is_needed(&self, now: Moment) -> bool {
        self.owed_until.is_some_and(|until| now < until)
            && self.attempt.as_ref().is_none_or(|attempt| attempt.may_hold(self.node))
    }

    /// Returns true if a caller waits for the answer.
    pub(super) fn is_awaited(&self) -> bool {
        self.reply_to.is_some()
    }

    /// Returns the owner of the request, if a caller waits for the answer and the request is no
    /// undo operation. What such a request did on the node may have to be taken back later.
    pub(super) fn doer(&self) -> Option<OwnerToken> {
        self.op.owner().filter(|_| self.is_awaited() && !self.op.is_undo()).copied()
    }

    /// Returns the durability level that a grant must reach before it counts for the caller.
    pub(super) fn level(&self) -> Durability {
        self.reply_to.as_ref().map_or(Durability::Primary, |replies| replies.level())
    }

    /// Splits off a copy of the op that is repeated until the node answers it, also after the
    /// caller has gone (an owed op, such as a release). Returns `None` for other requests.
    pub(super) fn take_owed(&mut self) -> Option<Self> {
        let until = self.owed_until.take()?;
        let mut owed = Self::silent(self.op.clone(), self.deadline, self.node).owed(until);
        (owed.attempt, owed.owed) = (self.attempt.take(), self.owed.take());
        Some(owed)
    }

    /// Posts the answer to the caller, if one waits for it.
    pub(super) fn answer(mut self, reply: Answer, origin: &Origin) {
        self.post(reply, origin);
    }

    /// Posts a grant that replicas had to confirm, or the error if too few of them did.
    pub(super) fn answer_confirmed(
        self,
        reply: Reply,
        replicas: Result<u32, NodeError>,
        origin: &Origin,
    ) {
        let reply = replicas.map(|replicas| {
            if let Some(replies) = &self.reply_to {
                replies.keep(replicas);
            }
            reply
        });
        self.answer(reply, origin);
    }

    fn post(&mut self, reply: Answer, origin: &Origin) {
        if let Some(replies) = self.reply_to.take() {
            replies.post(self.node, reply, origin);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.is_awaited() {
            let detail = "the task of this node's queue ended; the next call starts another";
            let error = NodeError::maybe_executed(NodeFault::Disconnected, detail);
            // The default origin, which has no time, is enough: only the answer of a node in
            // quarantine needs one.
            self.post(Err(error), &Origin::default());
        }
    }
}
