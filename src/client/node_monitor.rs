//! What a batch's facts prove about a node: its clock, its history, its identity
//! (clocks 4, quarantine 7). The quarantine itself is decided in `lua/history.lua`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;

use crate::client::node_counters::Counters;
use crate::client::node_queue::QueueSettings;
use crate::config::RETENTION;
use crate::error::{NodeError, NodeFault};
use crate::node::{HistoryCause, NodeEvent};
use crate::op::{Began, Facts, Loss};
use crate::time::{Drift, Moment};
use crate::token::OwnerToken;

/// Most that a silence may add to what a clock may have wandered, besides what any crystal does.
const WANDER_MAX: Duration = Duration::from_secs(1);
/// What an undisciplined clock may wander, however long the silence is.
const CRYSTAL: Drift = Drift::from_ppm(100);

/// What a batch said of the node's clock.
#[derive(Clone, Copy)]
struct Reading {
    /// Bounds of (node's clock − our clock) in µs.
    offset: (i128, i128),
    /// When the answer came.
    at: Moment,
}

impl Reading {
    /// By how many µs the node's clock certainly changed against ours since an earlier reading.
    fn change(&self, before: &Self) -> i128 {
        (self.offset.0 - before.offset.1).max(before.offset.0 - self.offset.1)
    }
}

/// Watches one node's facts.
pub(crate) struct NodeMonitor {
    name: Arc<str>,
    drift: Drift,
    ttl: Duration,
    max_ttl: Duration,
    identity: Option<Arc<str>>,
    address: Option<Arc<str>>,
    history_id: Option<u64>,
    /// The node's clock (µs) with the first facts, by which it had a marker.
    known_since: Option<u64>,
    in_quarantine: bool,
    /// The latest loss of data that the node showed.
    latest_loss: Option<Loss>,
    /// That loss, while it still concerns keys of the default retention.
    concerning: Option<Loss>,
    /// Owners whose leases are back in this data history of the node.
    reasserted: BTreeSet<OwnerToken>,
    /// The disagreement reported last: ours and the node's.
    disagreed: Option<(Duration, Duration)>,
    events: broadcast::Sender<(Arc<str>, NodeEvent)>,
    counters: Arc<Counters>,
    /// The last reading of the node's clock.
    last: Option<Reading>,
    /// Two older ones, between one and two ttl old while the node is used: what a clock gains
    /// little by little does not show between neighbours.
    anchors: [Option<Reading>; 2],
    /// Until when the node's votes are discounted after a clock step.
    discounted: Option<Moment>,
}

impl NodeMonitor {
    pub(crate) fn new(name: Arc<str>, s: &QueueSettings, counters: &Arc<Counters>) -> Self {
        Self {
            name,
            drift: s.drift,
            ttl: s.ttl,
            max_ttl: s.terms.max_ttl,
            identity: None,
            address: None,
            history_id: None,
            known_since: None,
            in_quarantine: false,
            latest_loss: None,
            concerning: None,
            reasserted: BTreeSet::new(),
            disagreed: None,
            events: s.events.clone(),
            counters: Arc::clone(counters),
            last: None,
            anchors: [None; 2],
            discounted: None,
        }
    }

    /// Takes in the facts of a batch that was under way from `sent` to `received`; `address` says
    /// where the node's server is. Some(error) if the node's votes do not count now.
    pub(crate) fn judge(
        &mut self,
        facts: &Facts,
        sent: Moment,
        received: Moment,
        address: &dyn Fn() -> Option<Arc<str>>,
    ) -> Option<NodeError> {
        self.check_losses(facts);
        let same_process = self.identity.as_ref() == Some(&facts.identity);
        self.known_since.get_or_insert(facts.node_micros);
        if self.history_id != Some(facts.history_id) || facts.new_history {
            let address = if same_process { self.address.clone() } else { address() };
            self.on_history_change(facts, same_process, address);
        }
        self.check_quarantine(facts);
        self.check_settings(facts);
        if !same_process {
            self.identity = Some(Arc::clone(&facts.identity));
            // Another server process has another clock.
            (self.last, self.anchors) = (None, [None; 2]);
        }
        self.check_clock(facts.node_micros, sent, received)
    }

    /// Returns the node's clock when its marker was first seen (quarantine 10).
    pub(crate) fn known_since(&self) -> Option<u64> {
        self.known_since
    }

    /// The node counted an extension whose holder named its quarantine: true the first time, and
    /// only while that lasts. One that came after the end is an extension as any other.
    pub(crate) fn reasserts(&mut self, owner: OwnerToken) -> bool {
        self.in_quarantine && self.reasserted.insert(owner)
    }

