//! What a node reports with each batch: clock, data history, identity (clocks 4, quarantine 7, 13,
//! 17).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::broadcast;

use crate::client::node_counters::Counters;
use crate::client::node_queue::QueueSettings;
use crate::config::RETENTION;
use crate::error::{Commands, NodeError};
use crate::node::{HistoryCause, NamedEvent, NodeEvent};
use crate::op::{Began, Facts, Loss, Remembered};
use crate::quorum::clock::{ClockCheck, ClockStep};
use crate::sync::SyncMutex;
use crate::time::Moment;
use crate::token::OwnerToken;

pub(crate) struct NodeMonitor {
    name: Arc<str>,
    clock: ClockCheck,
    identity: Option<Arc<str>>,
    address: Option<Arc<str>>,
    history_id: Option<u64>,
    /// Shared with later monitors of this node, because a handle may outlive its runtimes.
    remembers: Arc<SyncMutex<Remembered>>,
    in_quarantine: bool,
    latest_loss: Option<Loss>,
    concerning: Option<Loss>,
    reasserted: BTreeSet<OwnerToken>,
    /// The last event about a disagreement.
    disagreed: Option<NodeEvent>,
    events: broadcast::Sender<NamedEvent>,
    commands: Commands,
    counters: Arc<Counters>,
}

impl NodeMonitor {
    pub(crate) fn new(
        name: Arc<str>,
        s: &QueueSettings,
        counters: &Arc<Counters>,
        remembers: &Arc<SyncMutex<Remembered>>,
    ) -> Self {
        Self {
            name,
            clock: ClockCheck::new(s.drift, s.ttl, s.terms.max_ttl),
            identity: None,
            address: None,
            history_id: None,
            remembers: Arc::clone(remembers),
            in_quarantine: false,
            latest_loss: None,
            concerning: None,
            reasserted: BTreeSet::new(),
            disagreed: None,
            events: s.events.clone(),
            commands: s.commands.clone(),
            counters: Arc::clone(counters),
        }
    }

    /// Returns an error if the node's votes do not count now, because its clock stepped.
    pub(crate) fn judge(
        &mut self,
        facts: &Facts,
        sent: Moment,
        received: Moment,
        address: &dyn Fn() -> Option<Arc<str>>,
    ) -> Option<NodeError> {
        self.check_losses(facts);
        let same_process = self.identity.as_ref() == Some(&facts.identity);
        self.remembers.lock().learn(facts);
        if self.history_id != Some(facts.history_id) || facts.new_history {
            let address = if same_process { self.address.clone() } else { address() };
            self.on_history_change(facts, same_process, address);
        }
        if facts.refuted {
            self.counters.refuted.store(true, Ordering::Relaxed);
            self.tell(NodeEvent::DurableRefuted);
        }
        if facts.renamed {
            self.tell(NodeEvent::Renamed);
        }
        self.check_quarantine(facts);
        self.check_settings(facts);
        if !same_process {
            self.identity = Some(Arc::clone(&facts.identity));
            self.clock.restart();
        }
        if let Some(ClockStep { micros, span }) = self.clock.read(facts.node_micros, sent, received)
        {
            tracing::warn!(node = %self.name, step_us = %micros, ?span, "the node's clock stepped");
        }
        self.clock.objection(received)
    }

    pub(crate) fn remembers(&self) -> Remembered {
        *self.remembers.lock()
    }

    /// The address led to another server: when it leads home, that is no foreign data.
    pub(crate) fn forget(&self, at_first: Remembered) {
        *self.remembers.lock() = at_first;
    }

    pub(crate) fn reasserts(&mut self, owner: OwnerToken) -> bool {
        self.in_quarantine && self.reasserted.insert(owner)
    }

    pub(crate) fn reasserted(&self, leases: u64) {
        if leases > 0 {
            self.tell(NodeEvent::Reasserted { leases });
        }
    }

