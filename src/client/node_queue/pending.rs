//! A request from its submission until its answer, and the release that may follow it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::client::reply_collector::{Origin, ReplyCollector};
use crate::durability::Durability;
use crate::error::{NodeError, NodeFault};
use crate::op::{Op, Reply};
use crate::quorum::Answer;
use crate::time::Moment;
use crate::token::OwnerToken;

/// Unfinished work of one node queue.
#[derive(Debug, Default)]
pub(crate) struct Load {
    unanswered: AtomicUsize,
    owed: AtomicUsize,
}

impl Load {
    /// Returns the number of releases that the node has not confirmed.
    pub(crate) fn owed(&self) -> usize {
        self.owed.load(Ordering::SeqCst)
    }

    /// Returns true if nothing is queued, under way or owed.
    pub(crate) fn is_idle(&self) -> bool {
        self.unanswered.load(Ordering::SeqCst) == 0 && self.owed() == 0
    }
}

/// A request or an owed release, counted in the load until it is dropped.
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

/// A request to one node. Its caller always gets an answer, even if the queue's runtime ends or its
/// node panics. An owed request is repeated until the node has answered it at a time at which no
/// earlier request can take effect any more (renewal 6).
pub(crate) struct Pending {
    pub(super) op: Op,
    pub(super) deadline: Moment,
    /// Number of the node in both collectors.
    node: usize,
    /// Receiver of the answer; `None` if no caller waits for it, or once it has been posted.
    reply_to: Option<Arc<ReplyCollector>>,
    /// End of the time in which the request is owed: by then the ttl has ended what it would
    /// release. `None`: not owed.
    owed_until: Option<Moment>,
    /// Replies of the attempt that the request cleans up after: it is needed while the node may
    /// hold something of that attempt.
    attempt: Option<Arc<ReplyCollector>>,
    /// Counts the request until it has its answer.
    unanswered: Option<Counted>,
    /// Counts the request until it is no longer owed.
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

    /// Makes a release after an attempt, owed until `until`; no caller waits for its answer.
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

    /// Makes the request owed until `until` if it gets no answer.
    pub(crate) fn owed(mut self, until: Moment) -> Self {
        self.owed_until = Some(until);
        self
    }

    /// Counts the request as work of a queue.
    pub(super) fn count(&mut self, load: &Arc<Load>) {
        self.unanswered = Some(Counted::new(load, |load| &load.unanswered));
        self.owed = self.owed_until.map(|_| Counted::new(load, |load| &load.owed));
    }

    /// Returns true if the request is repeated until the node has answered it.
    pub(super) fn is_owed(&self) -> bool {
        self.owed_until.is_some()
    }

    /// Returns true if there may be anything to clean up at `now`. The node's answer that it
    /// certainly did not execute the attempt may come only after the attempt was given up.
    pub(super) fn is_needed(&self, now: Moment) -> bool {
        self.owed_until.is_some_and(|until| now < until)
            && self.attempt.as_ref().is_none_or(|attempt| attempt.may_hold(self.node))
    }

    /// Returns true if a caller waits for the answer.
    pub(super) fn is_awaited(&self) -> bool {
        self.reply_to.is_some()
    }

    /// Returns the owner of the request, unless it is an undo operation: what the request did may
    /// have to be taken back.
    pub(super) fn doer(&self) -> Option<OwnerToken> {
        self.op.owner().filter(|_| self.is_awaited() && !self.op.is_undo()).copied()
    }

    /// Returns the durability level that a grant needs.
    pub(super) fn level(&self) -> Durability {
        self.reply_to.as_ref().map_or(Durability::Primary, |replies| replies.level())
    }

    /// Splits off the part that is owed, if any.
    pub(super) fn take_owed(&mut self) -> Option<Self> {
        let until = self.owed_until.take()?;
        let mut owed = Self::silent(self.op.clone(), self.deadline, self.node).owed(until);
        (owed.attempt, owed.owed) = (self.attempt.take(), self.owed.take());
        Some(owed)
    }

    /// Posts the answer, if a caller waits for it.
    pub(super) fn answer(mut self, reply: Answer, origin: &Origin) {
        self.post(reply, origin);
    }

    /// Posts a grant that had to be confirmed by replicas, or the error of the confirmation.
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
            // The default origin is enough: only the answer of a node in quarantine needs its time.
            self.post(Err(error), &Origin::default());
        }
    }
}
