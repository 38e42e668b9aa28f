//! The outage of a handle's nodes, for locks that may degrade. Callers pass all times:
//! [`Outage::known`] before each attempt, [`Outage::failed`] or [`Outage::answered`] after it;
//! after a failure [`Outage::lasts`] decides.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Advice, NoQuorum, NodeOutcome, Reach};
use crate::name::LockKeys;
use crate::time::Moment;

const PROBE_EVERY: Duration = Duration::from_secs(1);
const STALE: Duration = Duration::from_secs(5);
const HELD_MAX: usize = 1_024;

/// The first two permit to continue without the lock. If the nodes' findings differ, the last in
/// this order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Finding {
    Down,
    Free,
    Held,
    NotAsked,
    Refused,
}

impl Finding {
    pub(crate) fn of(why: &NoQuorum) -> Self {
        if matches!(why.advice(), Advice::Misconfigured | Advice::Rebuild) {
            return Self::Refused;
        }
        let found = why.nodes.iter().map(|(_, outcome)| match outcome {
            NodeOutcome::Silent => Self::Down,
            NodeOutcome::Granted => Self::Free,
            NodeOutcome::Held(_) | NodeOutcome::Refused => Self::Held,
            // It may have lost data, so another owner may hold the lock.
            NodeOutcome::Quarantined { .. } => Self::Refused,
            NodeOutcome::Failed(error) => match error.reach() {
                Reach::Unreachable => Self::Down,
                // The error may concern the key of this lock alone.
                Reach::Answered => Self::Held,
                Reach::NotAsked => Self::NotAsked,
                Reach::Refused => Self::Refused,
            },
        });
        found.max().unwrap_or(Self::Refused)
    }

    pub(crate) fn permits(self) -> bool {
        self <= Self::Free
    }
}

#[derive(Debug, Default)]
pub(crate) struct Outage {
    streak: Option<Streak>,
    last: Option<Failure>,
    next_probe: Moment,
    heard: Option<Moment>,
    period: Option<Period>,
    guards: usize,
    /// With the end of the holder's lease.
    held: BTreeMap<Box<str>, Moment>,
}

#[derive(Clone, Copy, Debug)]
struct Streak {
    since: Moment,
    until: Moment,
}

#[derive(Debug)]
struct Failure {
    keys: LockKeys,
    outcomes: Vec<NodeOutcome>,
    finding: Finding,
    at: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    pub(crate) since: Moment,
    pub(crate) guards: u64,
}

impl Outage {
    /// With `None` the caller has to ask the nodes.
    pub(crate) fn known(
        &mut self,
        keys: &LockKeys,
        now: Moment,
        after: Duration,
    ) -> Option<Vec<NodeOutcome>> {
        let last = self.last.as_ref()?;
        // A node may report a holder of one lock and no holder of another.
        let applies = last.finding == Finding::Down || last.keys == *keys;
        if !applies || now.since(last.at) >= STALE || !self.lasts(after) {
            return None;
        }
        if now >= self.next_probe {
            self.next_probe = now + PROBE_EVERY;
            return None;
        }
        Some(last.outcomes.clone())
    }

    pub(crate) fn failed(
        &mut self,
        keys: &LockKeys,
        (sent, at): (Moment, Moment),
        outcomes: &[NodeOutcome],
        finding: Finding,
    ) {
        let is_old = self.heard.is_some_and(|heard| sent < heard);
        match finding {
            Finding::NotAsked => {}
            Finding::Refused => self.heard(at),
            _ if is_old => {}
            Finding::Down | Finding::Free | Finding::Held => {
                let before = self.streak.filter(|streak| sent.since(streak.until) < STALE);
                let since = before.map_or(sent, |streak| streak.since.min(sent));
                self.streak = Some(Streak { since, until: at });
                let (keys, outcomes) = (keys.clone(), outcomes.to_vec());
                let failure = Failure { keys, outcomes, finding, at };
                self.last = Some(failure).filter(|failure| failure.finding.permits());
                self.next_probe = at + PROBE_EVERY;
            }
        }
    }

