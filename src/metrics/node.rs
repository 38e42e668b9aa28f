//! Metrics of one node that a program can read.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::NodeFault;

/// Counters of one handle for one node, since the handle was made. They are read one after the
/// other, so one of them may already contain a batch that another does not contain yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeMetrics {
    /// Name of the node.
    pub name: Arc<str>,
    /// Batches that were sent and have ended, with an answer or a fault.
    pub batches: u64,
    /// Requests in all batches that have ended.
    pub ops: u64,
    /// Acquires and claims that the node granted.
    pub grants: u64,
    /// Answers with which the node refused a request by the rules: another owner holds the lock or
    /// runs the claim, the node is in quarantine, the caller is not the owner, or another request
    /// used the key.
    pub refusals: u64,
    /// Requests to which the node gave no answer that counts, by kind of fault. Kinds that never
    /// occurred are not listed.
    pub faults: BTreeMap<NodeFault, u64>,
    /// Data histories of the node that this handle has seen: 1 at first, and one more after each
    /// restart of the server, promotion of a replica or loss of data.
    pub histories: u64,
    /// Quarantines of the node that this handle has seen.
    pub quarantines: u64,
    /// Claims of idempotency keys that the node granted although it may have forgotten an earlier
    /// claim, because it is new or lost data within the retention.
    pub keys_forgotten: u64,
    /// Number of renewals of this handle's leases that the node accepted while it was in quarantine
    /// (re-assertions).
    pub reassertions: u64,
    /// Failovers, as far as they can be seen: number of times that a different server answered for
    /// the node than before.
    pub switches: u64,
    /// Waits until replicas have confirmed a batch, for a durability level. All requests of a batch
    /// that need replicas share one wait.
    pub barriers: u64,
    /// Waits for replicas in which too few of them confirmed in time, so that the grants of the
    /// batch were undone.
    pub barriers_failed: u64,
    /// Times that the node [lost data, or may have lost some](crate::node::Loss), while this handle
    /// used it.
    pub losses: u64,
}

impl NodeMetrics {
    /// Returns the number of all faults together.
    pub fn faults_total(&self) -> u64 {
        self.faults.values().sum()
    }
}
