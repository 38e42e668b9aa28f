//! Nodes: independent lock servers, one vote each.
//!
//! [`LockNode`] is the seam: one method takes a batch of ops and a deadline. Fault injection,
//! metrics and quarantine in memory are wrappers. [`MemoryNode`] is the reference semantics and the
//! embedded default; `contract` (feature `test-util`) is the suite that every node kind passes, and
//! with which a third party's node can be tested.

#[cfg(feature = "test-util")]
pub mod contract;
mod event;
#[cfg(feature = "test-util")]
pub mod fault;
pub(crate) mod lane;
mod link;
pub(crate) mod mailbox;
mod memory;
mod probe;
mod redis;
mod sentinel;
pub(crate) mod tally;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::broadcast;

pub use self::event::{GenerationCause, NodeEvent};
pub use self::redis::{RedisNode, RedisNodeBuilder};
pub use self::tally::NodeMetrics;
use crate::op::{Batch, Replies};
use crate::time::Moment;

pub use memory::{MemoryNode, MemoryNodeBuilder, MemorySnapshot};
pub use sentinel::{MinReplicas, SentinelNode, SentinelStatus};

/// A boxed future, as object-safe async methods need it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One independent lock server.
///
/// For implementers: `call` executes the ops in order, each atomically and by the rules written at
/// [`Op`](crate::op::Op), and answers all of them by `deadline`. An op that may have been executed
/// although no answer came is reported as *maybe executed*
/// ([`NodeError::maybe_executed`](crate::error::NodeError::maybe_executed)). Nothing is ever
/// repeated by the node itself after it may have been executed. The future may be dropped at any
/// await; the request may then still take effect.
pub trait LockNode: Send + Sync + 'static {
    /// Executes a batch.
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies>;

    /// How many batches may be under way at once. More than one only where they are executed in the
    /// order in which they were sent, whatever happens: else a release could overtake its acquire.
    fn depth(&self) -> usize {
        1
    }

    /// A stream of hints. Hints may be lost; nothing may depend on them but speed.
    fn events(&self) -> broadcast::Receiver<NodeEvent>;

    /// What to call this node in errors and logs; unique among the nodes of one handle. Never
    /// contains a secret.
    fn name(&self) -> Arc<str>;

    /// Where the server is that answers for this node now, as `host:port`; `None` if that means
    /// nothing here. Only for operators: it tells a restart from a switch to another server.
    fn address(&self) -> Option<Arc<str>> {
        None
    }
}
