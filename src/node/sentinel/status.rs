//! State of a Sentinel group, for operators.

use std::sync::Arc;
use std::time::Duration;

use crate::error::NodeError;
use crate::node::min_replicas_rule::MinReplicasFacts;

/// Snapshot of what a [`SentinelNode`](super::SentinelNode) knows about its group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SentinelStatus {
    /// The group's name.
    pub name: Arc<str>,
    /// `host:port` of the master that a majority of Sentinels named last.
    pub master: Option<String>,
    /// Sentinel's configuration epoch under which that master was named; it grows with every
    /// failover.
    pub epoch: Option<u64>,
    /// `run_id` of the master that was connected last.
    pub run_id: Option<Arc<str>>,
    /// `master_replid` of the master that was connected last: the identity of its data history.
    pub replication_id: Option<Arc<str>>,
    /// Number of Sentinels that are asked: the configured and the learned ones.
    pub sentinels_known: usize,
    /// Number of Sentinels that answered when they were last asked.
    pub sentinels_reachable: usize,
    /// Min-replicas settings of the master that was connected last.
    pub min_replicas: Option<MinReplicasFacts>,
    /// L: time for which the master that was connected last may still accept writes once it is
    /// replaced.
    pub failover_window: Option<Duration>,
    /// The last error: the Sentinels agree on no master, the master may not vote, or it cannot be
    /// reached. `None`: no fault, or no request yet.
    pub last_error: Option<NodeError>,
}