    /// Holders of this handle re-asserted their leases.
    pub(crate) fn reasserted(&self, leases: u64) {
        if leases > 0 {
            self.tell(NodeEvent::Reasserted { leases });
        }
    }

    /// What the node's data may lack (quarantine 13).
    fn check_losses(&mut self, facts: &Facts) {
        let latest = facts.losses.last().copied();
        if latest != self.latest_loss {
            self.latest_loss = latest;
            let new = facts.new_history || self.history_id.is_some();
            self.counters.set_losses(&facts.losses, latest.is_some() && new);
        }
        let until = |loss: &Loss| Duration::from_millis(loss.to).saturating_add(RETENTION);
        let now = Duration::from_micros(facts.node_micros);
        let concerning = latest.filter(|loss| now < until(loss));
        if concerning != self.concerning {
            self.concerning = concerning;
            self.counters.set_concerning(concerning);
        }
    }

    fn on_history_change(&mut self, facts: &Facts, same_process: bool, address: Option<Arc<str>>) {
        let known = self.history_id.is_some();
        let moved = self.identity.is_some() && self.address != address;
        if self.history_id != Some(facts.history_id) || facts.marker_missing {
            self.counters.count_history();
        }
        if moved {
            self.counters.count_switch();
        }
        if known || facts.new_history {
            let all = facts.losses.last().is_some_and(|loss| loss.from == 0);
            let lost = facts.marker_missing || (all && facts.began == Began::Lost);
            let cause = if known && lost {
                HistoryCause::DataLost
            } else if !known || same_process {
                HistoryCause::Unknown
            } else if moved {
                HistoryCause::Promotion
            } else {
                HistoryCause::Restart
            };
            self.tell(NodeEvent::HistoryChanged { cause });
            // A new one begins although the last may not have ended.
            self.in_quarantine = false;
            self.reasserted.clear();
        }
        self.history_id = Some(facts.history_id);
        self.address = address;
    }

    fn check_quarantine(&mut self, facts: &Facts) {
        let (remaining, began) = (facts.quarantine, facts.began);
        let quarantined = !remaining.is_zero();
        if quarantined {
            let left = u64::try_from(remaining.as_micros()).unwrap_or(u64::MAX);
            self.counters.set_quarantine_end(facts.node_micros.saturating_add(left));
        }
        if quarantined == self.in_quarantine {
            return;
        }
        self.in_quarantine = quarantined;
        if quarantined {
            self.counters.count_quarantine();
            let loss = facts.losses.last().copied();
            self.tell(NodeEvent::QuarantineBegun { remaining, began, loss });
        } else {
            self.reasserted.clear();
            self.tell(NodeEvent::QuarantineEnded);
        }
    }

    /// All clients of a node must agree on the quarantine's length (quarantine 7): the node uses
    /// the longest, so each handle with another one reports it once.
    fn check_settings(&mut self, facts: &Facts) {
        let (ours, node) = (facts.quarantine_asked, facts.quarantine_len);
        // The node counts in whole milliseconds.
        let shorter = ours + Duration::from_millis(1) < node;
        if (shorter || facts.quarantine_raised) && self.disagreed != Some((ours, node)) {
            self.disagreed = Some((ours, node));
            self.tell(NodeEvent::SettingsDisagree { ours, node });
        }
    }

    fn tell(&self, event: NodeEvent) {
        event.log(&self.name);
        // It is no fault if there is no listener.
        let _ = self.events.send((Arc::clone(&self.name), event));
    }

    fn check_clock(&mut self, micros: u64, sent: Moment, received: Moment) -> Option<NodeError> {
        let us = |m: Moment| i128::from(m.as_nanos() / 1_000);
        // The node read its clock somewhere between send and receipt.
        let offset = (i128::from(micros) - us(received), i128::from(micros) - us(sent));
        let now = Reading { offset, at: received };
        let known = self.anchors.iter().chain([&self.last]).flatten();
        let changed = known
            .map(|before| (now.change(before), received.since(before.at)))
            .find(|(change, span)| *change > self.budget(*span));
        if let Some((change, span)) = changed {
            tracing::warn!(node = %self.name, step_us = %change, ?span, "the node's clock stepped");
            self.discounted = Some(received + self.max_ttl);
            self.anchors = [Some(now), None];
        } else if self.anchors[0].is_none_or(|newer| received.since(newer.at) >= self.ttl) {
            self.anchors = [Some(now), self.anchors[0]];
        }
        self.last = Some(now);
        match self.discounted {
            Some(until) if received < until => Some(NodeError::maybe_executed(
                NodeFault::ClockJump,
                format!("votes again in {:?}", until.since(received)),
            )),
            _ => None,
        }
    }

