//! The checks, one a file: pure functions from facts to findings.

mod announced_address;
mod aof_replay;
mod appendfsync;
mod backlog_ttl;
mod clock_skew;
mod co_located;
mod data_loss;
mod down_after;
mod even_nodes;
mod eviction;
mod failover_timeout;
mod lags_differ;
mod min_replicas_lag;
mod min_replicas_off;
mod min_replicas_replica;
mod minority_side;
mod no_replica;
mod nodes_together;
mod not_initialised;
mod not_master;
mod permissions;
mod persistence;
mod quarantine_long;
mod quorum_low;
mod reachable;
mod replica_priority;
mod replicas;
mod replication_buffers;
mod same_server;
mod sentinel_count;
mod sentinel_disagreement;
mod sentinel_sight;
mod stale_sentinels;
mod tilt;
mod trial;
mod ttl_too_short;
mod two_halves;
mod two_masters;
mod version;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
pub(crate) mod tests;

use super::facts::Facts;
use super::report::{Finding, Severity};

/// One check. Its `run` returns a finding for every subject that it examined, also if all is well
/// or nothing could be read.
pub(crate) struct Check {
    /// Short, in kebab case, and never changed again: people filter by it.
    pub(crate) id: &'static str,
    /// The worst that it can find.
    pub(crate) severity: Severity,
    /// What is checked, in one line.
    pub(crate) title: &'static str,
    /// Why it matters, with the figure that was measured.
    pub(crate) why: &'static str,
    pub(crate) run: fn(&Facts) -> Vec<Finding>,
}

/// All of them, in the order of reports.
#[rustfmt::skip] // one a line
pub(crate) const CHECKS: &[Check] = &[
    reachable::CHECK,
    trial::CHECK,
    not_initialised::CHECK,
    data_loss::CHECK,
    same_server::CHECK,
    not_master::CHECK,
    two_masters::CHECK,
    min_replicas_off::CHECK,
    min_replicas_replica::CHECK,
    min_replicas_lag::CHECK,
    lags_differ::CHECK,
    two_halves::CHECK,
    minority_side::CHECK,
    quorum_low::CHECK,
    sentinel_count::CHECK,
    sentinel_disagreement::CHECK,
    stale_sentinels::CHECK,
    sentinel_sight::CHECK,
    tilt::CHECK,
    no_replica::CHECK,
    replica_priority::CHECK,
    replicas::CHECK,
    persistence::CHECK,
    aof_replay::CHECK,
    appendfsync::CHECK,
    eviction::CHECK,
    down_after::CHECK,
    ttl_too_short::CHECK,
    quarantine_long::CHECK,
    failover_timeout::CHECK,
    announced_address::CHECK,
    permissions::CHECK,
    clock_skew::CHECK,
    backlog_ttl::CHECK,
    replication_buffers::CHECK,
    co_located::CHECK,
    even_nodes::CHECK,
    nodes_together::CHECK,
    version::CHECK,
];

/// Runs all checks.
pub(crate) fn run(facts: &Facts) -> Vec<Finding> {
    let named = |check: &'static Check| {
        (check.run)(facts).into_iter().map(|f| Finding { check: check.id, why: check.why, ..f })
    };
    CHECKS.iter().flat_map(named).collect()
}
