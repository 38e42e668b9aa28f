//! The marker that a client expects on a server, and the range of the server's clock in which a
//! batch needs no further checks under it.
//!
//! The script executes a batch only if the whole marker in it is there, so what the client believes
//! selects the script's path and never changes the result (quarantine 1).

use std::sync::Arc;
use std::time::Duration;

use crate::node::lineage::{self, Asked, Change, Handover, Marker, Note};
use crate::op::{Batch, Facts, Op, Remembered, Terms};
use crate::rules::header::Header;

/// Position in a note of the time until which a client may wait for a hint, and its width.
const WAITED: usize = lineage::NOTE + 1;

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(super) marker: Marker,
    text: String,
    /// What the script has to find in the marker's place to write this one; `None` if it is there.
    pub(super) replaces: Option<String>,
    pub(super) change: Change,
    asked: Asked,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noted {
    pub(super) note: Option<Note>,
    /// In ms by the server's clock, until when a client may wait for a hint.
    pub(super) waited: u64,
}

impl Noted {
    pub(super) fn read(text: &str) -> Self {
        let waited = text.get(WAITED..).and_then(|digits| digits.parse().ok());
        Self { note: Note::parse(text), waited: waited.unwrap_or(0) }
    }
}

impl Seen {
    pub(super) fn new(
        marker: &Marker,
        change: Change,
        asked: Asked,
        replaces: Option<String>,
    ) -> Self {
        Self { text: marker.to_string(), marker: *marker, replaces, change, asked }
    }

