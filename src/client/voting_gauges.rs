//! Gauges (metrics) that show which nodes of a handle vote at present. No decision of the library
//! depends on them.

use std::sync::Arc;

use crate::metrics::{Gauge, NODE, READY};
use crate::quorum::majority::majority;
use crate::sync::SyncMutex;

/// Gauges of a handle's nodes. A gauge shows if the last answer of its node counted as a vote.
pub(crate) struct VotingGauges {
    voting: SyncMutex<Vec<Option<bool>>>,
    nodes: Vec<Gauge>,
    ready: Gauge,
}

impl VotingGauges {
    pub(crate) fn new(names: &[Arc<str>]) -> Self {
        // The gauges do not start at 0. An alert would report 0 as a fault, although the program
        // may use the handle only later.
        let unknown = |gauge: Gauge| {
            gauge.set(f64::NAN);
            gauge
        };
        let node = |name: &Arc<str>| unknown(Gauge::new(&NODE.voting, &[("node", name)]));
        Self {
            voting: SyncMutex::new(vec![None; names.len()]),
            nodes: names.iter().map(node).collect(),
            ready: unknown(Gauge::new(&READY, &[])),
        }
    }

    pub(crate) fn set(&self, node: usize, votes: bool) {
        let mut voting = self.voting.lock();
        if voting[node].replace(votes) == Some(votes) {
            return;
        }
        self.nodes[node].set(if votes { 1.0 } else { 0.0 });
        let is_ready =
            voting.iter().filter(|votes| **votes == Some(true)).count() >= majority(voting.len());
        self.ready.set(if is_ready { 1.0 } else { 0.0 });
    }
}
