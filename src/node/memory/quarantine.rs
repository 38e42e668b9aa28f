//! First step of every batch on a [`MemoryNode`](super::MemoryNode): checks the marker, which says
//! since when the node's data are complete. From the marker it derives the quarantine after a loss
//! of data, and the floor, below which no fence (fencing token) is given. `lua/quarantine.lua` has
//! the same rules for Redis.

use std::sync::Arc;
use std::time::Duration;

use crate::node::lost_claims::LostClaims;
use crate::op::{Began, Facts, Loss, QuarantineId, Reply, Terms};
use crate::time::{FENCE_SLACK, raise_lead, token_lead};

/// The marker of a node: the stored facts about the node's data history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marker {
    /// Identifier of the data history (sequence of writes behind the node's data) in which this
    /// marker was written.
    pub(super) history_id: u64,
    /// Time on the expiry clock, by which leases end, at which the data history began; zero if the
    /// node was created empty and has lost nothing since.
    pub(super) since: u64,
    /// Smallest fence (fencing token) that the node gives; no fence from before this data history
    /// began can be above it.
    pub(super) floor: u64,
    /// Length of a quarantine (the time after a loss of data in which the node grants nothing): the
    /// longest that any client asked for lately.
    pub(super) quarantine: Duration,
    /// Time until which the length in `quarantine` is kept although no client asks for that length
    /// any more. It is measured by the expiry clock, by which leases end.
    pub(super) agreed: u64,
    /// State of the data when this data history began: known, because a person marked the node as
    /// new; empty; or lost.
    pub(super) began: Began,
    /// State of the node around a planned handover; `None` if there is none.
    pub(super) handover: Option<Handover>,
    /// Reading of the wall clock (milliseconds since 1970) that a batch stored here last; 0: none.
    /// If the data are restored from a copy, everything written before this time is in them.
    note: u64,
    /// Ranges of writes that these data may lack.
    losses: Losses,
}

/// Ranges of writes that a node may lack, the latest one last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses([Option<Loss>; LOSSES]);

impl Losses {
    /// Adds a later loss (range of lost writes). If the list is full, two neighbours are merged
    /// first into one range that contains both: the pair whose merged range is shortest for its
    /// age. A loss of everything, always the first, is not merged.
    fn and(mut self, latest: Loss) -> Self {
        let all = &mut self.0;
        if all[LOSSES - 1].is_some() {
            let everything = usize::from(all[0].is_some_and(|first| first.from == 0));
            let pairs = (everything..LOSSES - 1).filter_map(|at| {
                let (a, b) = all[at].zip(all[at + 1])?;
                Some((at, Loss { from: a.from.min(b.from), began: b.began, to: a.to.max(b.to) }))
            });
            let span = |one: &Loss| u128::from(one.to.saturating_sub(one.from));
            let age = |one: &Loss| u128::from(latest.began.saturating_sub(one.began).max(1));
            let shortest =
                pairs.min_by(|(_, a), (_, b)| (span(a) * age(b)).cmp(&(span(b) * age(a))));
            if let Some((at, both)) = shortest {
                all[at] = Some(both);
                all[at + 1..].rotate_left(1);
                all[LOSSES - 1] = None;
            }
        }
        if let Some(place) = all.iter_mut().find(|place| place.is_none()) {
            *place = Some(latest);
        }
        self
    }

    /// Extends the latest loss (range of writes that the data may lack) to at least `window` (ms)
    /// after the beginning of the data history that followed it.
    fn with_window(mut self, window: u64) -> Self {
        if let Some(latest) = self.0.iter_mut().rev().flatten().next() {
            latest.to = latest.to.max(latest.began.saturating_add(window));
        }
        self
    }

    pub(super) fn list(&self) -> Arc<[Loss]> {
        self.0.iter().flatten().copied().collect()
    }
}

/// Largest number of losses in a marker (the stored facts about the data). A loss is a range of
/// writes that the data may lack.
const LOSSES: usize = 8;
/// Largest age in milliseconds of the `note` in the marker (facts about the data history): the
/// clock when a batch last stored it. If the note is older, a batch stores the clock again.
const NOTED: u64 = 1_000;

/// State of a node around a planned handover, with the time on the expiry clock at which it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "test-util"), expect(dead_code, reason = "only tests hand over"))]
pub(super) enum Handover {
    /// The node refuses every batch, and so does every server that receives this marker (the facts
    /// about the data history) by replication.
    Closed(u64),
    /// The handover is done, and the data are complete. But leases that were given before the
    /// handover may end too early by this server's clock.
    Settling(u64),
}

