//! Memory nodes behind bad networks. Each test program uses a part of this module.
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

/// Returns a handle on one node in virtual time, and the faults between them.
pub fn linked() -> (Redlock, FaultControl) {
    let env: Arc<dyn Env> = Arc::new(TokioEnv::new());
    let node = MemoryNode::builder().env(Arc::clone(&env)).build();
    let fault = Fault::new(node).env(Arc::clone(&env));
    let link = fault.control();
    (Redlock::builder().node(fault).env(env).build().unwrap(), link)
}
