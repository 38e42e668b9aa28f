//! The marker in a server's answer, which shows since when the server's data are complete
//! (rule quarantine 2 in docs/design), and the checks that the next batches can skip because of
//! this marker.
//!
//! A batch contains the marker that the client saw last and a range of the server's clock. If the
//! marker and the data history are still the same, and the clock is in this range, nothing needs a
//! check. The script always reads the marker, the history and the clock. If all three are as
//! expected, the script skips the other checks and answers with the clock alone. So the client's
//! data only select the path of the script, and never change the result
//! (rule quarantine 1 in docs/design).

use std::sync::Arc;
use std::time::Duration;

use super::encode::{self, GroupTerms};
use super::facts::history_id;
use crate::op::{Batch, Began, Claim, Loss, Op};

/// Length in bytes of a marker (the server's stored facts about its data history) without losses.
const SHORTEST: usize = 140;
/// Length in bytes of one loss in the marker (the facts about the server's data). A loss is a range
/// of writes that the data may lack.
const LOSS: usize = 42;
/// Largest number of losses in a marker, which has the facts about a server's data.
const LOSSES: usize = 8;
/// Largest age, in ms, of the note in the marker (facts about the server's data) at which a batch
/// may take effect. The note is the server's clock at the last write of the marker. If the note is
/// older, the script first writes the marker again.
const NOTED: u64 = 1_000;

/// A marker, its fields, and the server's clock when the script read it. The marker is the value in
/// which a server stores facts about its data history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    text: String,
    /// The server's clock, in µs, when the script read the marker (the facts about the data
    /// history).
    at: u64,
    /// Clock error (E) of the batch for which the script last validated the marker (the facts about
    /// the data history).
    clock_error: Duration,
    pub(super) history_id: u64,
    /// Beginning of the data history (sequence of writes) in ms, by the server's clock; 0 if the
    /// server never lost data.
    pub(super) since: u64,
    pub(super) quarantine: u64,
    agreed: u64,
    waited: u64,
    /// Floor of this data history (sequence of writes), in µs. No fencing token of this history is
    /// smaller.
    floor: u64,
    pub(super) began: Began,
    /// True if the server is closed for a planned handover, or settles after one: leases from
    /// before the handover may still run (rule quarantine 11 in docs/design).
    is_around_a_handover: bool,
    /// The server's clock, in ms, at the last write of the marker (the facts about the data
    /// history).
    note: u64,
    pub(super) losses: Arc<[Loss]>,
}

impl Seen {
    /// Parses the marker (the facts about the data history) in the script's answer; `None` if the
    /// marker is not valid.
    pub(super) fn read(text: Vec<u8>, at: u64, clock_error: Duration) -> Option<Self> {
        let text = String::from_utf8(text).ok()?;
        let number = |from: usize, to: usize| {
            let digits = text.get(from - 1..to)?;
            digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
        };
        let replid = text.get(..40)?;
        let fits = (SHORTEST..=SHORTEST + LOSSES * LOSS).contains(&text.len())
            && (text.len() - SHORTEST).is_multiple_of(LOSS)
            && replid.bytes().all(|b| b.is_ascii_hexdigit());
        let began = match text.as_bytes().get(110)? {
            b'n' => Began::Known,
            b'e' => Began::Empty,
            b'l' => Began::Lost,
            _ => return None,
        };
        let losses = (SHORTEST..text.len()).step_by(LOSS).map(|at| {
            let (from, began) = (number(at + 2, at + 14)?, number(at + 16, at + 28)?);
            Some(Loss { from, began, to: number(at + 30, at + 42)? })
        });
        Some(Self {
            at,
            clock_error,
            history_id: history_id(replid).filter(|_| fits)?,
            since: number(42, 54)?,
            floor: number(56, 71)?,
            quarantine: number(73, 81)?,
            agreed: number(83, 95)?,
            waited: number(97, 109)?,
            began,
            is_around_a_handover: text.as_bytes().get(112)? != &b'-',
            note: number(128, 140)?,
            losses: losses.collect::<Option<_>>()?,
            text,
        })
    }