impl Marker {
    /// Makes the marker (the facts about the data history) of a node that is created now: it has
    /// granted nothing, so it has forgotten nothing.
    pub(super) fn born(history_id: u64) -> Self {
        Self {
            history_id,
            since: 0,
            floor: 0,
            quarantine: Duration::ZERO,
            agreed: 0,
            began: Began::Known,
            handover: None,
            note: 0,
            losses: Losses::default(),
        }
    }

    /// Closes the node for `span`. Returns false in a quarantine (a time without grants), because
    /// the node may not know all leases. Also returns false while the node settles after an earlier
    /// handover, because the marker (facts about the data) states only one of the two: closed or
    /// settling.
    #[cfg(feature = "test-util")]
    pub(super) fn close(&mut self, now: u64, span: Duration) -> bool {
        let settles = self.settles(now);
        if !self.left(now).is_zero() || settles {
            return false;
        }
        self.handover = Some(Handover::Closed(now.saturating_add(nanos(span))));
        true
    }

    /// Opens the node that was closed for a planned handover until `till`. If it was closed in an
    /// earlier data history (sequence of writes), the next batch begins a quarantine (a time
    /// without grants).
    #[cfg(feature = "test-util")]
    pub(super) fn open(&mut self, till: u64) {
        self.handover.take_if(|state| *state == Handover::Closed(till));
    }

    /// Does the last step of a planned handover on the new master: continues without a quarantine
    /// (time without grants) in the later data history `history_id`. The marker (facts about the
    /// data) must state that the node answers nothing until `till`, and at least `apart` must be
    /// left until `till`. Then no other server that has this marker can have opened by itself.
    /// Returns true if the node continues.
    #[cfg(feature = "test-util")]
    pub(super) fn finish(&mut self, history_id: u64, till: u64, now: u64, apart: Duration) -> bool {
        let holds = self.handover == Some(Handover::Closed(till));
        let may =
            holds && self.history_id != history_id && now.saturating_add(nanos(apart)) <= till;
        if may {
            self.continue_in(history_id, now);
        }
        may
    }

    /// Continues in the data history `history_id` without a quarantine (time without grants),
    /// because the data are certainly complete.
    #[cfg(feature = "test-util")]
    pub(super) fn continue_in(&mut self, history_id: u64, now: u64) {
        self.history_id = history_id;
        self.handover = Some(Handover::Settling(now.saturating_add(nanos(self.quarantine))));
    }

    /// Returns the time until which a planned handover has closed the node, even if this time has
    /// passed; `None` if the node was not closed or was opened again.
    #[cfg(feature = "test-util")]
    pub(super) fn closing(&self) -> Option<u64> {
        match self.handover {
            Some(Handover::Closed(till)) => Some(till),
            _ => None,
        }
    }

    /// Returns the time for which the node still answers nothing because a planned handover has
    /// closed it; `None` if it is not closed.
    pub(super) fn closed(&self, now: u64) -> Option<Duration> {
        match self.handover {
            Some(Handover::Closed(till)) if now < till => Some(Duration::from_nanos(till - now)),
            _ => None,
        }
    }

    /// Returns true if leases given before a planned handover may still last.
    fn settles(&self, now: u64) -> bool {
        matches!(self.handover, Some(Handover::Settling(till)) if now < till)
    }

    /// Returns the time in ns for which a claim may still run after its lease has ended by this
    /// clock. An operator's change has to wait for this time. Zero unless the node is settling:
    /// leases from before a planned handover may last longer than this clock shows.
    #[cfg(feature = "test-util")]
    pub(super) fn claims_last(&self, now: u64) -> u64 {
        if self.settles(now) { nanos(self.quarantine) } else { 0 }
    }

    /// Records in the marker (facts about the data) that a client saw data on this node at
    /// `known_since` (µs, by the node's clock). If that was before the present data began, earlier
    /// data were lost. `new`: the present data begin with this batch.
    fn remember(&mut self, known_since: Option<u64>, new: bool) {
        let began = self.losses.0[0].map_or(0, |first| first.began);
        let earlier = known_since.is_some_and(|at| new || at / 1_000 < began);
        if self.began == Began::Empty && earlier {
            self.began = Began::Lost;
        }
    }

    fn left(&self, now: u64) -> Duration {
        if self.since == 0 {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.since.saturating_add(nanos(self.quarantine)).saturating_sub(now))
    }

