//! Metrics for the operators of a program. `table` has the names, and `manual/metrics.md` describes
//! them. A label is a word of this crate, a node's name, or a name of which a program has few: at
//! most [`NAMES_MAX`] of each kind.

#[cfg(feature = "metrics")]
mod export;
#[cfg(not(feature = "metrics"))]
#[path = "nothing.rs"]
mod export;
mod node;
mod table;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) use self::export::{Counter, Gauge, Histogram};
pub use self::node::NodeMetrics;
pub(crate) use self::table::Metric;
use self::table::{
    ACQUIRE_WAIT, ACQUIRES, CLAIMS, CLAIMS_HELD, DEGRADED, LEADERLESS, LEADING, LEASES_LOST,
    LOCKS_DEGRADED, LOCKS_HELD, LOST_MARGIN, RENEWAL, RENEWAL_MARGIN, RENEWAL_RATIO, RENEWALS,
    TERMS, VACANCY,
};
pub(crate) use self::table::{IDEMPOTENCY, NODE, READY};
use crate::sync::SyncMutex;
use crate::time::Moment;

/// Of one kind (locks, elections, namespaces). All further ones share the label [`OTHER`].
const NAMES_MAX: usize = 256;
/// A lock of this name is improbable, because of the parentheses.
const OTHER: &str = "(other)";

#[derive(Debug, Default)]
pub(crate) struct Tally {
    value: AtomicU64,
    exported: Counter,
}

