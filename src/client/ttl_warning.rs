//! Whether what is held outlives a failover of a node without which the handle has no majority; a
//! lease whose ttl is too short for that is reported once.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::client::Core;
use crate::client::lease::Lease;
use crate::config::lasts;
use crate::node::NodeEvent;
use crate::quorum::majority::majority;

/// Which nodes were reported.
#[derive(Debug)]
pub(crate) struct TtlWarning(Vec<AtomicBool>);

impl TtlWarning {
    /// For so many nodes.
    pub(crate) fn new(n: usize) -> Self {
        // While the others are a majority they renew, whatever becomes of one.
        let spared = n > majority(n);
        Self((0..n).map(|_| AtomicBool::new(spared)).collect())
    }
}

impl Core {
    /// Looks at a lease that is about to be renewed: one that ends before does not have to outlive
    /// anything, and by now the nodes know their settings.
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
            event.log(&self.names[node]);
            self.tell(node, event);
        }
    }
}