    /// Updates the length of a quarantine (time without grants after a loss) by the length that
    /// this batch asks for. All clients of a node share one length, the longest. It is kept for one
    /// length after the last client that asked for it, and never shrinks during a quarantine.
    /// A shorter length replaces it as soon as it covers the rest of that time
    /// (rule quarantine 7 in docs/design). Returns true if a shorter length was raised.
    fn agree(&mut self, asked: Duration, now: u64) -> bool {
        let (before, end) = (self.quarantine, now.saturating_add(nanos(asked)));
        if asked >= before || end > self.agreed && self.left(now).is_zero() {
            self.quarantine = asked;
        }
        self.agreed = self.agreed.max(end);
        !before.is_zero() && asked > before
    }
}

/// Readings of the node's clocks at the start of a batch of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// Expiry clock in nanoseconds; never zero.
    pub(super) now: u64,
    /// Wall clock in microseconds since 1970.
    pub(super) micros: u64,
}

/// Failover windows (L): times for which a server that was replaced may still grant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    /// Longest failover window of all servers whose settings are known.
    pub(super) read: Duration,
    /// Longest failover window (time in which a replaced master may still grant) if servers whose
    /// settings are not known are included; it counts when a data history begins.
    pub(super) longest: Duration,
}

/// Properties of a node that do not depend on the batch, but that each batch needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nature {
    pub(super) history_id: u64,
    pub(super) windows: Windows,
}

/// State that all ops of one batch share.
#[derive(Clone, Debug)]
pub(super) struct Header {
    /// Facts about the node (clock, identity, data history) that the answer to the batch contains.
    pub(super) facts: Facts,
    /// Time in ns on the expiry clock, by which leases end.
    pub(super) now: u64,
    pub(super) floor: u64,
    /// True if the batch arrived after its deadline. Then only releases and unclaims (releases of a
    /// claim) are executed.
    pub(super) late: bool,
    /// True if leases given before a planned handover may have ended early by this clock.
    pub(super) settling: bool,
    terms: Terms,
}

impl Header {
    /// Checks that the marker (the stored facts about the data) is of the node's present data
    /// history, and replaces a marker of an earlier history. Returns the state for the ops of the
    /// batch.
    pub(super) fn open(
        marker: &mut Option<Marker>,
        nature: Nature,
        identity: Arc<str>,
        clock: Clock,
        terms: Terms,
        (not_after, known_since): (Option<u64>, Option<u64>),
    ) -> Self {
        let Nature { history_id, windows } = nature;
        let q = terms.max_ttl + windows.read;
        let marker_missing = marker.is_none();
        let known = marker.filter(|m| m.history_id == history_id);
        let mut m = known.unwrap_or_else(|| begin(marker.as_ref(), nature, clock, &terms));
        if !m.left(clock.now).is_zero() {
            // A server that this one replaced may still write for L (the failover window) after
            // this server's data history began. Of all clients that send requests during the
            // quarantine (time without grants), the longest L counts.
            m.losses = m.losses.with_window(millis(windows.longest));
        }
        m.remember(known_since, marker_missing);
        let quarantine_raised = m.agree(q, clock.now);
        let settling = m.settles(clock.now);
        m.handover = m.handover.filter(|_| settling);
        let now = clock.micros / 1_000;
        // The clock is stored if the stored value is too old, or if the clock was set back.
        if now > m.note + NOTED || now < m.note {
            m.note = now;
        }
        *marker = Some(m);
        let late = not_after.is_some_and(|t| clock.micros > t);
        let facts = Facts {
            node_micros: clock.micros,
            history_id,
            since: m.since,
            identity,
            quarantine: m.left(clock.now),
            quarantine_len: m.quarantine,
            quarantine_asked: q,
            quarantine_raised,
            new_history: known.is_none(),
            marker_missing,
            began: m.began,
            losses: m.losses.list(),
        };
        Self { facts, now: clock.now, floor: m.floor, late, settling, terms }
    }

    /// Returns the identifier of the quarantine (time without grants) with which this data history
    /// began.
    pub(super) fn id(&self) -> QuarantineId {
        self.facts.history()
    }

    /// Returns true if the node is in quarantine, so that it grants nothing.
    pub(super) fn is_quarantined(&self) -> bool {
        !self.facts.quarantine.is_zero()
    }

    /// Returns the reply of a node in quarantine (it may have lost leases) to a request for a
    /// grant.
    pub(super) fn quarantined(&self) -> Reply {
        let (remaining, began) = (self.facts.quarantine, self.facts.began);
        Reply::Quarantined { remaining, id: self.id(), began }
    }

