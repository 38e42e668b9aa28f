//! What a lane counts. Once per batch, with relaxed atomics: nothing is decided by these numbers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{NodeError, NodeFault};
use crate::op::Reply;

/// What one handle counted at one node since the handle was made. The numbers are read one after
/// the other, so that two of them may be a batch apart.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeMetrics {
    /// The node's name.
    pub name: Arc<str>,
    /// Batches that were sent and came back, with an answer or a fault.
    pub batches: u64,
    /// Ops in them.
    pub ops: u64,
    /// Acquires and claims that the node said yes to.
    pub grants: u64,
    /// Answers that say no by the rules: held, in quarantine, in flight, not the owner's, another
    /// request's key.
    pub refusals: u64,
    /// Ops without an answer that counts, by kind of fault. Kinds that never came are not in it.
    pub faults: BTreeMap<NodeFault, u64>,
    /// Data histories that the node showed: 1 while nothing happened, one more with each restart,
    /// promotion or loss.
    pub histories: u64,
    /// Quarantines that were met.
    pub quarantines: u64,
    /// Claims of idempotency keys that the node granted although it may have forgotten an earlier
    /// one: it is new, or lost data within the retention.
    pub keys_forgotten: u64,
    /// Leases of this handle that were put back into a node in quarantine.
    pub reassertions: u64,
    /// How often another server answered than before (a failover), as far as the node knows.
    pub switches: u64,
    /// Waits for replicas, for a durability level; one for all ops of a batch that need it.
    pub barriers: u64,
    /// Those of them that too few replicas confirmed in time: what had been granted was undone.
    pub barriers_failed: u64,
}

impl NodeMetrics {
    /// All faults together.
    pub fn faults_total(&self) -> u64 {
        self.faults.values().sum()
    }
}

/// The counters of one lane.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    batches: AtomicU64,
    ops: AtomicU64,
    grants: AtomicU64,
    refusals: AtomicU64,
    reassertions: AtomicU64,
    histories: AtomicU64,
    quarantines: AtomicU64,
    keys_forgotten: AtomicU64,
    switches: AtomicU64,
    barriers: AtomicU64,
    barriers_failed: AtomicU64,
    /// Behind a lock: faults are not the hot path.
    faults: Mutex<BTreeMap<NodeFault, u64>>,
}

/// What one batch adds.
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
    pub(crate) fn reply(&mut self, reply: &Result<Reply, NodeError>, reasserts: bool) {
        self.ops += 1;
        if let Ok(Reply::Claimed { unsure, .. }) = reply {
            self.keys_forgotten += u64::from(!unsure.is_zero());
        }
        match reply {
            Ok(Reply::Granted { .. } | Reply::Claimed { .. }) => self.grants += 1,
            Ok(
                Reply::Held { .. }
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
    pub(crate) fn add(&self, count: Count) {
        let add = |to: &AtomicU64, n: u64| {
            if n > 0 {
                to.fetch_add(n, Ordering::Relaxed);
            }
        };
        add(&self.batches, 1);
        add(&self.ops, count.ops);
        add(&self.grants, count.grants);
        add(&self.refusals, count.refusals);
        add(&self.reassertions, count.reassertions);
        add(&self.keys_forgotten, count.keys_forgotten);
        if !count.faults.is_empty() {
            let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
            for (fault, n) in count.faults {
                *faults.entry(fault).or_default() += n;
            }
        }
    }

    /// A request was refused before it was sent.
    pub(crate) fn refuse(&self, fault: NodeFault) {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        *faults.entry(fault).or_default() += 1;
    }

    pub(crate) fn history_id(&self) {
        self.histories.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn quarantine(&self) {
        self.quarantines.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn switched(&self) {
        self.switches.fetch_add(1, Ordering::Relaxed);
    }

    /// A wait for replicas is over.
    pub(crate) fn waited(&self, confirmed: bool) {
        self.barriers.fetch_add(1, Ordering::Relaxed);
        if !confirmed {
            self.barriers_failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn snapshot(&self, name: Arc<str>) -> NodeMetrics {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        NodeMetrics {
            name,
            batches: read(&self.batches),
            ops: read(&self.ops),
            grants: read(&self.grants),
            refusals: read(&self.refusals),
            faults: self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            histories: read(&self.histories),
            quarantines: read(&self.quarantines),
            keys_forgotten: read(&self.keys_forgotten),
            reassertions: read(&self.reassertions),
            switches: read(&self.switches),
            barriers: read(&self.barriers),
            barriers_failed: read(&self.barriers_failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_counted_by_what_was_said() {
        let counters = Counters::default();
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
            count.reply(&reply, reasserts);
        }
        counters.add(count);
        let m = counters.snapshot("a".into());
        assert_eq!((m.batches, m.ops, m.grants, m.refusals, m.reassertions), (1, 8, 1, 2, 1));
        assert_eq!(m.faults, BTreeMap::from([(NodeFault::Timeout, 2)]));
        assert_eq!(m.faults_total(), 2);
    }
}
