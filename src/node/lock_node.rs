//! The trait of a node.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::broadcast;

use crate::durability::{BarrierPoint, Durability};
use crate::error::{NodeError, NodeFault};
use crate::node::{FailoverTimes, NodeSignal};
use crate::op::{Batch, Op, Replies, TimedFacts};
use crate::time::Moment;

/// Boxed future, which the methods of [`LockNode`] return because the trait has to be object-safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One independent lock server.
///
/// [`call`](Self::call) executes a batch of ops. [`barrier`](Self::barrier) waits until replicas
/// have received the writes of a batch.
///
/// For implementers: `call` executes the ops in order, each atomically and by the rules of its
/// [`Op`](crate::op::Op), and answers all of them by `deadline`. If no answer arrived for an op
/// that may have been executed, `call` reports the op as *maybe executed*
/// ([`NodeError::maybe_executed`](crate::error::NodeError::maybe_executed)), and the node never
/// repeats the op. The caller may drop the future at any await; the request may then still take
/// effect.
pub trait LockNode: Send + Sync + 'static {
    /// Executes a batch. If [`depth`](Self::depth) is more than one, batches take effect in the
    /// order in which this method was called, even if the returned futures are polled in another
    /// order.
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies>;

    /// Waits until at least as many replicas as `level` requires have received all writes that the
    /// node had made at `after`. Returns the number of these replicas. Fails, at the latest at
    /// `deadline`, if fewer replicas have received the writes, if the number of these replicas is
    /// not known, or if the node may have another data history than `after`. `level` is never
    /// `Primary`. Every error is *maybe executed*, because the batch before the barrier was
    /// executed.
    ///
    /// The default is for a kind of node without replicas: it returns an error, so locks with a
    /// durability level above `Primary` get no vote of this node. A wrapper has to forward this
    /// method.
    fn barrier(
        &self,
        after: BarrierPoint,
        level: Durability,
        deadline: Moment,
    ) -> BoxFuture<'_, Result<u32, NodeError>> {
        let _ = (after, deadline);
        let detail =
            format!("this kind of node does not know which replicas have it; asked for: {level}");
        let error = NodeError::maybe_executed(NodeFault::Unsupported, detail);
        Box::pin(std::future::ready(Err(error)))
    }

    /// Returns how many batches may be under way at once. A node may return more than one only if
    /// it always executes batches in the order of the calls, because otherwise a release could
    /// overtake its acquire.
    fn depth(&self) -> usize {
        1
    }

    /// Subscribes to the node's hints and events. Each of these messages may be lost, so they may
    /// affect only the speed of a caller, not its correctness.
    fn events(&self) -> broadcast::Receiver<NodeSignal>;

    /// Returns the name of this node for errors and logs. It is unique among the nodes of one
    /// handle and never contains a secret.
    fn name(&self) -> Arc<str>;

    /// Returns the address by which the program `palisade` reaches this node (`--node`), without a
    /// login. The default is the node's name. A wrapper has to forward this method.
    fn url(&self) -> Arc<str> {
        self.name()
    }

    /// Returns the durations of a failover of this node. Returns `None`, the default, if the node
    /// has no failovers or does not know the settings of its failovers. This method is called
    /// often, so an implementation must not send a request. A wrapper has to forward this method.
    fn failover(&self) -> Option<FailoverTimes> {
        None
    }

    /// Returns the reason for which nobody can replace the server of this node now if it fails, for
    /// operators. Returns `None`, the default, if there is none, or it is not known. An
    /// implementation must not send a request. A wrapper has to forward this method.
    fn no_failover(&self) -> Option<&'static str> {
        None
    }

    /// Returns the part of this node that executes the op: the number of a hash slot of a cluster.
    /// Returns an error if no part has all keys of the op, and `None`, the default, if the node has
    /// no parts.
    ///
    /// Each part has a server, a clock and a data history of its own, and fails alone. A caller
    /// sends the op to [`part`](Self::part) then. A wrapper has to forward both methods: without
    /// them what a caller remembers of the data protects no slot of a cluster.
    fn part_of(&self, op: &Op) -> Option<Result<u16, NodeError>> {
        let _ = op;
        None
    }

    /// Returns a part of this node, as a node. The default is `None`.
    fn part(&self, part: u16) -> Option<Arc<dyn LockNode>> {
        let _ = part;
        None
    }

    /// Returns which parts of this node cannot be used now, and why, for operators; `None`, the
    /// default, if all can, or it is not known. An implementation must not send a request. A
    /// wrapper has to forward this method.
    fn troubles(&self) -> Option<Arc<str>> {
        None
    }

    /// Returns the address, as `host:port`, of the server that answers for this node now; `None` if
    /// this kind of node has no address. The address is only shown to operators: it lets them
    /// distinguish a restart from a switch to another server.
    fn address(&self) -> Option<Arc<str>> {
        None
    }

    /// Returns the facts that the server reported when the present connection was opened. Only the
    /// first call on a connection returns the facts, and only before the connection has answered a
    /// batch. With the facts, a caller learns of a change of the server one round trip earlier. The
    /// default is `None`. A wrapper need not forward this method.
    fn first_facts(&self) -> Option<TimedFacts> {
        None
    }

    /// Returns the identity of the server that would receive a batch now, as in
    /// [`Facts::identity`](crate::op::Facts::identity). If a caller knows only the clock of another
    /// server, the caller asks this server for its clock first. A node that has returned an
    /// identity before returns `None` while it has no connection.
    ///
    /// The default is `None`, for a kind of node that learns the identity only from answers. With
    /// such a node, the first batch that reaches another server is refused there as late
    /// ([`NotAfter::on`](crate::op::NotAfter::on)). A wrapper has to forward this method.
    fn server(&self) -> Option<Arc<str>> {
        None
    }
}
