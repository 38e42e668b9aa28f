//! What a node has to do: the one trait of all kinds of nodes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::broadcast;

use crate::durability::{BarrierPoint, Durability};
use crate::error::{NodeError, NodeFault};
use crate::node::{FailoverTimes, NodeSignal};
use crate::op::{Batch, Replies, TimedFacts};
use crate::time::Moment;

/// A boxed future, as object-safe async methods need it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One independent lock server.
///
/// One method takes a batch of ops and a deadline, another waits until replicas have what a batch
/// did. For implementers: `call` executes the ops in order, each atomically and by the rules
/// written at [`Op`](crate::op::Op), and answers all of them by `deadline`. An op that may have
/// been executed although no answer came is reported as *maybe executed*
/// ([`NodeError::maybe_executed`](crate::error::NodeError::maybe_executed)). Nothing is ever
/// repeated by the node itself after it may have been executed. The future may be dropped at any
/// await; the request may then still take effect.
pub trait LockNode: Send + Sync + 'static {
    /// Executes a batch. Where [`depth`](Self::depth) is more than one, batches take effect in the
    /// order in which this was called, even if the returned futures are polled in another order.
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies>;

    /// Waits until at least as many replicas as `level` asks for have everything that was on the
    /// node at `after`, and answers how many have it; an error by `deadline` if it is fewer, if
    /// nobody knows, or if the node may have another past than `after` says. Never asked at
    /// `Primary`. As the batch was executed, an error is always *maybe executed*.
    ///
    /// By default a kind of node has no replicas: the error says so, and locks above `Primary` get
    /// no vote of this node. A wrapper has to hand it on.
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

    /// How many batches may be under way at once. More than one only where they are executed in the
    /// order of the calls, whatever happens: else a release could overtake its acquire.
    fn depth(&self) -> usize {
        1
    }

    /// A stream of hints and events. They may be lost; nothing may depend on them but speed.
    fn events(&self) -> broadcast::Receiver<NodeSignal>;

    /// What to call this node in errors and logs; unique among the nodes of one handle. Never
    /// contains a secret.
    fn name(&self) -> Arc<str>;

    /// How long a failover of this node takes, where the node has failovers and knows its settings.
    /// Asked now and then, so it must not ask anybody; by default nothing is known. A wrapper has
    /// to hand it on.
    fn failover(&self) -> Option<FailoverTimes> {
        None
    }

    /// Where the server is that answers for this node now, as `host:port`; `None` if that means
    /// nothing here. Only for operators: it distinguishes a restart from a switch to another
    /// server.
    fn address(&self) -> Option<Arc<str>> {
        None
    }

    /// Returns the facts that the node's present connection received when it was opened, once, and
    /// only before it has answered a batch. A caller that takes them need not ask for them, so it
    /// learns one round trip sooner that another server answers. By default there are none, and a
    /// wrapper need not hand it on.
    fn first_facts(&self) -> Option<TimedFacts> {
        None
    }

    /// The server that a batch called for now would reach, as in
    /// [`Facts::identity`](crate::op::Facts::identity). A caller that knows the clock of another
    /// one asks for this one's first. `None` from a node that named one before: it has no
    /// connection. `None` always, the default: it is not known before the answer, and the first
    /// batch that reaches another server is refused as late there
    /// ([`NotAfter::on`](crate::op::NotAfter::on)). A wrapper has to hand it on.
    fn server(&self) -> Option<Arc<str>> {
        None
    }
}