impl Tally {
    pub(crate) fn new(metric: &Metric, labels: &[(&'static str, &str)]) -> Self {
        Self { value: AtomicU64::new(0), exported: Counter::new(metric, labels) }
    }

    pub(crate) fn add(&self, n: u64) {
        if n > 0 {
            self.value.fetch_add(n, Ordering::Relaxed);
            self.exported.add(n);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// Exported with zero before its first event.
#[derive(Debug)]
pub(crate) struct Outcomes(Vec<(&'static str, Counter)>);

impl Outcomes {
    fn new(metric: &Metric, label: (&'static str, &str), all: &[&'static str]) -> Self {
        let one = |outcome: &&'static str| {
            let labels = [("outcome", *outcome), label];
            let labels = if label.0.is_empty() { &labels[..1] } else { &labels[..] };
            (*outcome, Counter::new(metric, labels))
        };
        Self(all.iter().map(one).collect())
    }

    pub(crate) fn add(&self, outcome: &str, n: u64) {
        if let Some((_, counter)) = self.0.iter().find(|(name, _)| *name == outcome) {
            counter.add(n);
        }
    }
}

struct Family<T>(SyncMutex<BTreeMap<Arc<str>, Arc<T>>>);

impl<T> Default for Family<T> {
    fn default() -> Self {
        Self(SyncMutex::default())
    }
}

impl<T> Family<T> {
    fn of(&self, name: &str, new: impl FnOnce(&str) -> T) -> Arc<T> {
        let mut all = self.0.lock();
        let name = if all.len() < NAMES_MAX || all.contains_key(name) { name } else { OTHER };
        if let Some(known) = all.get(name) {
            return Arc::clone(known);
        }
        let first = Arc::new(new(name));
        all.insert(name.into(), Arc::clone(&first));
        first
    }
}

pub(crate) struct Meters {
    by_lock: bool,
    /// Used if the names of locks are no labels.
    all_locks: Arc<LockMeters>,
    locks: Family<LockMeters>,
    elections: Family<ElectionMeters>,
    namespaces: Family<String>,
    pub(crate) claimed: Arc<LeaseMeters>,
    pub(crate) claims: Outcomes,
    pub(crate) degraded: DegradedMeters,
}

impl fmt::Debug for Meters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meters").field("by_lock", &self.by_lock).finish_non_exhaustive()
    }
}

impl Meters {
    pub(crate) fn new(by_lock: bool) -> Self {
        let claims =
            ["granted", "stored", "in_flight", "contended", "mismatch", "too_old", "no_quorum"];
        Self {
            by_lock,
            all_locks: Arc::new(LockMeters::new("")),
            locks: Family::default(),
            elections: Family::default(),
            namespaces: Family::default(),
            claimed: Arc::new(LeaseMeters::new("claim", "", &CLAIMS_HELD)),
            claims: Outcomes::new(&CLAIMS, ("", ""), &claims),
            degraded: DegradedMeters::new(),
        }
    }

    pub(crate) fn lock(&self, name: &str) -> Arc<LockMeters> {
        if self.by_lock {
            self.locks.of(name, LockMeters::new)
        } else {
            Arc::clone(&self.all_locks)
        }
    }

    pub(crate) fn election(&self, name: &str) -> Arc<ElectionMeters> {
        self.elections.of(name, ElectionMeters::new)
    }

    pub(crate) fn namespace(&self, name: &str) -> Arc<String> {
        self.namespaces.of(name, ToOwned::to_owned)
    }
}

#[derive(Debug)]
pub(crate) struct LockMeters {
    acquires: Outcomes,
    wait: Histogram,
    pub(crate) leases: Arc<LeaseMeters>,
}

impl LockMeters {
    fn new(name: &str) -> Self {
        let outcomes = ["acquired", "degraded", "taken", "no_quorum", "closed", "dropped"];
        Self {
            acquires: Outcomes::new(&ACQUIRES, ("name", name), &outcomes),
            wait: Histogram::new(&ACQUIRE_WAIT, &[("name", name)]),
            leases: Arc::new(LeaseMeters::new("lock", name, &LOCKS_HELD)),
        }
    }

    pub(crate) fn over(&self, outcome: &str, after: Duration) {
        self.acquires.add(outcome, 1);
        if outcome == "acquired" {
            self.wait.record(after.as_secs_f64());
        }
    }
}

#[derive(Debug)]
pub(crate) struct DegradedMeters {
    guards: Outcomes,
    held: Gauge,
}

impl DegradedMeters {
    fn new() -> Self {
        let policy = |policy| (policy, Counter::new(&DEGRADED, &[("policy", policy)]));
        Self {
            guards: Outcomes(["local", "proceed"].map(policy).into()),
            held: Gauge::new(&LOCKS_DEGRADED, &[]),
        }
    }

    pub(crate) fn begun(&self, policy: &str) {
        self.guards.add(policy, 1);
        self.held.add(1.0);
    }

    pub(crate) fn ended(&self) {
        self.held.add(-1.0);
    }
}

#[derive(Debug)]
pub(crate) struct LeaseMeters {
    held: Gauge,
    lost: Counter,
    lost_margin: Histogram,
    renewals: Outcomes,
    margin: Histogram,
    ratio: Histogram,
    took: Histogram,
}

impl LeaseMeters {
    fn new(kind: &'static str, name: &str, held: &Metric) -> Self {
        let labels = [("kind", kind), ("name", name)];
        let by_name = if kind == "claim" { &[][..] } else { &labels[1..] };
        let outcome = |outcome: &'static str| {
            (outcome, Counter::new(&RENEWALS, &[("outcome", outcome), labels[0], labels[1]]))
        };
        Self {
            held: Gauge::new(held, by_name),
            lost: Counter::new(&LEASES_LOST, &labels),
            lost_margin: Histogram::new(&LOST_MARGIN, &labels),
            renewals: Outcomes(["renewed", "no_quorum", "lost"].map(outcome).into()),
            margin: Histogram::new(&RENEWAL_MARGIN, &labels),
            ratio: Histogram::new(&RENEWAL_RATIO, &labels),
            took: Histogram::new(&RENEWAL, &labels),
        }
    }

    pub(crate) fn holds(&self, more: bool) {
        self.held.add(if more { 1.0 } else { -1.0 });
    }

    pub(crate) fn lost(&self, left: Duration) {
        self.lost.add(1);
        self.lost_margin.record(left.as_secs_f64());
    }

    /// `took` is the time until its outcome, `left` the rest of the old validity then.
    pub(crate) fn renewal(&self, outcome: &str, took: Duration, (left, ttl): (Duration, Duration)) {
        self.renewals.add(outcome, 1);
        self.took.record(took.as_secs_f64());
        self.margin.record(left.as_secs_f64());
        self.ratio.record(left.as_secs_f64() / ttl.as_secs_f64());
    }
}

#[derive(Debug)]
pub(crate) struct ElectionMeters {
    name: String,
    terms: Counter,
    pub(crate) leases: Arc<LeaseMeters>,
}

impl ElectionMeters {
    fn new(name: &str) -> Self {
        Self {
            terms: Counter::new(&TERMS, &[("name", name)]),
            name: name.to_owned(),
            leases: Arc::new(LeaseMeters::new("election", name, &LEADING)),
        }
    }

    pub(crate) fn term(&self) {
        self.terms.add(1);
    }
}

#[derive(Debug)]
pub(crate) struct Vacancy {
    leaderless: Gauge,
    lasted: Histogram,
    since: Option<Moment>,
}

impl Vacancy {
    pub(crate) fn new(of: &ElectionMeters) -> Self {
        let name = [("name", of.name.as_str())];
        let leaderless = Gauge::new(&LEADERLESS, &name);
        Self { leaderless, lasted: Histogram::new(&VACANCY, &name), since: None }
    }

    /// `Some(true)`: there is a leader; `None`: too few nodes answered.
    pub(crate) fn observed(&mut self, led: Option<bool>, now: Moment) {
        match (led, self.since) {
            (Some(true), since) => {
                if let Some(since) = since {
                    self.lasted.record(now.since(since).as_secs_f64());
                }
                self.since = None;
            }
            (Some(false), None) => self.since = Some(now),
            _ => {}
        }
        let span = self.since.map_or(0.0, |since| now.since(since).as_secs_f64());
        self.leaderless.set(span);
    }
}

impl Drop for Vacancy {
    fn drop(&mut self) {
        // The gauge would keep its last value after the end of the observer.
        self.leaderless.set(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_names_does_not_grow_without_bound() {
        let family = Family::default();
        for n in 0..10 * NAMES_MAX {
            family.of(&format!("tenant-{n}"), ToOwned::to_owned);
        }
        let all = family.0.lock();
        assert_eq!(all.len(), NAMES_MAX + 1);
        assert!(all.contains_key(OTHER) && all.contains_key("tenant-0"));
    }
}
