//! A warning about a lease whose ttl is shorter than a failover, once per node, and only if there
//! is no majority without that node.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::client::Core;
use crate::client::lease::Lease;
use crate::config::lasts;
use crate::node::NodeEvent;
use crate::quorum::majority;

#[derive(Debug)]
pub(crate) struct TtlWarning(Vec<AtomicBool>);

impl TtlWarning {
    pub(crate) fn new(n: usize) -> Self {
        // Then the others renew a lease during the failover of one node.
        let spared = n > majority(n);
        Self((0..n).map(|_| AtomicBool::new(spared)).collect())
    }
}

impl Core {
    /// Called before each renewal: the nodes' settings have been read by the first one, and a lease
    /// that ends before needs no warning.
    pub(crate) fn check_outlives(&self, lease: &Lease) {
        for (node, reported) in self.ttl_warning.0.iter().enumerate() {
            if reported.load(Ordering::Relaxed) {
                continue;
            }
            let Some(times) = self.queues[node].node().failover() else { continue };
            let (ttl, drift) = (lease.ttl, self.config.drift);
            if lasts(ttl, drift) >= times.needed() || reported.swap(true, Ordering::Relaxed) {
                continue;
            }
            let event = NodeEvent::TtlTooShort {
                ttl,
                lasts: lasts(ttl, drift),
                needed: times.needed(),
                down_after: times.down_after,
                window: times.window,
                enough: times.shortest_ttl(drift),
            };
            event.log(&self.names[node], &self.commands);
            self.tell(node, event);
        }
    }
}
