//! A node whose requests go through a function of the test.
#![allow(dead_code, unreachable_pub)]

use std::sync::Arc;

use palisade::error::{NodeError, NodeFault};
use palisade::node::spi::{BarrierPoint, Batch, BoxFuture, LockNode, NodeSignal, Replies};
use palisade::{Durability, MemoryNode, Moment};
use tokio::sync::broadcast;

type Call<N> = dyn Fn(N, Batch, Moment) -> BoxFuture<'static, Replies> + Send + Sync;
type Barrier = dyn Fn(Durability) -> BoxFuture<'static, Result<u32, NodeError>> + Send + Sync;

/// A node whose batches are answered by a function of the test. A second function answers its
/// barriers, if the test sets one.
#[derive(Clone)]
pub struct Wrap<N = MemoryNode> {
    node: N,
    call: Arc<Call<N>>,
    barrier: Option<Arc<Barrier>>,
}

impl<N: LockNode + Clone> Wrap<N> {
    pub fn new<F: Future<Output = Replies> + Send + 'static>(
        node: N,
        call: impl Fn(N, Batch, Moment) -> F + Send + Sync + 'static,
    ) -> Self {
        let call = move |node, batch, deadline| -> BoxFuture<'static, _> {
            Box::pin(call(node, batch, deadline))
        };
        Self { node, call: Arc::new(call), barrier: None }
    }

    pub fn barrier<F: Future<Output = Result<u32, NodeError>> + Send + 'static>(
        mut self,
        barrier: impl Fn(Durability) -> F + Send + Sync + 'static,
    ) -> Self {
        self.barrier = Some(Arc::new(move |level| Box::pin(barrier(level))));
        self
    }
}

impl<N: LockNode + Clone> LockNode for Wrap<N> {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        (self.call)(self.node.clone(), batch, deadline)
    }

    fn barrier(
        &self,
        after: BarrierPoint,
        level: Durability,
        deadline: Moment,
    ) -> BoxFuture<'_, Result<u32, NodeError>> {
        match &self.barrier {
            Some(barrier) => barrier(level),
            None => self.node.barrier(after, level, deadline),
        }
    }

    fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.node.events()
    }

    fn name(&self) -> Arc<str> {
        self.node.name()
    }

    fn server(&self) -> Option<Arc<str>> {
        self.node.server()
    }
}

/// Returns the answer of a node that has not executed the batch.
pub fn refused(batch: &Batch, fault: NodeFault) -> Replies {
    Replies::fail(batch.ops.len(), &NodeError::not_executed(fault, "refused by the test"))
}
