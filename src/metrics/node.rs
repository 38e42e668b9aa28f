//! Metrics of one node, for programs.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::NodeFault;

/// Counters of one [handle](crate::Redlock) for one node, since the handle was made. The counters
/// are read one after the other, so a batch may be in one counter and not yet in another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeMetrics {
    /// Name of the node.
    pub name: Arc<str>,
    /// Batches that were sent and have ended with a reply or a fault.
    pub batches: u64,
    /// Requests in all ended batches.
    pub ops: u64,
    /// Acquires and claims that the node granted.
    pub grants: u64,
    /// Requests that the node refused by the rules. For example another owner holds the lock or
    /// runs the claim, the node is in quarantine, the caller is not the owner, or another request
    /// used the key.
    pub refusals: u64,
    /// Requests that ended with a fault and not with a vote, by kind of fault. A kind without
    /// faults is not in the map.
    pub faults: BTreeMap<NodeFault, u64>,
    /// Number of data histories of the node while this handle used it. It is 1 at first, and one
    /// more after each restart of the server, promotion of a replica or loss of data.
    pub histories: u64,
    /// Number of quarantines of the node while this handle used it.
    pub quarantines: u64,
    /// Claims of idempotency keys that the node granted although it may have lost an earlier claim
    /// of the key, because the node is new or lost data within the retention.
    pub keys_forgotten: u64,
    /// Renewals of this handle's leases that the node accepted during a quarantine, a time in which
    /// it grants nothing new.
    pub reassertions: u64,
    /// Failovers: changes of the server that answers for the node.
    pub switches: u64,
    /// Waits for replicas after a batch, which a durability level required. All requests of a batch
    /// share one wait.
    pub barriers: u64,
    /// Waits for replicas that failed: too few replicas confirmed in time, and the grants of the
    /// batch were undone.
    pub barriers_failed: u64,
    /// Failures of the node's providers of credentials, and answers that a server refused; see
    /// [`LoginFailed`](crate::node::NodeEvent::LoginFailed).
    pub logins_failed: u64,
    /// Number of losses of the node's data while this handle used it, [certain or
    /// possible](crate::node::Loss).
    pub losses: u64,
}

impl NodeMetrics {
    /// Returns the total number of faults.
    pub fn faults_total(&self) -> u64 {
        self.faults.values().sum()
    }
}