    /// Returns true if the node accepts the extension of a lease: always if it is in no quarantine
    /// (time without grants), and during a quarantine only if the holder names that quarantine.
    pub(super) fn may_extend(&self, reassert: Option<QuarantineId>) -> bool {
        !self.is_quarantined() || reassert == Some(self.id())
    }

    /// Returns the time on the expiry clock that is `span` from now.
    pub(super) fn after(&self, span: Duration) -> u64 {
        self.now.saturating_add(nanos(span))
    }

    /// Returns the time left until `till`; zero if it has passed.
    pub(super) fn until(&self, till: u64) -> Duration {
        Duration::from_nanos(till.saturating_sub(self.now))
    }

    /// Returns the time until which the node keeps a fence (last fencing token of a lock) that is
    /// used now. After that time even a client whose clock is behind proposes a larger fence.
    pub(super) fn fence_till(&self) -> u64 {
        let lead = token_lead(self.terms.clock_error);
        self.after(self.terms.max_ttl + lead + FENCE_SLACK)
    }

    /// Returns the time until which the node keeps a record that is written now. By any clock, the
    /// record lasts for its retention. Its promise (the highest ballot that the node has accepted)
    /// lasts until every late request has arrived.
    pub(super) fn record_till(&self, retention: Duration) -> u64 {
        let kept = retention + 2 * self.terms.clock_error + Duration::from_millis(1);
        self.after(kept).max(self.fence_till())
    }

    /// Returns the largest difference between the clocks of two nodes.
    pub(super) fn apart(&self) -> Duration {
        2 * self.terms.clock_error
    }

    /// Returns this node's losses of data and its clock, from which the caller derives if a claim
    /// of a key may be lost.
    pub(super) fn lost_claims(&self) -> LostClaims {
        let Facts { losses, began, node_micros, .. } = &self.facts;
        LostClaims::new(Arc::clone(losses), *began, self.terms.clock_error, node_micros / 1_000)
    }

    /// Returns true if a request made at `created` (milliseconds since 1970) is older than the
    /// retention, the time for which records are kept.
    pub(super) fn is_too_old(&self, created: Option<u64>, retention: Duration) -> bool {
        created.is_some_and(|at| at + millis(retention) < self.facts.node_micros / 1_000)
    }

    /// Returns the fence (fencing token) of a new grant: the largest of `fence + 1`, the proposal,
    /// and the floor (smallest token of this data history). The proposal is first limited to this
    /// node's clock ± E, the largest clock error.
    pub(super) fn next_fence(&self, fence: u64, proposal: u64) -> u64 {
        let error = micros(self.terms.clock_error);
        let low = self.facts.node_micros.saturating_sub(error);
        let high = self.facts.node_micros.saturating_add(error);
        fence.saturating_add(1).max(proposal.clamp(low, high)).max(self.floor)
    }

    /// Returns true if a token is further ahead of this node's clock than correct clocks and nodes
    /// can produce.
    pub(super) fn is_ahead(&self, token: u64) -> bool {
        token > self.facts.node_micros.saturating_add(micros(raise_lead(self.terms.clock_error)))
    }
}

/// Makes the marker, the stored facts about the data history, for a history that begins with this
/// batch. `before` is the marker of the earlier history, if the node has one.
fn begin(
    before: Option<&Marker>,
    Nature { history_id, windows }: Nature,
    clock: Clock,
    terms: &Terms,
) -> Marker {
    // The marker (record of the data history) may be older than the settings of the server that was
    // replaced just now. So the quarantine includes the longest failover window, the time for which
    // a replaced server may still grant.
    let q = terms.max_ttl + windows.longest;
    let quarantine = before.map_or(q, |m| m.quarantine.max(q));
    // The floor (smallest token of the new data history) is ahead by 2E, where E is the largest
    // clock error: this clock may be behind by E, and the clock of a client that proposed an
    // earlier token ahead by E. The floor is also ahead by the length of the quarantine, because a
    // server that this one replaced may continue to grant for a part of it.
    let lead = 2 * terms.clock_error + quarantine;
    let now = clock.micros / 1_000;
    let from = before.map_or(0, |m| m.note);
    let loss = Loss { from, began: now, to: now };
    let losses = before.map_or_else(Losses::default, |m| m.losses).and(loss);
    Marker {
        history_id,
        since: clock.now,
        floor: clock.micros.saturating_add(micros(lead)),
        quarantine,
        agreed: clock.now.saturating_add(nanos(quarantine)),
        began: before.map_or(Began::Empty, |m| m.began),
        handover: None,
        note: now,
        losses,
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
