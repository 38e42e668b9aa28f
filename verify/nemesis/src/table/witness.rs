//! A node that stands between the library and its Sentinel node. It reports each vote with the time
//! of the request and the run id of the server, even if the library does not use the vote.

use std::sync::Arc;

use palisade::Durability;
use palisade::Moment;
use palisade::error::NodeError;
use palisade::node::spi::BarrierPoint;
use palisade::node::spi::{Batch, NodeSignal, Op, Replies, Reply};
use palisade::node::spi::{Env as _, SystemEnv};
use palisade::node::{
    SentinelNode,
    spi::{BoxFuture, LockNode},
};
use tokio::sync::broadcast;
use tokio::sync::mpsc::UnboundedSender;

use crate::event::{EventKind, Nanos};

/// Prefix of all keys that the clients of the failover table use.
pub(super) const PREFIX: &str = "table:";

pub(super) struct Witness {
    pub(super) node: SentinelNode,
    pub(super) votes: UnboundedSender<(Nanos, EventKind)>,
}

impl LockNode for Witness {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        let (ops, since) = (batch.ops.clone(), SystemEnv.now().as_nanos());
        // Call the node here, not inside the future. So the node gets the batches in the order of
        // the calls.
        let call = self.node.call(batch, deadline);
        Box::pin(async move {
            let replies = call.await;
            let at = SystemEnv.now().as_nanos();
            let Some(facts) = &replies.facts else { return replies };
            for (op, reply) in ops.iter().zip(&replies.items) {
                let Some((name, token, grant)) = yes(op, reply.as_ref().ok()) else { continue };
                let server = Arc::clone(&facts.identity);
                // The receiver is dropped only when the client ends.
                let _ =
                    self.votes.send((at, EventKind::Vote { name, token, since, server, grant }));
            }
            replies
        })
    }

    fn barrier(
        &self,
        after: BarrierPoint,
        level: Durability,
        deadline: Moment,
    ) -> BoxFuture<'_, Result<u32, NodeError>> {
        self.node.barrier(after, level, deadline)
    }

    fn depth(&self) -> usize {
        self.node.depth()
    }

    fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.node.events()
    }

    fn name(&self) -> Arc<str> {
        self.node.name()
    }

    fn url(&self) -> Arc<str> {
        self.node.url()
    }

    fn server(&self) -> Option<Arc<str>> {
        self.node.server()
    }

    fn address(&self) -> Option<Arc<str>> {
        self.node.address()
    }
}

/// Returns the name and the token of the lease that a reply grants or extends. The boolean is true
/// for a grant, false for an extension.
fn yes(op: &Op, reply: Option<&Reply>) -> Option<(Arc<str>, u64, bool)> {
    let (keys, token, grant) = match (op, reply?) {
        (Op::Acquire { keys, .. }, Reply::Granted { fence }) => (keys, *fence, true),
        (Op::Extend { keys, token, .. }, Reply::Done) => (keys, token.get(), false),
        _ => return None,
    };
    let name = keys.lock();
    Some((name.strip_prefix(PREFIX).unwrap_or(name).into(), token, grant))
}
