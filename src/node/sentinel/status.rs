//! What is known of a group, for operators.

use std::sync::Arc;
use std::time::Duration;

use crate::error::NodeError;
use crate::sentinel::min_replicas::MinReplicasFacts;

/// A snapshot of what a [`SentinelNode`](super::SentinelNode) knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SentinelStatus {
    /// The group's name.
    pub name: Arc<str>,
    /// `host:port` of the master that a majority of Sentinels named last.
    pub master: Option<String>,
    /// Under which configuration epoch; grows with every failover.
    pub epoch: Option<u64>,
    /// `run_id` of the master that was connected to last.
    pub run_id: Option<Arc<str>>,
    /// Its `master_replid`: the identity of its data history.
    pub replication_id: Option<Arc<str>>,
    /// Sentinels that are asked: the configured and the learned ones.
    pub sentinels_known: usize,
    /// How many of them answered the last time.
    pub sentinels_reachable: usize,
    /// The min-replicas settings of that master.
    pub min_replicas: Option<MinReplicasFacts>,
    /// L: for how long a replaced master may still accept writes, as the quarantine counts it.
    pub failover_window: Option<Duration>,
    /// Why no master is agreed upon, why the master may not vote, or why it cannot be reached.
    /// `None`: no fault, or no request yet.
    pub last_error: Option<NodeError>,
}
