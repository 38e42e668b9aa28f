//! Counters of the requests to one node, and the gauges of the nodes that vote.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::error::{NodeError, NodeFault};
use crate::metrics::{Gauge, Histogram, NODE, NodeMetrics, READY, Tally};
use crate::op::{Loss, Reply};
use crate::quorum::majority;
use crate::sync::SyncMutex;

macro_rules! tallies {
    ($($name:ident)*) => {
        #[derive(Debug)]
        pub(crate) struct Tallies {
            $(pub(crate) $name: Tally,)*
        }

        impl Tallies {
            fn new(node: &str) -> Self {
                Self { $($name: Tally::new(&NODE.$name, &[("node", node)]),)* }
            }

            fn read(&self, name: Arc<str>, faults: BTreeMap<NodeFault, u64>) -> NodeMetrics {
                NodeMetrics { name, faults, $($name: self.$name.get(),)* }
            }
        }
    };
}

tallies! {
    batches ops grants refusals reassertions histories quarantines keys_forgotten switches barriers
    barriers_failed logins_failed losses
}

#[derive(Debug)]
pub(crate) struct Counters {
    node: Arc<str>,
    pub(crate) tallies: Tallies,
    request: Histogram,
    loss: Gauge,
    quarantine_ends: Gauge,
    data: SyncMutex<Arc<[Loss]>>,
    pub(crate) refuted: AtomicBool,
    faults: SyncMutex<BTreeMap<NodeFault, Tally>>,
}

#[derive(Debug, Default)]
pub(crate) struct Count {
    ops: u64,
    grants: u64,
    refusals: u64,
    reassertions: u64,
    keys_forgotten: u64,
    faults: BTreeMap<NodeFault, u64>,
}

impl Count {
    pub(crate) fn count(&mut self, reply: &Result<Reply, NodeError>, reasserts: bool) {
        self.ops += 1;
        if let Ok(Reply::Claimed { unsure, .. }) = reply {
            self.keys_forgotten += u64::from(!unsure.is_zero());
        }
        match reply {
            Ok(Reply::Granted { .. } | Reply::Permit { .. } | Reply::Claimed { .. }) => {
                self.grants += 1;
            }
            Ok(
                Reply::Held { .. }
                | Reply::Queued { .. }
                | Reply::Quarantined { .. }
                | Reply::NotOwner
                | Reply::InFlight { .. }
                | Reply::Mismatch,
            ) => self.refusals += 1,
            Ok(Reply::Done) if reasserts => self.reassertions += 1,
            Ok(_) => {}
            Err(e) => *self.faults.entry(e.fault()).or_default() += 1,
        }
    }

    pub(crate) fn reassertions(&self) -> u64 {
        self.reassertions
    }
}

impl Counters {
    pub(crate) fn new(node: Arc<str>) -> Self {
        Self {
            tallies: Tallies::new(&node),
            request: Histogram::new(&NODE.request, &[("node", &node)]),
            loss: Gauge::new(&NODE.loss, &[("node", &node)]),
            quarantine_ends: Gauge::new(&NODE.quarantine_ends, &[("node", &node)]),
            data: SyncMutex::new([].into()),
            refuted: AtomicBool::new(false),
            faults: SyncMutex::default(),
            node,
        }
    }

    pub(crate) fn add(&self, count: Count, took: Duration) {
        self.request.record(took.as_secs_f64());
        self.tallies.batches.add(1);
        self.tallies.ops.add(count.ops);
        self.tallies.grants.add(count.grants);
        self.tallies.refusals.add(count.refusals);
        self.tallies.reassertions.add(count.reassertions);
        self.tallies.keys_forgotten.add(count.keys_forgotten);
        for (fault, n) in count.faults {
            self.fault(fault, n);
        }
    }

    fn fault(&self, fault: NodeFault, n: u64) {
        let mut faults = self.faults.lock();
        let new = || Tally::new(&NODE.faults, &[("node", &self.node), ("fault", &word(fault))]);
        faults.entry(fault).or_insert_with(new).add(n);
    }

    pub(crate) fn count_refused(&self, fault: NodeFault) {
        self.fault(fault, 1);
    }

    /// In µs since 1970, by the node's clock.
    pub(crate) fn set_quarantine_end(&self, micros: u64) {
        self.quarantine_ends.set(Duration::from_micros(micros).as_secs_f64());
    }

    pub(crate) fn set_losses(&self, losses: &Arc<[Loss]>, new: bool) {
        self.tallies.losses.add(u64::from(new));
        *self.data.lock() = Arc::clone(losses);
    }

    pub(crate) fn set_concerning(&self, loss: Option<Loss>) {
        let seconds = |loss: Loss| loss.length().map_or(f64::INFINITY, |d| d.as_secs_f64());
        self.loss.set(loss.map_or(0.0, seconds));
    }

    pub(crate) fn losses(&self) -> Arc<[Loss]> {
        Arc::clone(&self.data.lock())
    }

    pub(crate) fn count_barrier(&self, confirmed: bool) {
        self.tallies.barriers.add(1);
        self.tallies.barriers_failed.add(u64::from(!confirmed));
    }

    pub(crate) fn snapshot(&self) -> NodeMetrics {
        let faults = self.faults.lock();
        let faults = faults.iter().map(|(fault, tally)| (*fault, tally.get())).collect();
        self.tallies.read(Arc::clone(&self.node), faults)
    }
}

fn word(fault: NodeFault) -> String {
    let mut word = String::new();
    for c in format!("{fault:?}").chars() {
        if c.is_uppercase() && !word.is_empty() {
            word.push('_');
        }
        word.extend(c.to_lowercase());
    }
    word
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_counted_by_what_was_said() {
        let counters = Counters::new("a".into());
        let mut count = Count::default();
        let timeout = NodeError::maybe_executed(NodeFault::Timeout, "");
        for (reply, reasserts) in [
            (Ok(Reply::Granted { fence: 1 }), false),
            (Ok(Reply::Held { remaining: None, foreign: false }), false),
            (Ok(Reply::Done), false),
            (Ok(Reply::Done), true),
            (Ok(Reply::NotOwner), true),
            (Ok(Reply::Absent), false),
            (Err(timeout.clone()), true),
            (Err(timeout), false),
        ] {
            count.count(&reply, reasserts);
        }
        counters.add(count, Duration::ZERO);
        let m = counters.snapshot();
        assert_eq!((m.batches, m.ops, m.grants, m.refusals, m.reassertions), (1, 8, 1, 2, 1));
        assert_eq!(m.faults, BTreeMap::from([(NodeFault::Timeout, 2)]));
        assert_eq!(m.faults_total(), 2);
        assert_eq!(word(NodeFault::MinReplicasMissing), "min_replicas_missing");
    }
}