    pub(crate) fn answered(&mut self, at: Moment) -> Option<Period> {
        self.heard(at);
        self.period.take()
    }

    /// Another owner may have this lock until `till`, or nobody else has it.
    pub(crate) fn taken(&mut self, keys: &LockKeys, at: Moment, till: Option<Moment>) {
        let Some(till) = till else {
            self.held.remove(keys.lock());
            return;
        };
        if self.held.len() >= HELD_MAX {
            self.held.retain(|_, end| *end > at);
        }
        if self.held.len() < HELD_MAX {
            let end = self.held.entry(keys.lock().into()).or_default();
            *end = till.max(*end);
        }
    }

    /// By the last answers of majorities to degrading calls.
    pub(crate) fn held_until(&self, keys: &LockKeys) -> Moment {
        self.held.get(keys.lock()).copied().unwrap_or_default()
    }

    fn heard(&mut self, at: Moment) {
        self.streak = None;
        self.last = None;
        self.heard = Some(at);
    }

    pub(crate) fn lasts(&self, after: Duration) -> bool {
        self.streak.is_some_and(|streak| streak.until.since(streak.since) >= after)
    }

    pub(crate) fn degrade(&mut self, now: Moment) -> Period {
        let since = self.streak.map_or(now, |streak| streak.since);
        let period = self.period.get_or_insert(Period { since, guards: 0 });
        period.guards += 1;
        self.guards += 1;
        *period
    }

    pub(crate) fn ended(&mut self) {
        self.guards -= 1;
    }

    pub(crate) fn guards(&self) -> usize {
        self.guards
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Began, Commands, NodeError, NodeFault};

    const S: Duration = Duration::from_secs(1);
    const AFTER: Duration = Duration::from_millis(500);

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    fn failed(fault: NodeFault) -> NodeOutcome {
        NodeOutcome::Failed(NodeError::not_executed(fault, ""))
    }

    fn down() -> Vec<NodeOutcome> {
        vec![failed(NodeFault::Unreachable)]
    }

    fn finding(outcomes: &[NodeOutcome]) -> Finding {
        let nodes = outcomes.iter().map(|outcome| ("n".into(), outcome.clone())).collect();
        Finding::of(&NoQuorum {
            of: None,
            needed: 2,
            nodes,
            waited: None,
            commands: Commands::default(),
        })
    }

    fn outage(finding: Finding) -> (Outage, LockKeys) {
        let (mut outage, a) = (Outage::default(), LockKeys::new("a"));
        outage.failed(&a, (at(0), at(250)), &down(), finding);
        assert!(!outage.lasts(AFTER) && outage.known(&a, at(300), AFTER).is_none());
        outage.failed(&a, (at(300), at(600)), &down(), finding);
        assert!(outage.lasts(AFTER));
        (outage, a)
    }

    #[test]
    fn a_node_that_answers_and_refuses_outweighs_all_that_are_down() {
        let quarantined = NodeOutcome::quarantined(S, Began::Known);
        let held = NodeOutcome::Held(Some(S));
        let (down, fault) = (failed(NodeFault::Timeout), failed);
        for (outcomes, found) in [
            (vec![down.clone(), down.clone(), NodeOutcome::Silent], Finding::Down),
            (vec![down.clone(), fault(NodeFault::NoAgreement)], Finding::Down),
            (vec![down.clone(), NodeOutcome::Granted], Finding::Free),
            (vec![down.clone(), fault(NodeFault::Server)], Finding::Held),
            (vec![down.clone(), NodeOutcome::Granted, held.clone()], Finding::Held),
            (vec![down.clone(), NodeOutcome::Refused], Finding::Held),
            (vec![down.clone(), held.clone(), fault(NodeFault::Busy)], Finding::NotAsked),
            (vec![down.clone(), held, quarantined], Finding::Refused),
            (vec![down.clone(), fault(NodeFault::NotMaster)], Finding::Refused),
            (vec![down.clone(), fault(NodeFault::Loading)], Finding::Refused),
            (vec![down.clone(), fault(NodeFault::NoReplicas)], Finding::Refused),
            (vec![down.clone(), fault(NodeFault::Auth)], Finding::Refused),
            (vec![down.clone(), fault(NodeFault::HandingOver)], Finding::Refused),
            (vec![down.clone(), fault(NodeFault::ClockJump)], Finding::Refused),
            (vec![down, fault(NodeFault::NotDurable)], Finding::Refused),
            (vec![fault(NodeFault::Auth); 2], Finding::Refused),
            (vec![fault(NodeFault::Closed); 2], Finding::Refused),
        ] {
            assert_eq!(finding(&outcomes), found, "{outcomes:?}");
            assert_eq!(found.permits(), matches!(found, Finding::Down | Finding::Free));
        }
    }