    /// Records that the server still had this marker (the facts about its data) at the time `at` of
    /// the server's clock.
    pub(super) fn again(self: Arc<Self>, at: u64) -> Arc<Self> {
        // The time `at` is needed only while a client waits for a hint (wake-up message).
        if self.is_awaited() { Arc::new(Self { at, ..(*self).clone() }) } else { self }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the time until the quarantine (time without grants) ends, at the time `node_micros`
    /// of the server's clock; zero if no quarantine runs.
    pub(super) fn left(&self, node_micros: u64) -> Duration {
        let till = if self.since > 0 { self.since + self.quarantine } else { 0 };
        Duration::from_millis(till.saturating_sub(node_micros / 1_000))
    }

    /// Returns true if a client may wait for a hint (wake-up message) from this server.
    pub(super) fn is_awaited(&self) -> bool {
        self.waited > self.at / 1_000
    }

    /// Returns the range of the server's clock (µs, both ends included) in which the script's fast
    /// path is valid for this batch. Returns `None` if the script has to run the checks at any
    /// time.
    pub(super) fn window(
        &self,
        batch: &Batch,
        not_after: Option<u64>,
        group_terms: GroupTerms,
    ) -> Option<(u64, u64)> {
        let (from, until) = self.window_of_any_note(batch, not_after, group_terms)?;
        // A write needs a note (the clock at the last write of the marker) that is at most a second
        // older than the write, and not newer (rule quarantine 13 in docs/design). A note is newer
        // if the server's clock has stepped back. If the server then refused to write the note
        // again, its writes would count as older than the note.
        let from = from.max(self.note * 1_000);
        let until = until.min((self.note + NOTED) * 1_000);
        (from <= until).then_some((from, until))
    }

    /// Returns the range of the server's clock as [`window`](Self::window) does, but without the
    /// limits that depend on the note, the server's clock at the last write of the marker.
    fn window_of_any_note(
        &self,
        batch: &Batch,
        not_after: Option<u64>,
        group_terms: GroupTerms,
    ) -> Option<(u64, u64)> {
        let (terms, asked) = (&batch.terms, encode::asked_quarantine(&batch.terms, group_terms));
        // The script validated the marker (facts about the server's data) with the clock error (E)
        // of an earlier batch. If this batch has another E, the script has to validate the marker
        // again.
        if self.is_around_a_handover || terms.clock_error != self.clock_error {
            return None;
        }
        // The marker (facts about the server's data) says that the data began empty, but this
        // client saw a marker of this server before that time. So the script has to record that
        // data were lost.
        let empty_since = self.losses.first().filter(|_| self.began == Began::Empty);
        let is_earlier = |micros: u64| empty_since.is_some_and(|loss| micros / 1_000 < loss.began);
        if batch.known_since.is_some_and(is_earlier) {
            return None;
        }
        // Time (ms) until which the clients have agreed on the length of the quarantine (time
        // without grants), so that the script need not write it again
        // (rule quarantine 7 in docs/design).
        if asked > self.quarantine {
            return None;
        }
        let agreed = self.agreed.checked_sub(asked)?;
        let error = encode::micros(terms.clock_error);
        // A batch may grant only after the end of the quarantine (time without grants). When the
        // server's clock is past the floor (smallest token) plus E (the clock error), every
        // proposed token that differs from this clock by at most E is above the floor. The returned
        // range of the server's clock never begins before `at`, because at an earlier time a client
        // may have waited for a hint (wake-up message).
        let granting = if self.since > 0 { (self.since + self.quarantine) * 1_000 } else { 0 };
        let mut from = self.at.max(granting).max(self.floor.saturating_add(error));
        let mut until = (agreed * 1_000).min(not_after.unwrap_or(u64::MAX));
        for op in &batch.ops {
            if let Op::Acquire { proposal, .. } | Op::Claim(Claim { proposal, .. }) = op {
                from = from.max(proposal.saturating_sub(error));
                until = until.min(proposal.saturating_add(error));
            }
        }
        (from <= until).then_some((from, until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{LockMode, Terms};

    const NOW: u64 = 1_790_000_000_000_000;
    const TERMS: Terms =
        Terms { max_ttl: Duration::from_secs(30), clock_error: Duration::from_secs(1) };

    /// Makes a marker (facts about a server's data) that is seen at `NOW`. The data history began
    /// `ago` ms earlier. `q` is the length of the quarantine in ms, and this length is agreed for
    /// another `agreed` ms.
    fn seen(ago: u64, q: u64, agreed: u64, tail: &str) -> Seen {
        let since = NOW / 1_000 - ago;
        let floor = (since + 2_000 + q) * 1_000;
        let agreed = NOW / 1_000 + agreed;
        let replid = "ab".repeat(20);
        let note = NOW / 1_000;
        let text = format!(
            "{replid} {since:013} {floor:016} {q:09} {agreed:013} {:013} {tail} {note:013}",
            0
        );
        Seen::read(text.into_bytes(), NOW, TERMS.clock_error).unwrap()
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
        let batch = Batch { terms: TERMS, not_after: None, known_since: None, ops };
        seen.window_of_any_note(&batch, not_after, GroupTerms::ALONE)
    }

    #[test]
    fn there_is_nothing_to_check_until_the_length_is_agreed_on_again() {
        let old = seen(3_600_000, 30_000, 50_000, "n -0000000000000");
        assert_eq!(window(&old, None, &[]), Some((NOW, NOW + 20_000_000)));
        // If the server has a longer quarantine (time without grants) than this client requests, it
        // keeps the longer one until the shorter one covers the rest of the time `agreed` (third
        // argument, in ms after now). If it has a shorter one, the script has to raise it.
        let longer = seen(3_600_000, 40_000, 50_000, "n -0000000000000");
        assert_eq!(window(&longer, None, &[]), Some((NOW, NOW + 20_000_000)));
        assert_eq!(window(&seen(3_600_000, 40_000, 29_999, "n -0000000000000"), None, &[]), None);
        assert_eq!(window(&seen(3_600_000, 29_999, 50_000, "n -0000000000000"), None, &[]), None);
        assert_eq!(window(&seen(3_600_000, 30_000, 29_999, "n -0000000000000"), None, &[]), None);
    }

    #[test]
    fn a_batch_is_not_late_and_its_proposals_are_in_range() {
        let old = seen(3_600_000, 30_000, 50_000, "n -0000000000000");
        assert_eq!(window(&old, Some(NOW + 7), &[]), Some((NOW, NOW + 7)));
        assert_eq!(window(&old, Some(NOW - 1), &[]), None);
        let (low, high) = (NOW - 400_000, NOW + 1_300_000);
        assert_eq!(window(&old, None, &[low]), Some((NOW, low + 1_000_000)));
        assert_eq!(window(&old, None, &[low, high]), Some((high - 1_000_000, low + 1_000_000)));
        assert_eq!(window(&old, None, &[0]), None);
    }

    #[test]
    fn nothing_is_expected_in_a_quarantine_below_the_floor_or_around_a_handover() {
        // The quarantine (time without grants) ends in ten seconds. The floor (no fencing token is
        // below it) is 2E later than that time; E, the clock error, is 1 s.
        let young = seen(20_000, 30_000, 60_000, "e -0000000000000");
        assert_eq!(window(&young, None, &[]), Some((NOW + 13_000_000, NOW + 30_000_000)));
        // The quarantine (time without grants) was made longer, 60 s, after the floor (smallest
        // fencing token, a time in µs) was written. So the end of the quarantine is later than the
        // floor.
        let text = young.text().replace(" 000030000 ", " 000060000 ");
        let raised = Seen::read(text.into_bytes(), NOW, TERMS.clock_error).unwrap();
        assert_eq!(window(&raised, None, &[]), Some((NOW + 40_000_000, NOW + 60_000_000)));
        assert_eq!(window(&seen(3_600_000, 30_000, 50_000, "n s1790000000000"), None, &[]), None);
        let other = Terms { clock_error: Duration::from_secs(2), ..TERMS };
        let batch = Batch { terms: other, not_after: None, known_since: None, ops: Vec::new() };
        assert_eq!(
            seen(3_600_000, 30_000, 50_000, "n -0000000000000").window(
                &batch,
                None,
                GroupTerms::ALONE
            ),
            None
        );
    }

    #[test]
    fn who_saw_other_data_has_the_script_write_that_they_are_lost() {
        let began = NOW / 1_000 - 3_600_000;
        let of = |letter| {
            let text = seen(3_600_000, 30_000, 50_000, &format!("{letter} -0000000000000")).text;
            let text = format!("{text} {:013}-{began:013}-{:013}", 0, began + 9_000);
            Seen::read(text.into_bytes(), NOW, TERMS.clock_error).unwrap()
        };
        let expects = |letter, known_since| {
            let batch = Batch { terms: TERMS, not_after: None, known_since, ops: Vec::new() };
            of(letter).window(&batch, None, GroupTerms::ALONE).is_some()
        };
        let (before, since) = (Some(began * 1_000 - 1), Some(began * 1_000));
        assert!(expects('e', None) && expects('e', since) && !expects('e', before));
        assert!(expects('l', before) && expects('n', before));
    }

    #[test]
    fn no_batch_takes_effect_with_a_note_older_than_a_second() {
        let mut old = seen(3_600_000, 30_000, 50_000, "n -0000000000000");
        old.note = NOW / 1_000 - 400;
        let until = |ops: Vec<Op>| {
            let batch = Batch { terms: TERMS, not_after: None, known_since: None, ops };
            old.window(&batch, None, GroupTerms::ALONE).map(|(_, until)| until - NOW)
        };
        let key = crate::op::RecordKey::from("k");
        let owner = crate::token::OwnerToken::from_random(1);
        let end = crate::op::ClaimEnd::Lapsed;
        assert_eq!(until(vec![Op::Unclaim { key, owner, end }]), Some(600_000));
        assert_eq!(until(Vec::new()), Some(600_000));
        let keys = crate::name::LockKeys::new("k");
        assert_eq!(
            until(vec![Op::Release { mode: LockMode::Exclusive, keys, owner, meta: false }]),
            Some(600_000)
        );
    }

    #[test]
    fn no_batch_takes_effect_with_a_note_of_the_future() {
        let mut stepped = seen(3_600_000, 30_000, 50_000, "n -0000000000000");
        stepped.note = NOW / 1_000 + 400;
        let batch = Batch { terms: TERMS, not_after: None, known_since: None, ops: Vec::new() };
        let window = stepped.window(&batch, None, GroupTerms::ALONE);
        assert_eq!(window, Some((NOW + 400_000, NOW + 1_400_000)));
    }

    #[test]
    fn losses_are_read_and_garbage_is_refused() {
        let text = seen(1, 2, 3, "n -0000000000000").text;
        let read = |more: &str| {
            Seen::read(format!("{text}{more}").into_bytes(), NOW, TERMS.clock_error)
                .map(|seen| seen.losses.to_vec())
        };
        assert_eq!(read(""), Some(vec![]));
        let two = " 0000000000000-0000000000007-0000000000007 \
                   0000000000006-0000000000009-0000000000009";
        assert_eq!(read(two), Some(vec![Loss::between(0, 7), Loss::between(6, 9)]));
        assert_eq!(read(&two.repeat(4)).map(|all| all.len()), Some(8));
        assert_eq!(read(&two.repeat(5)), None);
        assert_eq!(read(" 0000000000000-0000000000007-000000000000x"), None);
        assert_eq!(read(" "), None);
    }

    #[test]
    fn who_is_waited_for_is_forgotten_in_time() {
        let mut waited = seen(3_600_000, 30_000, 50_000, "n -0000000000000");
        waited.waited = NOW / 1_000 + 5;
        let waited = Arc::new(waited);
        assert!(waited.is_awaited() && Arc::clone(&waited).again(NOW + 4_999).is_awaited());
        assert!(!waited.again(NOW + 5_000).is_awaited());
    }
}
