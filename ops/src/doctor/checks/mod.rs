//! The checks of the doctor: pure functions from facts to findings.

mod addresses;
mod backlog;
mod clocks;
mod durable;
#[cfg(test)]
mod fuzz;
mod groups;
mod marker;
#[cfg(test)]
mod remedies;
mod sentinels;
pub(super) mod servers;
#[cfg(test)]
pub(crate) mod tests;
mod wanted;

use super::facts::{Facts, Group, Sentinel, Server};
use super::report::Finding;

/// The error is the reason for which the needed values are unknown.
type Answer = Result<Finding, String>;

enum Run {
    /// Lone servers and members of groups.
    Servers(fn(&Facts, &Server) -> Answer),
    Members(fn(&Group, &Server) -> Answer),
    Groups(fn(&Group) -> Answer),
    Sentinels(fn(&Group, &Sentinel) -> Answer),
    Masters(fn(&Facts, &Server) -> Answer),
    /// The function chooses the subjects of its findings.
    All(fn(&Facts) -> Vec<Finding>),
}

pub(crate) struct Check {
    /// Never changes, because people filter findings by it.
    pub(crate) id: &'static str,
    /// With measured figures.
    why: &'static str,
    run: Run,
}

/// In the order of reports.
pub(crate) const CHECKS: &[Check] = &[
    servers::UNREACHABLE,
    servers::REFUSED,
    servers::TRIAL,
    marker::NOT_INITIALISED,
    marker::DATA_LOSS,
    marker::QUARANTINE_LONG,
    marker::OTHER_DEPLOYMENT,
    groups::TWO_MASTERS,
    groups::MIN_REPLICAS,
    groups::REPLICA_PRIORITY,
    groups::REPLICAS,
    sentinels::QUORUM,
    sentinels::DISAGREEMENT,
    sentinels::SIGHT,
    sentinels::TIMES,
    addresses::ANNOUNCED_ADDRESS,
    servers::PERSISTENCE,
    servers::AOF_REPLAY,
    durable::DURABLE,
    backlog::HISTORY_RENAME,
    servers::PERMISSIONS,
    clocks::CLOCK_SKEW,
];

pub(crate) fn run(facts: &Facts) -> Vec<Finding> {
    let named = |check: &'static Check| {
        let found = check.run.findings(facts).into_iter();
        found.map(|f| Finding { check: check.id, why: check.why, ..f })
    };
    CHECKS.iter().flat_map(named).collect()
}

impl Run {
    fn findings(&self, facts: &Facts) -> Vec<Finding> {
        let on =
            |subject: String, answer: Answer| answer.unwrap_or_else(Finding::unknown).on(subject);
        let groups = || facts.groups.iter().filter(|g| !g.servers.is_empty());
        match self {
            Self::Servers(judge) => {
                facts.reached().map(|(of, s)| on(of, judge(facts, s))).collect()
            }
            Self::Members(judge) => {
                let all = groups().flat_map(|g| g.reached().map(move |s| (g, s)));
                all.map(|(g, s)| on(format!("{} {}", g.name, s.at), judge(g, s))).collect()
            }
            Self::Groups(judge) => groups().map(|g| on(g.name.clone(), judge(g))).collect(),
            Self::Sentinels(judge) => {
                let all = facts.groups.iter().flat_map(|g| g.heard().map(move |s| (g, s)));
                all.map(|(g, s)| on(s.subject(g), judge(g, s))).collect()
            }
            Self::Masters(judge) => {
                facts.masters().map(|(of, s)| on(of, judge(facts, s))).collect()
            }
            Self::All(judge) => judge(facts),
        }
    }
}
