//! One server of a node: a real `MemoryNode` as its data, a clock, and its current role.

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
    /// True time of the request's deadline, in nanoseconds.
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
    /// Replaced without having noticed; still grants until this time of its own clock (ns).
    Former(u64),
    Replica,
}

pub(super) struct Server {
    pub(super) memory: MemoryNode,
    pub(super) clock: Arc<ServerClock>,
    /// L of this server.
    pub(super) window: Duration,
    pub(super) role: Role,
    pub(super) frozen: u32,
    /// True if the server must stop inside its next batch; `halted` is the rest of a batch in which
    /// it has stopped.
    pub(super) halts: bool,
    pub(super) halted: Option<Halted>,
    /// Requests that arrived while the server was frozen.
    pub(super) queue: VecDeque<Job>,
    /// Number of the server's data history.
    pub(super) life: u64,
    /// True if the server has granted anything in this history.
    pub(super) has_granted: bool,
    /// Largest L of the replaced servers that may still grant. Set from the start of a later
    /// history until the server's first reply in it.
    pub(super) fresh: Option<Duration>,
}

impl Server {
    /// Returns true if the server was replaced, has not noticed it, and may still grant.
    pub(super) fn may_resume(&self) -> bool {
        let until = match self.role {
            Role::Former(until) => until,
            Role::Master | Role::Replica => return false,
        };
        self.has_granted && self.clock.wall() <= until
    }

    /// Creates the data of a server that lost everything and has to begin in quarantine.
    pub(super) fn empty_memory(index: usize, clock: &Arc<ServerClock>) -> MemoryNode {
        let env = Arc::clone(clock) as Arc<dyn Env>;
        MemoryNode::builder().name(format!("node-{index}")).env(env).quarantined().build()
    }

    /// Creates the data of a server that is known to be new.
    pub(super) fn new_memory(index: usize, clock: &Arc<ServerClock>) -> MemoryNode {
        let env = Arc::clone(clock) as Arc<dyn Env>;
        MemoryNode::builder().name(format!("node-{index}")).env(env).build()
    }
}

/// Calls a `MemoryNode`, which answers at the first poll.
pub(super) fn at_once(memory: &MemoryNode, batch: Batch) -> Replies {
    now_or_never(memory.call(batch, Moment::from_nanos(u64::MAX)))
}

pub(super) fn now_or_never<T>(mut call: BoxFuture<'_, T>) -> T {
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("a node in memory never waits"),
    }
}
