//! What a batch's facts prove about a node: its clock, its history, its identity (design §6).

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::error::{NodeError, NodeFault};
use crate::node::lane::{Identities, LaneSettings};
use crate::op::Facts;
use crate::time::{Drift, Moment};

/// Most that a silence may add to what a clock may have wandered, besides what any crystal does.
const WANDER_MAX: Duration = Duration::from_secs(1);
/// What a clock that nobody disciplines may wander however long the silence is.
const CRYSTAL: Drift = Drift::from_ppm(100);

/// Watches one node's facts.
pub(crate) struct Probe {
    index: usize,
    name: Arc<str>,
    identities: Identities,
    drift: Drift,
    ttl: Duration,
    max_ttl: Duration,
    identity: Option<Arc<str>>,
    generation: Option<u64>,
    /// Bounds of (node clock − our clock) in µs at the last batch, and when that was.
    offset: Option<(i128, i128, Moment)>,
    /// Until when the node's votes are discounted after a clock step.
    discounted: Option<Moment>,
}

impl Probe {
    pub(crate) fn new(index: usize, name: Arc<str>, s: &LaneSettings) -> Self {
        Self {
            index,
            name,
            identities: Arc::clone(&s.identities),
            drift: s.drift,
            ttl: s.ttl,
            max_ttl: s.terms.max_ttl,
            identity: None,
            generation: None,
            offset: None,
            discounted: None,
        }
    }

    /// Takes in the facts of a batch that was under way from `sent` to `received`. Some(error) if
    /// the node's votes do not count now.
    pub(crate) fn judge(
        &mut self,
        facts: &Facts,
        sent: Moment,
        received: Moment,
    ) -> Option<NodeError> {
        if self.generation != Some(facts.generation) {
            if self.generation.is_some() || facts.new_generation {
                tracing::warn!(
                    node = %self.name, generation = facts.generation,
                    quarantine = ?facts.quarantine, "node has a new generation"
                );
            }
            self.generation = Some(facts.generation);
        }
        if self.identity.as_ref() != Some(&facts.identity) {
            self.identity = Some(Arc::clone(&facts.identity));
            // Another server process has another clock.
            self.offset = None;
        }
        self.same_server(&facts.identity).or_else(|| self.clock(facts.node_micros, sent, received))
    }

    fn same_server(&self, identity: &Arc<str>) -> Option<NodeError> {
        let mut all = self.identities.lock().unwrap_or_else(PoisonError::into_inner);
        if all.get(&self.index) != Some(identity) {
            all.insert(self.index, Arc::clone(identity));
        }
        // The node that comes first in the list keeps its vote; the copy loses its own.
        let twin = all.iter().find(|(i, id)| **i < self.index && *id == identity);
        twin.map(|(i, _)| {
            let detail = format!("same run_id as node number {}", i + 1);
            NodeError::maybe_executed(NodeFault::SameServer, detail)
        })
    }

    fn clock(&mut self, micros: u64, sent: Moment, received: Moment) -> Option<NodeError> {
        let us = |m: Moment| i128::from(m.as_nanos() / 1_000);
        // The node read its clock somewhere between send and receipt.
        let (lo, hi) = (i128::from(micros) - us(received), i128::from(micros) - us(sent));
        if let Some((was_lo, was_hi, at)) = self.offset {
            let silence = received.since(at);
            let most = WANDER_MAX + CRYSTAL.of(silence);
            let wander = self.drift.of(silence).min(most) + self.drift.of(self.ttl);
            let wander = i128::try_from(wander.as_micros()).unwrap_or(i128::MAX);
            let step = (lo - was_hi).max(was_lo - hi);
            if step > wander {
                tracing::warn!(node = %self.name, step_us = %step, "the node's clock stepped");
                self.discounted = Some(received + self.max_ttl);
            }
        }
        self.offset = Some((lo, hi, received));
        match self.discounted {
            Some(until) if received < until => Some(NodeError::maybe_executed(
                NodeFault::ClockJump,
                format!("votes again in {:?}", until.since(received)),
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::SystemEnv;
    use crate::op::Terms;

    fn settings() -> LaneSettings {
        LaneSettings {
            env: Arc::new(SystemEnv),
            terms: Terms { max_ttl: Duration::from_secs(30), clock_error: Duration::from_secs(60) },
            drift: Drift::DEFAULT,
            ttl: Duration::from_secs(10),
            node_deadline: Duration::from_millis(250),
            identities: Identities::default(),
        }
    }

    fn facts(micros: u64, identity: &str) -> Facts {
        Facts {
            node_micros: micros,
            generation: 1,
            identity: identity.into(),
            quarantine: Duration::ZERO,
            quarantine_len: Duration::from_secs(30),
            new_generation: false,
        }
    }

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_step_discounts_for_one_max_ttl_and_drift_does_not() {
        let mut p = Probe::new(0, "a".into(), &settings());
        let base = 1_000_000_000;
        assert!(p.judge(&facts(base, "x"), at(0), at(1)).is_none());
        // One second later the node's clock is 5 ms fast: within the drift budget.
        assert!(p.judge(&facts(base + 1_005_000, "x"), at(1_000), at(1_001)).is_none());
        // Now it has gained two seconds at once.
        let e = p.judge(&facts(base + 4_005_000, "x"), at(2_000), at(2_001)).unwrap();
        assert_eq!(e.fault(), NodeFault::ClockJump);
        let later = base + 4_005_000;
        assert!(p.judge(&facts(later + 29_000_000, "x"), at(31_000), at(31_001)).is_some());
        assert!(p.judge(&facts(later + 31_000_000, "x"), at(33_000), at(33_001)).is_none());
    }

    #[test]
    fn a_crystal_that_wanders_over_a_quiet_day_is_not_a_step() {
        let mut p = Probe::new(0, "a".into(), &settings());
        let day = 86_400_000;
        assert!(p.judge(&facts(1_000_000, "x"), at(0), at(1)).is_none());
        // 50 ppm: 4.3 s a day. Discounted, every daily job would fail on its first try.
        let wandered = 1_000_000 + day * 1_000 + 4_320_000;
        assert!(p.judge(&facts(wandered, "x"), at(day), at(day + 1)).is_none());
        let stepped = wandered + day * 1_000 + 30_000_000;
        assert!(p.judge(&facts(stepped, "x"), at(2 * day), at(2 * day + 1)).is_some());
    }

    #[test]
    fn a_pause_of_ours_is_not_a_step() {
        let mut p = Probe::new(0, "a".into(), &settings());
        assert!(p.judge(&facts(1_000_000, "x"), at(0), at(1)).is_none());
        // Sent at 1 s, received at 20 s: the node may have read its clock anywhere in between.
        assert!(p.judge(&facts(3_000_000, "x"), at(1_000), at(20_000)).is_none());
    }

    #[test]
    fn the_second_node_on_one_server_loses_its_vote() {
        let s = settings();
        let mut a = Probe::new(0, "a".into(), &s);
        let mut b = Probe::new(1, "b".into(), &s);
        assert!(a.judge(&facts(1, "x"), at(0), at(1)).is_none());
        let e = b.judge(&facts(1, "x"), at(0), at(1)).unwrap();
        assert_eq!(e.fault(), NodeFault::SameServer);
        assert!(a.judge(&facts(1_000, "x"), at(1), at(2)).is_none());
        assert!(b.judge(&facts(1_000, "y"), at(1), at(2)).is_none());
    }
}
