//! A warning about a lease whose ttl is too short to outlive a failover of a node without which the
//! handle has no majority. It is given once per node.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::client::Core;
use crate::client::lease::Lease;
use crate::config::lasts;
use crate::node::NodeEvent;
use crate::quorum::majority::majority;

/// For each node, true if the warning was given or is not needed.
#[derive(Debug)]
pub(crate) struct TtlWarning(Vec<AtomicBool>);

impl TtlWarning {
    /// Makes the state of `n` nodes, none of which was warned about.
    pub(crate) fn new(n: usize) -> Self {
        // If the other nodes are a majority, they renew a lease during the failover of one node, so
        // the failover ends no lease.
        let spared = n > majority(n);
        Self((0..n).map(|_| AtomicBool::new(spared)).collect())
    }
}

impl Core {
    /// Warns about each node whose failover the lease would not outlive. It is called when the
    /// lease is about to be renewed: a lease that ends before need not outlive a failover, and by
    /// the first renewal the nodes know their settings.
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
