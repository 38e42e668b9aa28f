//! In-memory nodes behind bad networks, for tests of the layers above. Each uses a part of it.
#![allow(dead_code, unreachable_pub)]

use palisade::{MemoryNode, Redlock, RedlockBuilder};
use palisade_testing::fault::{Fault, FaultControl};

/// N in-memory nodes, each behind a fault wrapper. Every handle made here shares them.
pub struct Cluster {
    pub nodes: Vec<MemoryNode>,
    pub controls: Vec<FaultControl>,
    faults: Vec<Fault>,
}

impl Cluster {
    pub fn new(n: usize) -> Self {
        let nodes: Vec<_> = (0..n).map(|_| MemoryNode::new()).collect();
        let faults: Vec<_> = nodes.iter().map(|node| Fault::new(node.clone())).collect();
        let controls = faults.iter().map(Fault::control).collect();
        Self { nodes, controls, faults }
    }

    /// A builder with all nodes added.
    pub fn builder(&self) -> RedlockBuilder {
        let minute = std::time::Duration::from_secs(60);
        let builder = Redlock::builder().max_ttl(minute);
        self.faults.iter().fold(builder, |b, f| b.node(f.clone()))
    }

    pub fn redlock(&self) -> Redlock {
        self.builder().build().unwrap()
    }
}