    /// (quarantine 13).
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
            self.counters.tallies.histories.add(1);
        }
        if moved {
            self.counters.tallies.switches.add(1);
        }
        if known || facts.new_history {
            let all = facts.losses.last().is_some_and(|loss| loss.from == 0);
            let lost = facts.marker_missing || (all && facts.began == Began::Lost);
            let cause = if known && lost {
                HistoryCause::DataLost
            } else if !known && facts.marker_missing && facts.began != Began::Lost {
                HistoryCause::FirstUse
            } else if !known || same_process {
                HistoryCause::Unknown
            } else if moved {
                HistoryCause::Promotion
            } else {
                HistoryCause::Restart
            };
            self.tell(NodeEvent::HistoryChanged { cause });
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
            self.counters.tallies.quarantines.add(1);
            let loss = facts.losses.last().copied();
            self.tell(NodeEvent::QuarantineBegun { remaining, began, loss });
        } else {
            self.reasserted.clear();
            self.tell(NodeEvent::QuarantineEnded);
        }
    }

    /// All clients must use one length and one E (quarantine 7), and the node uses the largest. So
    /// both the handle with a smaller one and the one that raised it send the event, once for all
    /// the same values.
    fn check_settings(&mut self, facts: &Facts) {
        let event = NodeEvent::SettingsDisagree {
            ours: facts.quarantine_asked,
            node: facts.quarantine_len,
            our_clock_error: facts.clock_error_asked,
            node_clock_error: facts.clock_error,
        };
        // The node counts in whole milliseconds, and a command lowers the error to whole ones.
        let shorter = facts.quarantine_asked + Duration::from_millis(1) < facts.quarantine_len;
        let smaller = facts.clock_error_asked + Duration::from_millis(1) <= facts.clock_error;
        let differs = shorter || smaller || facts.quarantine_raised;
        if differs && self.disagreed.as_ref() != Some(&event) {
            self.disagreed = Some(event.clone());
            self.tell(event);
        }
    }

    fn tell(&self, event: NodeEvent) {
        event.log(&self.name, &self.commands);
        let _ = self.events.send(NamedEvent { node: Arc::clone(&self.name), event });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::node_counters::VotingGauges;
    use crate::env::SystemEnv;
    use crate::op::{Lineage, Terms};
    use crate::quorum::vote::Deployments;
    use crate::time::Drift;

    fn settings() -> QueueSettings {
        QueueSettings {
            env: Arc::new(SystemEnv),
            terms: Terms { max_ttl: Duration::from_secs(30), clock_error: Duration::from_secs(60) },
            drift: Drift::DEFAULT,
            ttl: Duration::from_secs(10),
            node_deadline: Duration::from_millis(250),
            remembers: Remembered::default(),
            events: broadcast::Sender::new(64),
            commands: Commands::default(),
            on_switch: Arc::new(|_, _| ()),
            votes: Arc::new(VotingGauges::new(&["a".into()])),
            deployments: Arc::new(SyncMutex::new(Deployments::new(1))),
        }
    }

    fn health(s: &QueueSettings) -> NodeMonitor {
        NodeMonitor::new("a".into(), s, &Arc::new(Counters::new("a".into())), &Arc::default())
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
            clock_error: Duration::from_secs(60),
            clock_error_asked: Duration::from_secs(60),
            quarantine_raised: false,
            new_history: false,
            marker_missing: false,
            began: Began::Known,
            losses: [].into(),
            since: 0,
            replication: 1,
            lineage: Lineage::default(),
            renamed: false,
            refuted: false,
        }
    }

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn reported(s: &QueueSettings, run: impl FnOnce(&mut NodeMonitor)) -> Vec<NodeEvent> {
        let mut events = s.events.subscribe();
        run(&mut health(s));
        std::iter::from_fn(|| events.try_recv().ok().map(|named| named.event)).collect()
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
            let flushed = shut(&base, 30);
            let first = Facts { new_history: true, marker_missing: true, ..flushed.clone() };
            say(first, 3, "h:1");
            say(shut(&base, 29), 4, "h:1");
            say(base.clone(), 33, "h:1");
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
    fn a_node_without_data_is_in_first_use_unless_somebody_saw_data() {
        let s = settings();
        let empty =
            Facts { new_history: true, marker_missing: true, began: Began::Empty, ..facts(1, "x") };
        let first = |f: &Facts| {
            reported(&s, |p| {
                p.judge(f, at(1), at(1), &nowhere);
            })
        };
        let changed = |cause| [NodeEvent::HistoryChanged { cause }];
        assert_eq!(first(&empty), changed(HistoryCause::FirstUse));
        let lost = Facts { began: Began::Lost, ..empty.clone() };
        assert_eq!(first(&lost), changed(HistoryCause::Unknown));
        assert!(first(&facts(1, "x")).is_empty(), "another program was the first");
        let got = reported(&s, |p| {
            p.judge(&facts(1, "x"), at(1), at(1), &nowhere);
            p.judge(&Facts { history_id: 2, ..empty }, at(2), at(2), &nowhere);
        });
        assert_eq!(got, changed(HistoryCause::DataLost));
    }

    #[test]
    fn a_lease_is_reasserted_once_in_a_quarantine_and_not_after_it() {
        let mut p = health(&settings());
        let (owner, open) = (OwnerToken::from_random(1), facts(1, "x"));
        let shut = Facts { quarantine: Duration::from_secs(30), ..open.clone() };
        p.judge(&shut, at(1), at(1), &nowhere);
        assert!(p.reasserts(owner));
        assert!(!p.reasserts(owner));
        p.judge(&open, at(2), at(2), &nowhere);
        assert!(!p.reasserts(owner));
    }

    #[test]
    fn a_disagreement_is_reported_once_to_the_smaller_and_to_who_raised_it() {
        let s = settings();
        let (ours, node) = (Duration::from_secs(30), Duration::from_secs(60));
        let disagree = |node, our_clock_error| NodeEvent::SettingsDisagree {
            ours,
            node,
            our_clock_error,
            node_clock_error: Duration::from_secs(60),
        };
        let shorter = Facts { quarantine_len: node, ..facts(1, "x") };
        let got = reported(&s, |p| {
            for _ in 0..3 {
                p.judge(&shorter, at(1), at(1), &nowhere);
            }
        });
        assert_eq!(got, [disagree(node, Duration::from_secs(60))]);
        let nearly = Duration::from_micros(59_999_001);
        let nearly = Facts { clock_error_asked: nearly, ..facts(1, "x") };
        assert_eq!(reported(&s, |p| _ = p.judge(&nearly, at(1), at(1), &nowhere)), []);
        let small = Duration::from_millis(59_999);
        let smaller = Facts { clock_error_asked: small, ..facts(1, "x") };
        let got = reported(&s, |p| {
            for facts in [&smaller, &smaller, &facts(1, "x")] {
                p.judge(facts, at(1), at(1), &nowhere);
            }
        });
        assert_eq!(got, [disagree(ours, small)]);
        let raised = Facts { quarantine_raised: true, ..facts(1, "x") };
        let got = reported(&s, |p| {
            p.judge(&raised, at(1), at(1), &nowhere);
            p.judge(&facts(1, "x"), at(2), at(2), &nowhere);
        });
        assert_eq!(got, [disagree(ours, Duration::from_secs(60))]);
    }
}