    /// The same marker, once the script has written it.
    pub(super) fn written(&self) -> Self {
        Self { replaces: None, change: Change::default(), ..self.clone() }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// A client that asks this need not judge again. Clients of one node may differ in what the
    /// marker covers.
    pub(super) fn suits(&self, asked: &Asked) -> bool {
        let asked = &asked.about(self.marker.vote);
        let newest = &asked.remembers.newest;
        let is_named = self.marker.vote != 0 || newest.vote == 0;
        let of_node = |asked: &Asked| {
            let Asked { window, longest_window, epoch, allow_eviction, disturbed, .. } = *asked;
            (window, longest_window, epoch, allow_eviction, disturbed)
        };
        of_node(&self.asked) == of_node(asked)
            && lineage::micros(asked.clock_error) <= self.marker.clock_error
            && lineage::length(asked) <= self.marker.quarantine
            && !lineage::is_foreign(&self.marker, newest)
            && !lineage::saw_others(&self.marker, asked)
            // The script compares the number of the note.
            && !lineage::is_put_back(&self.marker, u64::MAX, asked)
            && is_named
    }

    /// In µs, both ends included: there the script's fast paths are valid for this batch.
    pub(super) fn window(&self, batch: &Batch, not_after: Option<u64>) -> Option<(u64, u64)> {
        let m = &self.marker;
        let settled = match m.handover {
            Some(Handover::Closed(_)) => return None,
            Some(Handover::Settling(till)) => till,
            None => 0,
        };
        // Past the floor plus E, every proposal within E of this clock is above the floor.
        let mut from =
            (m.quarantine_end().max(settled) * 1_000).max(m.floor.saturating_add(m.clock_error));
        let mut until = not_after.unwrap_or(u64::MAX);
        for op in &batch.ops {
            if let Op::Acquire { proposal, .. } = op {
                from = from.max(proposal.saturating_sub(m.clock_error));
                until = until.min(proposal.saturating_add(m.clock_error));
            }
        }
        (from <= until).then_some((from, until))
    }

    /// Numbers 6 to 9 of `lua/batch.lua`.
    pub(super) fn limits(&self) -> String {
        let m = &self.marker;
        let settles = match m.handover {
            Some(Handover::Settling(till)) => till,
            _ => 0,
        };
        let (end, id) = (m.quarantine_end(), m.id());
        format!("{} {end} {settles} {:016x}:{}", m.floor, id.history, id.since)
    }

    /// The number that the note must have reached if these are the data that the client used; 0
    /// without one.
    pub(super) fn least_seq(&self, remembers: &Remembered) -> u64 {
        let Remembered { newest, .. } = remembers;
        let same =
            (newest.history, newest.generation) == (self.marker.history, self.marker.generation);
        if same { newest.seq } else { 0 }
    }

    pub(super) fn clock_error(&self) -> Duration {
        Duration::from_micros(self.marker.clock_error)
    }

    /// For the rules.
    pub(super) fn header(&self, facts: Facts, max_ttl: Duration) -> Header {
        let young_till = u128::from(self.marker.written) + max_ttl.as_millis();
        let settles = self.marker.settles(facts.node_micros / 1_000);
        Header {
            now: facts.node_micros.saturating_mul(1_000),
            is_young: u128::from(facts.node_micros / 1_000) < young_till,
            facts,
            floor: self.marker.floor,
            late: false,
            settling: settles.is_some(),
            settles_till: settles.unwrap_or(0),
            terms: Terms { max_ttl, clock_error: self.clock_error() },
        }
    }

    pub(super) fn facts(&self, micros: u64, noted: Noted, identity: &Arc<str>) -> Facts {
        self.marker.facts((noted.note, micros), self.change, &self.asked, identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::lineage::{Losses, ReplicationId};
    use crate::op::{Lineage, LockMode, Loss, Terms};
    use crate::time::Moment;

    const NOW: u64 = 1_790_000_000_000_000;
    const TERMS: Terms =
        Terms { max_ttl: Duration::from_secs(30), clock_error: Duration::from_secs(1) };

    fn asked() -> Asked {
        Asked {
            max_ttl: TERMS.max_ttl,
            clock_error: TERMS.clock_error,
            window: Duration::ZERO,
            longest_window: Duration::ZERO,
            trust_fresh: false,
            allow_eviction: false,
            durable: false,
            disturbed: None,
            epoch: Some(3),
            remembers: Remembered::default(),
            name: 1,
        }
    }

    /// A marker of a history that began `ago` ms before `NOW`, with a quarantine of 30 s.
    fn seen(ago: u64) -> Seen {
        let born = Marker::born(1, 2, 3, ReplicationId::of(4));
        let since = NOW / 1_000 - ago;
        let (clock_error, quarantine) = (1_000_000, 30_000);
        let floor = (since + 2_000 + quarantine) * 1_000;
        let marker = Marker { since, clock_error, quarantine, floor, epoch: 3, ..born };
        Seen::new(&marker, Change::default(), asked(), None)
    }

    fn window(seen: &Seen, not_after: Option<u64>, proposals: &[u64]) -> Option<(u64, u64)> {
        let acquire = |proposal: &u64| Op::Acquire {
            mode: LockMode::Exclusive,
            keys: crate::name::LockKeys::new("k"),
            owner: crate::token::OwnerToken::from_random(1),
            ttl: TERMS.max_ttl,
            proposal: *proposal,
            if_held: None,
        };
        let ops = proposals.iter().map(acquire).collect();
        let remembers = Remembered::default();
        seen.window(&Batch { terms: TERMS, not_after: None, remembers, ops }, not_after)
    }

    #[test]
    fn a_batch_is_not_late_and_its_proposals_are_in_range() {
        let old = seen(3_600_000);
        let from = (NOW / 1_000 - 3_600_000 + 32_000) * 1_000 + 1_000_000;
        assert_eq!(window(&old, Some(NOW + 7), &[]), Some((from, NOW + 7)));
        let (low, high) = (NOW - 400_000, NOW + 1_300_000);
        assert_eq!(window(&old, None, &[low]), Some((low - 1_000_000, low + 1_000_000)));
        assert_eq!(window(&old, None, &[low, high]), Some((high - 1_000_000, low + 1_000_000)));
        assert_eq!(window(&old, None, &[0]), None);
    }

    #[test]
    fn nothing_is_fast_in_a_quarantine_below_the_floor_or_around_a_handover() {
        let young = seen(20_000);
        assert_eq!(window(&young, None, &[]).map(|(from, _)| from), Some(NOW + 13_000_000));
        let mut raised = young;
        raised.marker.quarantine = 60_000;
        assert_eq!(window(&raised, None, &[]).map(|(from, _)| from), Some(NOW + 40_000_000));
        raised.marker.handover = Some(Handover::Settling(NOW / 1_000 + 41_000));
        assert_eq!(window(&raised, None, &[]).map(|(from, _)| from), Some(NOW + 41_000_000));
        raised.marker.handover = Some(Handover::Closed(NOW / 1_000));
        assert_eq!(window(&raised, None, &[]), None);
    }

    /// Whatever a client asks anew that could change the verdict, it judges again.
    #[test]
    fn a_marker_suits_only_who_would_judge_as_before() {
        let mut seen = seen(3_600_000);
        let loss = Loss { from: 1, began: 2, to: 3 };
        seen.marker.losses = Losses::default().and(loss);
        let own = seen.marker.lineage(None);
        let remembers = |newest| Remembered { newest, ..Remembered::default() };
        let of = |newest: Lineage| Asked { remembers: remembers(newest), ..asked() };
        let others = [
            ("longer lease", Asked { max_ttl: Duration::from_secs(31), ..asked() }),
            ("larger error", Asked { clock_error: Duration::from_secs(2), ..asked() }),
            ("longer L", Asked { longest_window: Duration::from_secs(1), ..asked() }),
            ("later epoch", Asked { epoch: Some(4), ..asked() }),
            ("a slot that was open", Asked { disturbed: Some(Moment::default()), ..asked() }),
            ("eviction", Asked { allow_eviction: true, ..asked() }),
            ("newer data", of(Lineage { generation: 2, ..own })),
            ("other data", of(Lineage { history: 9, ..own })),
            ("another branch", of(Lineage { generation: 0, history: 9, note: 1_000_000, ..own })),
            ("another vote", of(Lineage { generation: 0, vote: 9, ..own })),
            ("another deployment", of(Lineage { deployment: 9, ..Lineage::default() })),
        ];
        let half = Duration::from_millis(500);
        let covered = Asked { max_ttl: half, clock_error: half, ..asked() };
        assert!(seen.suits(&asked()) && seen.suits(&of(own)) && seen.suits(&covered));
        for (what, asked) in others {
            assert!(!seen.suits(&asked), "{what}");
        }
    }
}
