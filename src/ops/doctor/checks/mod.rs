//! The checks, one a file: pure functions from facts to findings.

mod announced_address;
mod appendfsync;
mod clock_skew;
mod eviction;
mod failover_timeout;
mod min_replicas_lag;
mod min_replicas_off;
mod permissions;
mod persistence;
mod probe;
mod reachable;
mod replicas;
mod replication_buffers;
mod sentinel_sight;
mod tilt;
mod version;

#[cfg(test)]
pub(crate) mod tests;

use super::facts::Facts;
use super::report::{Finding, Severity};

/// One check. Its `run` says a word about every subject that it looked at, also where all is well
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
pub(crate) const CHECKS: &[Check] = &[
    reachable::CHECK,
    min_replicas_off::CHECK,
    min_replicas_lag::CHECK,
    persistence::CHECK,
    appendfsync::CHECK,
    failover_timeout::CHECK,
    announced_address::CHECK,
    sentinel_sight::CHECK,
    eviction::CHECK,
    clock_skew::CHECK,
    tilt::CHECK,
    version::CHECK,
    replicas::CHECK,
    permissions::CHECK,
    replication_buffers::CHECK,
    probe::CHECK,
];

/// Runs all checks.
pub(crate) fn run(facts: &Facts) -> Vec<Finding> {
    let named = |check: &'static Check| {
        (check.run)(facts).into_iter().map(|f| Finding { check: check.id, why: check.why, ..f })
    };
    CHECKS.iter().flat_map(named).collect()
}