    #[test]
    fn one_call_a_second_asks_the_nodes() {
        let (mut outage, a) = outage(Finding::Down);
        let b = LockKeys::new("b");
        for now in [600, 1_000, 1_599] {
            assert_eq!(outage.known(&b, at(now), AFTER), Some(down()), "{now}");
        }
        assert_eq!(outage.known(&a, at(1_599), S), None, "600 ms are not a second");
        assert_eq!(outage.known(&b, at(1_600), AFTER), None, "the probe");
        // If the probe is dropped, another operation makes the next.
        assert!(outage.known(&a, at(1_601), AFTER).is_some());
        assert!(outage.known(&a, at(2_599), AFTER).is_some());
        assert_eq!(outage.known(&a, at(2_600), AFTER), None);
        outage.failed(&a, (at(2_600), at(2_850)), &down(), Finding::Down);
        assert!(outage.known(&a, at(3_849), AFTER).is_some());
        assert_eq!(outage.known(&a, at(3_850), AFTER), None);
        assert_eq!(outage.known(&a, at(2_850) + STALE, AFTER), None);
    }

    #[test]
    fn nodes_that_answer_are_asked_for_each_lock() {
        let (mut outage, a) = outage(Finding::Free);
        let b = LockKeys::new("b");
        assert!(outage.known(&a, at(601), AFTER).is_some());
        assert_eq!(outage.known(&b, at(601), AFTER), None);
        outage.failed(&b, (at(601), at(602)), &down(), Finding::Held);
        assert!(outage.lasts(AFTER), "of two locks one is held, and both have no majority");
        assert_eq!(outage.known(&a, at(603), AFTER), None);
        assert_eq!(outage.known(&b, at(603), AFTER), None);
    }

    #[test]
    fn an_answer_ends_the_outage_and_a_request_that_was_not_sent_does_not() {
        let (mut outage, a) = outage(Finding::Down);
        outage.failed(&a, (at(601), at(602)), &down(), Finding::NotAsked);
        assert!(outage.known(&a, at(603), AFTER).is_some());
        assert_eq!(outage.degrade(at(603)), Period { since: at(0), guards: 1 });
        outage.failed(&a, (at(604), at(605)), &down(), Finding::Refused);
        assert!(!outage.lasts(AFTER) && outage.known(&a, at(606), AFTER).is_none());
        assert_eq!(outage.degrade(at(606)), Period { since: at(0), guards: 2 });
        assert_eq!(outage.answered(at(700)), Some(Period { since: at(0), guards: 2 }));
        assert_eq!(outage.answered(at(701)), None);
        outage.failed(&a, (at(100), at(702)), &down(), Finding::Down);
        assert!(!outage.lasts(Duration::ZERO));
        outage.failed(&a, (at(710), at(715)), &down(), Finding::Down);
        assert!(!outage.lasts(AFTER));
        assert_eq!(outage.guards(), 2);
        outage.ended();
        assert_eq!(outage.guards(), 1);
    }

    #[test]
    fn a_failure_long_after_the_last_one_begins_a_new_streak() {
        let (mut outage, a) = outage(Finding::Down);
        let (sent, end) = (at(600) + STALE, at(601) + STALE);
        outage.failed(&a, (sent, end), &down(), Finding::Down);
        assert!(!outage.lasts(AFTER));
    }
}