    /// By how many µs the node's clock may change against ours in so long a time. Each lease allows
    /// for as much as belongs to its ttl.
    fn budget(&self, span: Duration) -> i128 {
        let wandered = self.drift.of(span).min(WANDER_MAX + CRYSTAL.of(span));
        let budget = wandered.max(self.drift.of(self.ttl));
        i128::try_from(budget.as_micros()).unwrap_or(i128::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::voting_gauges::VotingGauges;
    use crate::env::SystemEnv;
    use crate::op::Terms;

    fn settings() -> QueueSettings {
        QueueSettings {
            env: Arc::new(SystemEnv),
            terms: Terms { max_ttl: Duration::from_secs(30), clock_error: Duration::from_secs(60) },
            drift: Drift::DEFAULT,
            ttl: Duration::from_secs(10),
            node_deadline: Duration::from_millis(250),
            events: broadcast::Sender::new(64),
            on_switch: Arc::new(|_, _| ()),
            votes: Arc::new(VotingGauges::new(&["a".into()])),
        }
    }

    /// A health of the node `a`.
    fn health(s: &QueueSettings) -> NodeMonitor {
        NodeMonitor::new("a".into(), s, &Arc::new(Counters::new("a".into())))
    }

    fn nowhere() -> Option<Arc<str>> {
        None
    }

    fn facts(micros: u64, identity: &str) -> Facts {
        Facts {
            node_micros: micros,
            history_id: 1,
            identity: identity.into(),
            quarantine: Duration::ZERO,
            quarantine_len: Duration::from_secs(30),
            quarantine_asked: Duration::from_secs(30),
            quarantine_raised: false,
            new_history: false,
            marker_missing: false,
            began: Began::Known,
            losses: [].into(),
            since: 0,
        }
    }

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_step_discounts_for_one_max_ttl_and_drift_does_not() {
        let mut p = health(&settings());
        let base = 1_000_000_000;
        assert!(p.judge(&facts(base, "x"), at(0), at(1), &nowhere).is_none());
        // One second later the node's clock is 5 ms fast: within the drift budget.
        assert!(p.judge(&facts(base + 1_005_000, "x"), at(1_000), at(1_001), &nowhere).is_none());
        // Now it has gained two seconds at once.
        let e = p.judge(&facts(base + 4_005_000, "x"), at(2_000), at(2_001), &nowhere).unwrap();
        assert_eq!(e.fault(), NodeFault::ClockJump);
        let later = base + 4_005_000;
        assert!(
            p.judge(&facts(later + 29_000_000, "x"), at(31_000), at(31_001), &nowhere).is_some()
        );
        assert!(
            p.judge(&facts(later + 31_000_000, "x"), at(33_000), at(33_001), &nowhere).is_none()
        );
    }

    #[test]
    fn a_slow_slew_shows_on_a_busy_queue_too() {
        let after = |gain_ppm: u64| {
            let mut p = health(&settings());
            (1..60_000_u64).step_by(10).find(|ms| {
                let micros = 1_000_000_000 + ms * 1_000 + ms * gain_ppm / 1_000;
                p.judge(&facts(micros, "x"), at(*ms), at(*ms), &nowhere).is_some()
            })
        };
        // A ttl of 10 s allows for 100 ms.
        assert_eq!(after(9_900), None, "a clock within the drift that was declared");
        let seen = after(12_000).expect("a lease would be shorter there than its holder believes");
        assert!(seen <= 20_000, "{seen} ms");
        let seen = after(100_000).expect("a tenth");
        assert!(seen <= 1_100, "{seen} ms");
    }

    #[test]
    fn a_step_is_judged_once() {
        let mut p = health(&settings());
        let stepped = |ms: u64| if ms < 5_000 { 0 } else { 2_000_000 };
        let voted = (0..60_000_u64).step_by(10).filter(|ms| {
            let micros = 1_000_000_000 + ms * 1_000 + stepped(*ms);
            p.judge(&facts(micros, "x"), at(*ms), at(*ms), &nowhere).is_none()
        });
        let voted: Vec<u64> = voted.collect();
        // For one max_ttl, 30 s, it did not.
        assert_eq!(voted.iter().filter(|ms| (5_000..35_000).contains(*ms)).count(), 0);
        assert_eq!(voted.len(), 500 + 2_500);
    }

    #[test]
    fn a_crystal_that_wanders_over_a_quiet_day_is_not_a_step() {
        let mut p = health(&settings());
        let day = 86_400_000;
        assert!(p.judge(&facts(1_000_000, "x"), at(0), at(1), &nowhere).is_none());
        // 50 ppm: 4.3 s a day. Discounted, every daily job would fail on its first try.
        let wandered = 1_000_000 + day * 1_000 + 4_320_000;
        assert!(p.judge(&facts(wandered, "x"), at(day), at(day + 1), &nowhere).is_none());
        let stepped = wandered + day * 1_000 + 30_000_000;
        assert!(p.judge(&facts(stepped, "x"), at(2 * day), at(2 * day + 1), &nowhere).is_some());
    }

    #[test]
    fn a_pause_of_ours_is_not_a_step() {
        let mut p = health(&settings());
        assert!(p.judge(&facts(1_000_000, "x"), at(0), at(1), &nowhere).is_none());
        // Sent at 1 s, received at 20 s: the node may have read its clock anywhere in between.
        assert!(p.judge(&facts(3_000_000, "x"), at(1_000), at(20_000), &nowhere).is_none());
    }

    /// The events sent.
    fn reported(s: &QueueSettings, run: impl FnOnce(&mut NodeMonitor)) -> Vec<NodeEvent> {
        let mut events = s.events.subscribe();
        run(&mut health(s));
        std::iter::from_fn(|| events.try_recv().ok().map(|(_, event)| event)).collect()
    }

    #[test]
    fn each_transition_is_reported_once_and_with_its_cause() {
        use NodeEvent as E;
        let s = settings();
        let begun = |secs| E::QuarantineBegun {
            remaining: Duration::from_secs(secs),
            began: Began::Known,
            loss: None,
        };
        let changed = |cause| E::HistoryChanged { cause };
        let got = reported(&s, |p| {
            let mut say = |f: Facts, ms, at_: &'static str| {
                p.judge(&f, at(ms), at(ms), &move || Some(at_.into()));
            };
            let base = facts(1, "x");
            let shut =
                |f: &Facts, secs| Facts { quarantine: Duration::from_secs(secs), ..f.clone() };
            say(base.clone(), 1, "h:1");
            say(base.clone(), 2, "h:1");
            // FLUSHALL, seen by the batch that set the marker, and by the next one.
            let flushed = shut(&base, 30);
            let first = Facts { new_history: true, marker_missing: true, ..flushed.clone() };
            say(first, 3, "h:1");
            say(shut(&base, 29), 4, "h:1");
            say(base.clone(), 33, "h:1");
            // Another process at the same place, then another server.
            let restarted = Facts { history_id: 2, identity: "y".into(), ..shut(&base, 30) };
            say(restarted.clone(), 34, "h:1");
            let promoted = Facts { history_id: 3, identity: "z".into(), ..restarted };
            say(promoted.clone(), 35, "h:2");
            say(Facts { history_id: 4, ..promoted }, 36, "h:2");
        });
        assert_eq!(
            got,
            [
                changed(HistoryCause::DataLost),
                begun(30),
                E::QuarantineEnded,
                changed(HistoryCause::Restart),
                begun(30),
                changed(HistoryCause::Promotion),
                begun(30),
                changed(HistoryCause::Unknown),
                begun(30),
            ]
        );
    }

    #[test]
    fn a_lease_is_reasserted_once_in_a_quarantine_and_not_after_it() {
        let mut p = health(&settings());
        let (owner, open) = (OwnerToken::from_random(1), facts(1, "x"));
        let shut = Facts { quarantine: Duration::from_secs(30), ..open.clone() };
        p.judge(&shut, at(1), at(1), &nowhere);
        assert!(p.reasserts(owner));
        assert!(!p.reasserts(owner));
        // The next renewal was sent before the quarantine's end and came after it.
        p.judge(&open, at(2), at(2), &nowhere);
        assert!(!p.reasserts(owner));
    }

    #[test]
    fn a_disagreement_is_reported_once_to_the_shorter_and_to_who_raised_it() {
        let s = settings();
        let (ours, node) = (Duration::from_secs(30), Duration::from_secs(60));
        let shorter = Facts { quarantine_len: node, ..facts(1, "x") };
        let got = reported(&s, |p| {
            for _ in 0..3 {
                p.judge(&shorter, at(1), at(1), &nowhere);
            }
        });
        assert_eq!(got, [NodeEvent::SettingsDisagree { ours, node }]);
        let raised = Facts { quarantine_raised: true, ..facts(1, "x") };
        let got = reported(&s, |p| {
            p.judge(&raised, at(1), at(1), &nowhere);
            p.judge(&facts(1, "x"), at(2), at(2), &nowhere);
        });
        assert_eq!(got, [NodeEvent::SettingsDisagree { ours, node: ours }]);
    }
}
