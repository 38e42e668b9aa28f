//! Three memory nodes in virtual time.

use std::sync::Arc;
use std::time::Duration;

use palisade::node::spi::Env;
use palisade::test_util::TokioEnv;
use palisade::{MemoryNode, Redlock, RedlockBuilder};
use palisade_testing::fault::{Fault, FaultControl};

pub(crate) const S: Duration = Duration::from_secs(1);

pub(crate) struct World {
    env: Arc<dyn Env>,
    faults: Vec<Fault>,
    pub(crate) links: Vec<FaultControl>,
}

impl World {
    pub(crate) fn new() -> Self {
        let env: Arc<dyn Env> = Arc::new(TokioEnv::new());
        let node = |n| MemoryNode::builder().name(format!("node-{n}")).env(Arc::clone(&env));
        let fault = |n| {
            let memory = node(n).build();
            let fault = Fault::new(memory.clone()).forget_by(move || memory.restart_empty());
            fault.env(Arc::clone(&env))
        };
        let faults: Vec<_> = (0..3).map(fault).collect();
        let links = faults.iter().map(Fault::control).collect();
        Self { env, faults, links }
    }

    pub(crate) fn builder(&self) -> RedlockBuilder {
        let builder = Redlock::builder().ttl(8 * S).env(Arc::clone(&self.env));
        self.faults.iter().fold(builder, |b, fault| b.node(fault.clone()))
    }

    pub(crate) fn redlock(&self) -> Redlock {
        self.builder().build().unwrap()
    }

    pub(crate) fn cut(&self, cut: bool) {
        for link in &self.links {
            if cut { link.cut() } else { link.heal() }
        }
    }
}
