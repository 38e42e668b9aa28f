//! Nodes that several handles use, and what these handles see.

use std::time::Duration;

use palisade::node::RedisNode;
use palisade::{AcquireError, MemoryNode, Redlock, RedlockBuilder, RetryPolicy, TryAcquire};
use tokio::time::{sleep, timeout};

use crate::support::memory::Timed;
use crate::support::server::Server;

/// Nodes that several handles use.
pub(crate) enum Nodes {
    Memory(Vec<MemoryNode>),
    Redis(Vec<Server>),
}

impl Nodes {
    pub(crate) fn memory(n: usize) -> Self {
        Self::Memory((0..n).map(|_| MemoryNode::new()).collect())
    }

    pub(crate) fn redis(n: usize) -> Self {
        Self::Redis((0..n).map(|_| Server::start(&[])).collect())
    }

    /// Returns memory nodes and servers, in groups of different sizes.
    pub(crate) fn all() -> Vec<Self> {
        vec![Self::memory(1), Self::memory(3), Self::memory(5), Self::redis(1), Self::redis(3)]
    }

    pub(crate) fn builder(&self) -> RedlockBuilder {
        match self {
            Self::Memory(all) => all.iter().fold(Redlock::builder(), |b, n| b.node(n.clone())),
            Self::Redis(all) => all.iter().fold(Redlock::builder(), |b, server| {
                let node = RedisNode::builder(server.url()).trust_fresh(true);
                b.node(node.build().unwrap())
            }),
        }
    }

    pub(crate) fn handle(&self) -> Redlock {
        self.builder().build().unwrap()
    }
}

/// Returns handles of memory nodes whose leases pass in the time of tokio's timers, which a test
/// may pause.
pub(crate) fn in_memory(n: usize) -> impl Fn() -> Redlock {
    let nodes = Timed::new(n);
    move || nodes.redlock()
}

pub(crate) fn is_taken<G>(tried: &Result<TryAcquire<G>, AcquireError>) -> bool {
    matches!(tried, Ok(TryAcquire::Taken(_)))
}

pub(crate) async fn is_free(redlock: &Redlock, name: &str) -> bool {
    match redlock.mutex(name).build().unwrap().try_acquire().await.unwrap() {
        TryAcquire::Acquired(guard) => guard.release().await.is_ok(),
        TryAcquire::Taken(_) => false,
    }
}

/// Waits until the lock of this name is free. The limit is shorter than the ttl of 20 s in the
/// tests that wait.
pub(crate) async fn becomes_free(redlock: &Redlock, name: &str) {
    let wait = async {
        while !is_free(redlock, name).await {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(Duration::from_secs(10), wait).await.unwrap_or_else(|_| panic!("{name} leaked"));
}

pub(crate) fn seldom() -> RetryPolicy {
    let pause = Duration::from_secs(20);
    RetryPolicy::exponential(pause, pause, 1.0).unwrap()
}
