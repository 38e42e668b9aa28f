//! State of a group, for operators.

use std::sync::Arc;
use std::time::Duration;

use crate::error::NodeError;
use crate::sentinel::min_replicas::MinReplicasFacts;

/// A snapshot of the knowledge of a [`SentinelNode`](super::SentinelNode).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SentinelStatus {
    /// The group's name.
    pub name: Arc<str>,
    /// `host:port` of the master that a majority of Sentinels named last.
    pub master: Option<String>,
    /// Configuration epoch under which it was named; grows with every failover.
    pub epoch: Option<u64>,
    /// `run_id` of the master that was connected last.
    pub run_id: Option<Arc<str>>,
    /// `master_replid` of that master: the identity of its data history.
    pub replication_id: Option<Arc<str>>,
    /// Number of Sentinels that are asked: the configured and the learned ones.
    pub sentinels_known: usize,
    /// Number of Sentinels that answered the last time.
    pub sentinels_reachable: usize,
    /// The min-replicas settings of that master.
    pub min_replicas: Option<MinReplicasFacts>,
    /// L: time for which a replaced master may still accept writes, as the quarantine counts it.
    pub failover_window: Option<Duration>,
    /// Reason for which no master is agreed on, the master may not vote, or it cannot be reached.
    /// `None`: no fault, or no request yet.
    pub last_error: Option<NodeError>,
}
