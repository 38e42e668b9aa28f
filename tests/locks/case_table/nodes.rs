//! Five nodes of one kind, and the faults of the first node.

use palisade::{RedisNode, Redlock, SentinelNode};
use palisade_ops::{Deployment, init};

use super::{Fault, NODE_DEADLINE, TTL};
use crate::support::group::Groups;
use crate::support::memory::Cluster;
use crate::support::server::Server;

const NODES: usize = 5;

/// Nodes that several handles (clients) share.
pub(super) enum Nodes {
    Memory(Cluster),
    Servers(Vec<Server>),
    Groups(Groups),
}

impl Nodes {
    pub(super) fn memory() -> Self {
        Self::Memory(Cluster::new(NODES))
    }

    pub(super) async fn servers() -> Self {
        let all: Vec<_> = (0..NODES).map(|_| Server::start(&[])).collect();
        let deployment = all.iter().map(Server::url).fold(Deployment::new(), Deployment::node);
        assert!(init(&deployment, "").await.expect("they answer").is_done());
        Self::Servers(all)
    }

    pub(super) fn groups() -> Self {
        // The Sentinels replace a frozen master in about the time of a lease.
        Self::Groups(Groups::up_with(NODES, 6_000, 1, &[]))
    }

    /// Returns a handle on the first `n` nodes.
    pub(super) fn handle(&self, n: usize) -> Redlock {
        let builder = match self {
            Self::Memory(cluster) => cluster.builder_of(n),
            Self::Servers(all) => all.iter().take(n).fold(Redlock::builder(), |builder, server| {
                builder.node(RedisNode::new(server.url()).expect("a url"))
            }),
            Self::Groups(groups) => (0..n).fold(Redlock::builder(), |builder, group| {
                let node = SentinelNode::builder(groups.name(group), groups.sentinels(group));
                let node = node.sentinel_deadline(NODE_DEADLINE).build();
                builder.node(node.expect("addresses"))
            }),
        };
        // The handles (clients) with one, three and five nodes share nodes, and their tests use
        // equal names of locks. The prefix keeps the locks of handles with different numbers of
        // nodes apart.
        let builder = builder.prefix(format!("{n}:")).ttl(TTL).max_ttl(TTL);
        builder.node_deadline(NODE_DEADLINE).build().expect("settings fit together")
    }

    pub(super) fn break_first(&mut self, fault: Fault) {
        match (self, fault) {
            (Self::Memory(cluster), Fault::Frozen) => cluster.controls[0].freeze(),
            (Self::Memory(cluster), Fault::Restarted) => cluster.nodes[0].restart_empty(),
            (Self::Servers(all), Fault::Frozen) => all[0].freeze(),
            (Self::Servers(all), Fault::Restarted) => all[0].restart(),
            (Self::Groups(groups), Fault::Frozen) => drop(groups.break_("freeze", 0, &[])),
            (Self::Groups(groups), Fault::Restarted) => {
                drop(groups.break_("restart", 0, &["--server", "master"]));
            }
        }
    }

    /// Ends the fault of the first node. A restarted node needs no action, because its quarantine
    /// (the time without grants) ends by itself.
    pub(super) fn mend_first(&self, fault: Fault) {
        match (self, fault) {
            (_, Fault::Restarted) => {}
            (Self::Memory(cluster), Fault::Frozen) => cluster.controls[0].thaw(),
            (Self::Servers(all), Fault::Frozen) => all[0].resume(),
            (Self::Groups(groups), Fault::Frozen) => drop(groups.break_("resume", 0, &[])),
        }
    }
}
