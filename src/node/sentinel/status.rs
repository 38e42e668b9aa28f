//! State of a Sentinel group, for operators.

use std::sync::Arc;
use std::time::Duration;

use crate::error::NodeError;
use crate::node::min_replicas_rule::MinReplicasFacts;

/// Snapshot of the state of a group, as its [`SentinelNode`](super::SentinelNode) has observed it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SentinelStatus {
    /// Name of the group.
    pub name: Arc<str>,
    /// `host:port` of the master that a majority of the Sentinels reported last.
    pub master: Option<String>,
    /// Configuration epoch in which this majority reported that master. Every failover increases
    /// the epoch.
    pub epoch: Option<u64>,
    /// `run_id` of the last master to which the node connected.
    pub run_id: Option<Arc<str>>,
    /// `master_replid` of the last master to which the node connected: the identity of its data
    /// history.
    pub replication_id: Option<Arc<str>>,
    /// Number of Sentinels that the node asks: the configured Sentinels and the Sentinels that
    /// these report.
    pub sentinels_known: usize,
    /// Number of Sentinels that answered the last request. Once the others decide, one that takes
    /// longer than a sixth of `failover_window` is not waited for and does not count.
    pub sentinels_reachable: usize,
    /// Min-replicas settings of the last master to which the node connected.
    pub min_replicas: Option<MinReplicasFacts>,
    /// L: time for which the last master to which the node connected may still accept writes after
    /// it is replaced.
    pub failover_window: Option<Duration>,
    /// The last error: the Sentinels agree on no master, the master is not allowed to vote, or the
    /// master cannot be reached. `None` if there was no error, or no request yet.
    pub last_error: Option<NodeError>,
}
