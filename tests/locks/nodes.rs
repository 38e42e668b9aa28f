//! Nodes that several handles (clients) share, and helpers that observe the locks on them.

use std::time::Duration;

use palisade::node::RedisNode;
use palisade::{AcquireError, MemoryNode, Redlock, RedlockBuilder, RetryPolicy, TryAcquire};
use tokio::time::{sleep, timeout};

use crate::support::memory::Timed;
use crate::support::server::Server;

/// Time that a handle waits for a server's reply. It is long, so that a healthy server replies in
/// time on a slow machine, too.
const DEADLINE: Duration = Duration::from_millis(1_500);

/// Nodes that several handles (clients) of a test share.
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

    /// Returns the sets of nodes on which a test runs, one after the other: one, three and five
    /// memory nodes, and one and three servers.
    pub(crate) fn all() -> Vec<Self> {
        vec![Self::memory(1), Self::memory(3), Self::memory(5), Self::redis(1), Self::redis(3)]
    }

    pub(crate) fn builder(&self) -> RedlockBuilder {
        match self {
            Self::Memory(all) => all.iter().fold(Redlock::builder(), |b, n| b.node(n.clone())),
            Self::Redis(all) => all.iter().fold(Redlock::builder(), |b, server| {
                let node = RedisNode::builder(server.url()).trust_fresh(true);
                b.node(node.build().unwrap()).node_deadline(DEADLINE)
            }),
        }
    }

    pub(crate) fn handle(&self) -> Redlock {
        self.builder().build().unwrap()
    }
}

/// Returns a function that creates handles on the same memory nodes. The leases on these nodes
/// follow tokio's clock, which a test may pause.
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

/// Waits until the lock of this name is free, at most 10 s. A lock that was not released stays for
/// its ttl of 20 s, so this function fails for such a lock.
pub(crate) async fn becomes_free(redlock: &Redlock, name: &str) {
    let mutex = redlock.mutex(name).build().unwrap();
    let wait = async {
        loop {
            match mutex.try_acquire().await {
                Ok(TryAcquire::Acquired(guard)) => {
                    if guard.release().await.is_ok() {
                        break;
                    }
                }
                // On a busy machine a request may miss its deadline.
                Ok(TryAcquire::Taken(_)) | Err(AcquireError::NoQuorum(_)) => {}
                Err(e) => panic!("{name}: {e}"),
            }
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(Duration::from_secs(10), wait).await.unwrap_or_else(|_| panic!("{name} leaked"));
}

pub(crate) fn seldom() -> RetryPolicy {
    let pause = Duration::from_secs(60);
    RetryPolicy::exponential(pause, pause, 1.0).unwrap()
}
