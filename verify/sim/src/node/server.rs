//! One server of a simulated node: a real `MemoryNode` with its data, a clock, and the current
//! role.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use palisade::Moment;
use palisade::error::NodeError;
use palisade::node::spi::Env;
use palisade::node::spi::{Batch, Replies};
use palisade::node::{
    MemoryNode,
    spi::{BoxFuture, LockNode},
};
use tokio::sync::oneshot;

use super::clock::ServerClock;
use super::halt::Halted;

/// A request that has arrived at a server.
pub(crate) struct Job {
    pub(crate) client: usize,
    pub(crate) batch: Batch,
    /// Deadline of the request in true time, in nanoseconds.
    pub(crate) due: u64,
    pub(crate) reply: Option<oneshot::Sender<Replies>>,
}

impl Job {
    pub(crate) fn refuse(self, error: &NodeError) {
        if let Some(reply) = self.reply {
            let _ = reply.send(Replies::fail(self.batch.ops.len(), error));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Master,
    /// The server was replaced, but has not detected it. It still grants until this time of its own
    /// clock, in nanoseconds.
    Former(u64),
    Replica,
}

pub(super) struct Server {
    pub(super) memory: MemoryNode,
    pub(super) clock: Arc<ServerClock>,
    /// Failover window of this server: the time for which it may still grant after it was replaced.
    pub(super) window: Duration,
    pub(super) role: Role,
    pub(super) frozen: u32,
    /// True if the server will stop inside its next batch. `halted` is the batch in which the
    /// server has stopped.
    pub(super) halts: bool,
    pub(super) halted: Option<Halted>,
    /// Requests that arrived while the server was frozen.
    pub(super) queue: VecDeque<Job>,
    /// Number of the server's data history.
    pub(super) life: u64,
    /// True if the server has granted a request in its present data history.
    pub(super) has_granted: bool,
    /// Largest failover window of the replaced servers. It is set when a new data history of this
    /// server begins, and cleared at the server's first reply in this history.
    pub(super) fresh: Option<Duration>,
    /// Set if the latest promotion of this server changed nothing here: until this time of its own
    /// clock, in nanoseconds, a client that asked the Sentinels only before this epoch may still be
    /// served.
    pub(super) stale: Option<(u64, u64)>,
    /// True time (µs) at which the server was last replaced. Its data lack later writes.
    pub(super) replaced: u64,
}

impl Server {
    /// Returns true if the server was replaced, has not detected it, and may still grant.
    pub(super) fn may_resume(&self) -> bool {
        let until = match self.role {
            Role::Former(until) => until,
            Role::Master | Role::Replica => return false,
        };
        self.has_granted && self.clock.wall() <= until
    }

    /// Creates empty data for a server that lost all its data. The server grants nothing at first
    /// (quarantine).
    pub(super) fn empty_memory(index: usize, clock: &Arc<ServerClock>) -> MemoryNode {
        let env = Arc::clone(clock) as Arc<dyn Env>;
        MemoryNode::builder().name(format!("node-{index}")).env(env).quarantined().build()
    }

    pub(super) fn new_memory(
        index: usize,
        clock: &Arc<ServerClock>,
        is_foreign: bool,
    ) -> MemoryNode {
        let env = Arc::clone(clock) as Arc<dyn Env>;
        let deployment = if is_foreign { 9 } else { 7 };
        let node = MemoryNode::builder().name(format!("node-{index}")).env(env);
        node.named(deployment, index as u64 + 1).build()
    }
}

pub(crate) fn at_once(memory: &MemoryNode, batch: Batch) -> Replies {
    now_or_never(memory.call(batch, Moment::from_nanos(u64::MAX)))
}

pub(super) fn now_or_never<T>(mut call: BoxFuture<'_, T>) -> T {
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("a node in memory never waits"),
    }
}
