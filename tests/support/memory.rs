//! Memory nodes whose links to the handles can have faults. Each test program uses a part of this
//! module.
#![allow(dead_code, unreachable_pub)]

use std::sync::Arc;

use palisade::node::spi::Env;
use palisade::test_util::TokioEnv;
use palisade::{MemoryNode, Redlock, RedlockBuilder};
use palisade_testing::fault::{Fault, FaultControl};

/// Memory nodes, each behind a fault wrapper. All handles of the cluster share these nodes.
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

    /// Returns the builder of a handle on all nodes.
    pub fn builder(&self) -> RedlockBuilder {
        self.builder_of(self.faults.len())
    }

    /// Returns the builder of a handle on the first `n` nodes.
    pub fn builder_of(&self, n: usize) -> RedlockBuilder {
        let minute = std::time::Duration::from_secs(60);
        let builder = Redlock::builder().max_ttl(minute);
        self.faults.iter().take(n).fold(builder, |b, f| b.node(f.clone()))
    }

    pub fn redlock(&self) -> Redlock {
        self.builder().build().unwrap()
    }
}

/// Memory nodes whose clocks follow tokio's clock.
pub struct Timed {
    pub env: Arc<dyn Env>,
    pub nodes: Vec<MemoryNode>,
}

impl Timed {
    pub fn new(n: usize) -> Self {
        let env: Arc<dyn Env> = Arc::new(TokioEnv::new());
        let node = |_| MemoryNode::builder().env(Arc::clone(&env)).build();
        Self { nodes: (0..n).map(node).collect(), env }
    }

    /// Returns the builder of a handle that has no node yet.
    pub fn settings(&self) -> RedlockBuilder {
        Redlock::builder().env(Arc::clone(&self.env))
    }

    /// Returns the builder of a handle on all nodes.
    pub fn builder(&self) -> RedlockBuilder {
        self.nodes.iter().fold(self.settings(), |b, node| b.node(node.clone()))
    }

    pub fn redlock(&self) -> Redlock {
        self.builder().build().unwrap()
    }

    /// Returns a handle on all nodes, and the fault controls of the links between the handle and
    /// the nodes.
    pub fn linked(&self) -> (Redlock, Vec<FaultControl>) {
        let fault = |node: &MemoryNode| Fault::new(node.clone()).env(Arc::clone(&self.env));
        let faults: Vec<_> = self.nodes.iter().map(fault).collect();
        let links = faults.iter().map(Fault::control).collect();
        let builder = faults.into_iter().fold(self.settings(), RedlockBuilder::node);
        (builder.build().unwrap(), links)
    }
}

/// Returns a handle on one node in virtual time, and the fault control of the link between them.
pub fn linked() -> (Redlock, FaultControl) {
    let (redlock, mut links) = Timed::new(1).linked();
    (redlock, links.remove(0))
}
