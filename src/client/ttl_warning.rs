//! A warning about a lease whose ttl is shorter than a failover, if no majority spares the node.

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
        let spared = n > majority(n);
        Self((0..n).map(|_| AtomicBool::new(spared)).collect())
    }
}

impl Core {
    /// Before each renewal: the first has read the nodes' settings.
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
