//! The one trait of all kinds of nodes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::broadcast;

use crate::durability::{BarrierPoint, Durability};
use crate::error::{NodeError, NodeFault};
use crate::node::{FailoverTimes, NodeSignal};
use crate::op::{Batch, Replies, TimedFacts};
use crate::time::Moment;

/// A boxed future, because the trait has to be object-safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One independent lock server.
///
/// [`call`](Self::call) takes a batch of ops and a deadline; [`barrier`](Self::barrier) waits until
/// replicas have what a batch did. For implementers: `call` executes the ops in order, each
/// atomically and by the rules of its [`Op`](crate::op::Op), and answers all of them by `deadline`.
/// An op that may have been executed although no answer came is reported as *maybe executed*
/// ([`NodeError::maybe_executed`](crate::error::NodeError::maybe_executed)). The node never repeats
/// an op that may have been executed. The future may be dropped at any await; the request may then
/// still take effect.
pub trait LockNode: Send + Sync + 'static {
    /// Executes a batch. If [`depth`](Self::depth) is more than one, batches take effect in the
    /// order in which this method was called, even if the returned futures are polled in another
    /// order.
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies>;

    /// Waits until at least as many replicas as `level` asks for have everything that was on the
    /// node at `after`, and returns how many have it; an error by `deadline` if fewer have it, if
    /// that is not known, or if the node may have another history than `after` names. Never called
    /// with `Primary`. As the batch was executed, an error is always *maybe executed*.
    ///
    /// By default a kind of node has no replicas: it answers an error, and locks above `Primary`
    /// get no vote of this node. A wrapper has to forward this method.
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

    /// Returns how many batches may be under way at once. More than one only if they are always
    /// executed in the order of the calls: otherwise a release could overtake its acquire.
    fn depth(&self) -> usize {
        1
    }

    /// Returns a stream of hints and events. They may be lost; only speed may depend on them.
    fn events(&self) -> broadcast::Receiver<NodeSignal>;

    /// Returns the name of this node for errors and logs; unique among the nodes of one handle. It
    /// never contains a secret.
    fn name(&self) -> Arc<str>;

    /// Returns the duration of a failover of this node, if the node has failovers and knows its
    /// settings. It is called often, so it must not send a request. Default: not known. A wrapper
    /// has to forward this method.
    fn failover(&self) -> Option<FailoverTimes> {
        None
    }

    /// Returns the address of the server that answers for this node now, as `host:port`; `None` if
    /// this kind of node has no address. Only for operators: it distinguishes a restart from a
    /// switch to another server.
    fn address(&self) -> Option<Arc<str>> {
        None
    }

    /// Returns the facts that the node's present connection received when it was opened, once, and
    /// only before it has answered a batch. A caller that takes them need not ask for them, so it
    /// learns one round trip sooner that another server answers. Default: none; a wrapper need not
    /// forward this method.
    fn first_facts(&self) -> Option<TimedFacts> {
        None
    }

    /// Returns the server that a batch would reach now, as in
    /// [`Facts::identity`](crate::op::Facts::identity). A caller that knows the clock of another
    /// server asks for this server's clock first. `None` after it has named a server: the node has
    /// no connection. Always `None`, the default: the server is not known before the answer, and
    /// the first batch that reaches another server is refused there as late
    /// ([`NotAfter::on`](crate::op::NotAfter::on)). A wrapper has to forward this method.
    fn server(&self) -> Option<Arc<str>> {
        None
    }
}
