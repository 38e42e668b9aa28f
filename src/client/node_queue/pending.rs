//! Where the answer to a queued op goes, and that it goes there whatever happens.

use std::sync::Arc;

use super::load::{Counted, Load};
use super::pending_releases::PendingRelease;
use crate::client::reply_collector::{Origin, ReplyCollector};
use crate::durability::Durability;
use crate::error::{NodeError, NodeFault};
use crate::op::{Op, Reply};
use crate::time::Moment;

/// The receiver of the answer.
pub(crate) enum Sink {
    /// An attempt that listens, and which of its nodes this is.
    Mail(Arc<ReplyCollector>, usize),
    /// Nobody: a clean-up after this attempt on this node that is owed until this moment.
    Owed(Arc<ReplyCollector>, usize, Moment),
    /// Both: somebody listens, and without an answer the clean-up is owed until this moment.
    MailOwed(Arc<ReplyCollector>, usize, Moment),
}

impl Sink {
    /// How durable a yes has to be.
    fn level(&self) -> Durability {
        match self {
            Self::Mail(replies, _) | Self::MailOwed(replies, _, _) => replies.level(),
            Self::Owed(..) => Durability::Primary,
        }
    }

    /// A yes that so many replicas have.
    fn keep(&self, replicas: u32) {
        match self {
            Self::Mail(replies, _) | Self::MailOwed(replies, _, _) => replies.keep(replicas),
            Self::Owed(..) => {}
        }
    }

    /// The attempt that a clean-up is of.
    fn cleans(&self) -> Option<(Arc<ReplyCollector>, usize)> {
        match self {
            Self::Owed(attempt, node, _) => Some((Arc::clone(attempt), *node)),
            _ => None,
        }
    }

    /// Until when the op is owed although nobody listens any more.
    fn owed_until(&self) -> Option<Moment> {
        match self {
            Self::Mail(..) => None,
            Self::Owed(_, _, until) | Self::MailOwed(_, _, until) => Some(*until),
        }
    }

    fn post(self, reply: Result<Reply, NodeError>, at: Origin) {
        match self {
            Self::Mail(replies, node) | Self::MailOwed(replies, node, _) => {
                replies.post(node, reply, at);
            }
            Self::Owed(..) => {}
        }
    }
}

/// A sink that is answered whatever happens, also when the queue's runtime ends or its node panics.
pub(super) struct Asker {
    sink: Option<Sink>,
    /// The clean-up that it leaves behind until it is confirmed.
    owed: Option<Counted>,
    _asked: Counted,
}

impl Asker {
    pub(super) fn new(sink: Sink, load: &Arc<Load>) -> Self {
        let owed = sink.owed_until().map(|_| Counted::owed(load));
        Self { sink: Some(sink), owed, _asked: Counted::asked(load) }
    }

    pub(super) fn owed_until(&self) -> Option<Moment> {
        self.sink.as_ref().and_then(Sink::owed_until)
    }

    /// What is owed if no answer comes.
    pub(super) fn owes(&mut self, op: &Op) -> Option<PendingRelease> {
        let (until, count) = self.owed_until().zip(self.owed.take())?;
        let of = self.sink.as_ref().and_then(Sink::cleans);
        Some(PendingRelease { op: op.clone(), until, of, _count: count })
    }

    pub(super) fn level(&self) -> Durability {
        self.sink.as_ref().map_or(Durability::Primary, Sink::level)
    }

    pub(super) fn post(mut self, reply: Result<Reply, NodeError>, at: Origin) {
        if let Some(sink) = self.sink.take() {
            sink.post(reply, at);
        }
    }

    /// Posts a yes that had to be confirmed.
    pub(super) fn post_kept(self, reply: Reply, confirmed: Result<u32, NodeError>, at: Origin) {
        let reply = confirmed.map(|replicas| {
            if let Some(sink) = &self.sink {
                sink.keep(replicas);
            }
            reply
        });
        self.post(reply, at);
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        if let Some(sink) = self.sink.take() {
            let detail = "the task of this node's queue ended; the next call starts another";
            let error = NodeError::maybe_executed(NodeFault::Disconnected, detail);
            // Only a quarantine is reckoned from the moment of its answer.
            sink.post(Err(error), Origin::default());
        }
    }
}
