//! Three handles (clients) on the same nodes, for tests in which a lock gets a new owner.

use std::time::Duration;

use futures_util::future::join_all;
use palisade::node::{MemoryNode, RedisNode};
use palisade::{Mutex, Redlock};
use palisade_testing::fault::{Fault, Step};

use crate::support::server::Server;

pub(crate) const SHORT: Duration = Duration::from_millis(900);

/// Handles on the same nodes: `first` is the process that has the lock, `second` is the process
/// that gets it, and `others` stands for all other processes. Faults can be set for the requests
/// and replies of `second`.
pub(crate) struct Trio {
    pub(crate) first: Redlock,
    pub(crate) second: Redlock,
    pub(crate) others: Redlock,
    pub(crate) network: Vec<Fault>,
    /// Servers, kept running until this value is dropped.
    _servers: Vec<Server>,
}

impl Trio {
    pub(crate) fn of(
        ttl: Duration,
        node: impl Fn(usize) -> Fault,
        n: usize,
        servers: Vec<Server>,
    ) -> Self {
        let handle = |nodes: &[Fault]| {
            let builder = Redlock::builder().ttl(ttl).max_ttl(2 * ttl).clock_error(ttl / 20);
            let builder = builder.node_deadline(2 * SHORT);
            nodes.iter().fold(builder, |all, node| all.node(node.clone())).build().unwrap()
        };
        let nodes = || (0..n).map(&node).collect::<Vec<_>>();
        let network = nodes();
        let [first, second, others] = [&nodes(), &network, &nodes()].map(|nodes| handle(nodes));
        Self { first, second, others, network, _servers: servers }
    }

    pub(crate) fn memory(ttl: Duration, n: usize) -> Self {
        let nodes: Vec<_> = (0..n).map(|_| MemoryNode::new()).collect();
        Self::of(ttl, |i| Fault::new(nodes[i].clone()), n, Vec::new())
    }

    pub(crate) fn redis(ttl: Duration, n: usize) -> Self {
        let servers: Vec<_> = (0..n).map(|_| Server::start(&[])).collect();
        let urls: Vec<_> = servers.iter().map(Server::url).collect();
        let node = |i: usize| RedisNode::builder(&urls[i]).trust_fresh(true).build().unwrap();
        Self::of(ttl, |i| Fault::new(node(i)), n, servers)
    }

    /// Runs the test on each kind of nodes, concurrently.
    pub(crate) async fn each(ttl: Duration, test: impl AsyncFn(Self)) {
        let memory = [1, 3, 5].map(|n| Self::memory(ttl, n));
        let redis = [1, 3].map(|n| Self::redis(ttl, n));
        join_all(memory.into_iter().chain(redis).map(|trio| test(trio))).await;
    }

    /// Sets the faults of the next requests of `second`, one `Step` for each request to each node.
    pub(crate) fn script(&self, steps: &[Step]) {
        for node in &self.network {
            node.control().script(steps.iter().copied());
        }
    }
}

/// Returns the mutex that these tests use.
pub(crate) fn job(redlock: &Redlock) -> Mutex {
    redlock.mutex("job").build().unwrap()
}
