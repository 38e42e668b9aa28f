//! The numbers of one node that a program can read.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::NodeFault;

/// Counts of one handle at one node since the handle was made. The numbers are read one after the
/// other, so that two of them may differ by a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeMetrics {
    /// Name of the node.
    pub name: Arc<str>,
    /// Batches that were sent and have ended, with an answer or a fault.
    pub batches: u64,
    /// Ops in these batches.
    pub ops: u64,
    /// Acquires and claims that the node granted.
    pub grants: u64,
    /// Answers that refuse by the rules: held, in quarantine, in flight, not the owner's, another
    /// request's key.
    pub refusals: u64,
    /// Ops without an answer that counts, by kind of fault. Kinds that never occurred are not
    /// listed.
    pub faults: BTreeMap<NodeFault, u64>,
    /// Data histories that the node showed: 1 while nothing happened, one more with each restart,
    /// promotion or loss.
    pub histories: u64,
    /// Quarantines that were seen.
    pub quarantines: u64,
    /// Claims of idempotency keys that the node granted although it may have forgotten an earlier
    /// one: it is new, or lost data within the retention.
    pub keys_forgotten: u64,
    /// Leases of this handle that were re-asserted on the node in a quarantine.
    pub reassertions: u64,
    /// Number of times that another server answered than before (a failover), as far as the node
    /// knows.
    pub switches: u64,
    /// Waits for replicas, for a durability level; one for all ops of a batch that need it.
    pub barriers: u64,
    /// Waits in which too few replicas confirmed in time: what had been granted was undone.
    pub barriers_failed: u64,
    /// Losses of data that the node [proved or admitted](crate::node::Loss) while this handle used
    /// it.
    pub losses: u64,
}

impl NodeMetrics {
    /// Returns the number of all faults together.
    pub fn faults_total(&self) -> u64 {
        self.faults.values().sum()
    }
}
