//! Nodes, clocks and random numbers for the election tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use palisade::Moment;
use palisade::node::spi::Env;
use palisade::{Election, MemoryNode, Redlock};
use palisade_testing::fault::{Fault, FaultControl, Odds};
use tokio::time::Instant;

pub(crate) const TTL: Duration = Duration::from_secs(3);
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// An environment with tokio's clock and seeded random numbers.
#[derive(Debug)]
struct Virtual {
    start: Instant,
    dice: AtomicU64,
}

impl Env for Virtual {
    fn now(&self) -> Moment {
        Moment::from_nanos(1) + self.start.elapsed()
    }
    fn wall_micros(&self) -> u64 {
        1_800_000_000_000_000 + self.start.elapsed().as_micros() as u64
    }
    fn random(&self) -> u128 {
        let half = || {
            let mut z = self.dice.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            u128::from(z ^ (z >> 31))
        };
        half() << 64 | half()
    }
}

/// Memory nodes shared by several handles. Each handle represents one process.
pub(crate) struct World {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) nodes: Vec<MemoryNode>,
}

impl World {
    pub(crate) fn new(n: usize) -> Self {
        let dice = AtomicU64::new(n as u64);
        let env: Arc<dyn Env> = Arc::new(Virtual { start: Instant::now(), dice });
        let node = |_| MemoryNode::builder().env(Arc::clone(&env)).build();
        Self { nodes: (0..n).map(node).collect(), env }
    }

    /// Returns a new handle and the fault controls of its nodes.
    pub(crate) fn process(&self) -> (Redlock, Vec<FaultControl>) {
        let mut builder = Redlock::builder().ttl(TTL).max_ttl(2 * TTL).env(Arc::clone(&self.env));
        let mut links = Vec::new();
        for node in &self.nodes {
            let fault = Fault::new(node.clone()).env(Arc::clone(&self.env));
            links.push(fault.control());
            builder = builder.node(fault);
        }
        (builder.build().unwrap(), links)
    }

    pub(crate) fn election(&self) -> Election {
        self.process().0.election("e").build().unwrap()
    }
}

/// Returns a candidate whose requests to the nodes are delayed, reordered, and sometimes
/// duplicated.
pub(crate) fn shaky(world: &World, seed: u64) -> Election {
    let (redlock, links) = world.process();
    let max_delay = Duration::from_millis(8);
    let odds = Odds { delay: 0.7, duplicate: 0.1, max_delay, ..Odds::default() };
    for (i, link) in links.iter().enumerate() {
        link.dice(10 * seed + i as u64, odds);
    }
    redlock.election("e").build().unwrap()
}
