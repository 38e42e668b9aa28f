//! One server of a node: the real `MemoryNode` as its memory, a clock, and what it is at present.

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

/// A request that arrived.
pub(crate) struct Job {
    pub(crate) client: usize,
    pub(crate) batch: Batch,
    /// The true moment of its deadline, in nanoseconds.
    pub(crate) due: u64,
    pub(crate) reply: Option<oneshot::Sender<Replies>>,
}

impl Job {
    pub(super) fn refuse(self, error: &NodeError) {
        if let Some(reply) = self.reply {
            let _ = reply.send(Replies::fail(self.batch.ops.len(), error));
        }
    }
}

/// Role of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Master,
    /// Replaced without knowing it; grants until this moment of its own clock.
    Former(u64),
    Replica,
}

pub(super) struct Server {
    pub(super) memory: MemoryNode,
    pub(super) clock: Arc<ServerClock>,
    /// L.
    pub(super) window: Duration,
    pub(super) role: Role,
    pub(super) frozen: u32,
    /// It stops in the middle of the next batch; or has, and what is left of that.
    pub(super) halts: bool,
    pub(super) halted: Option<Halted>,
    /// Requests that arrived while it was frozen.
    pub(super) queue: VecDeque<Job>,
    /// The number of this data history.
    pub(super) life: u64,
    /// It has granted something in this history.
    pub(super) has_granted: bool,
    /// No client has used it in this history, and it is not the first: the largest L of any server
    /// that was replaced and may go on.
    pub(super) fresh: Option<Duration>,
}

impl Server {
    /// Whether it was replaced, does not know it, and grants.
    pub(super) fn may_go_on(&self) -> bool {
        let until = match self.role {
            Role::Former(until) => until,
            Role::Master | Role::Replica => return false,
        };
        self.has_granted && self.clock.wall() <= until
    }

    /// One that has no data and does not know why.
    pub(super) fn empty_memory(index: usize, clock: &Arc<ServerClock>) -> MemoryNode {
        let env = Arc::clone(clock) as Arc<dyn Env>;
        MemoryNode::builder().name(format!("node-{index}")).env(env).quarantined().build()
    }

    /// One that is known to be new.
    pub(super) fn new_memory(index: usize, clock: &Arc<ServerClock>) -> MemoryNode {
        let env = Arc::clone(clock) as Arc<dyn Env>;
        MemoryNode::builder().name(format!("node-{index}")).env(env).build()
    }
}

/// `MemoryNode` answers at the first poll.
pub(super) fn at_once(memory: &MemoryNode, batch: Batch) -> Replies {
    now_or_never(memory.call(batch, Moment::from_nanos(u64::MAX)))
}

pub(super) fn now_or_never<T>(mut call: BoxFuture<'_, T>) -> T {
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("a node in memory never waits"),
    }
}
