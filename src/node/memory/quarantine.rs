//! First step of every batch: the marker, which tells since when this node's data are complete, the
//! quarantine after a loss, and the floor below which no fence is given. The same rules as in
//! `lua/history.lua`, for [`MemoryNode`](super::MemoryNode).

use std::sync::Arc;
use std::time::Duration;

use crate::node::lost_claims::LostClaims;
use crate::op::{Began, Loss, QuarantineId, Reply, Terms};
use crate::time::{FENCE_SLACK, raise_lead, token_lead};

/// The node-wide marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marker {
    /// Data history in which the marker was written.
    pub(super) history_id: u64,
    /// Time at which it was written, on the expiry clock; zero: since ever (a node created empty).
    pub(super) since: u64,
    /// Smallest fence that is given: more than any clock can have proposed before.
    pub(super) floor: u64,
    /// Length of the quarantine: the longest that any client asked for lately.
    pub(super) quarantine: Duration,
    /// Time until which the length is kept without further requests for it.
    pub(super) agreed: u64,
    /// Origin of the data.
    pub(super) began: Began,
    /// Planned handover that is under way.
    pub(super) handover: Option<Handover>,
    /// Wall clock in milliseconds when a batch last noted it; 0: never.
    note: u64,
    /// Losses of these data.
    losses: Losses,
}

/// Writes that a node may lack, the latest loss last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses([Option<Loss>; LOSSES]);

impl Losses {
    /// Adds a later loss. If there are too many, one takes the place of two neighbours: it contains
    /// both, and is the shortest for its age. A loss of everything stays the first.
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

    /// Makes the latest loss last at least this long after its history began.
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

/// Most losses that a marker lists.
const LOSSES: usize = 8;
/// Largest age of the note when a batch has taken effect, in milliseconds.
const NOTED: u64 = 1_000;

/// State of a planned handover, with its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "test-util"), expect(dead_code, reason = "only tests hand over"))]
pub(super) enum Handover {
    /// Nothing is answered, neither here nor by a server that receives this marker.
    Closed(u64),
    /// The data are complete; only leases given before the handover may end early by this clock.
    Settling(u64),
}

impl Marker {
    /// Makes the marker of a node that is created now: nothing was granted, so nothing is
    /// forgotten.
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

    /// Closes the node for `span`. Returns false in a quarantine, because not all leases are known,
    /// and while the node settles, because opened again it would not know that any more.
    #[cfg(feature = "test-util")]
    pub(super) fn close(&mut self, now: u64, span: Duration) -> bool {
        let settles = self.settles(now);
        if !self.left(now).is_zero() || settles {
            return false;
        }
        self.handover = Some(Handover::Closed(now.saturating_add(nanos(span))));
        true
    }

    /// Opens the node that was closed until `till`. In another history than that of the closing a
    /// quarantine begins.
    #[cfg(feature = "test-util")]
    pub(super) fn open(&mut self, till: u64) {
        self.handover.take_if(|state| *state == Handover::Closed(till));
    }

    /// Continues in a later history if these data hold the closing until `till`, unused, and more
    /// than `apart` of it is left: so no other server that has this closing can have opened by
    /// itself.
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

    /// Continues in a history whose data are certainly complete.
    #[cfg(feature = "test-util")]
    pub(super) fn continue_in(&mut self, history_id: u64, now: u64) {
        self.history_id = history_id;
        self.handover = Some(Handover::Settling(now.saturating_add(nanos(self.quarantine))));
    }

    /// Returns the end of the closing, even if it is over.
    #[cfg(feature = "test-util")]
    pub(super) fn closing(&self) -> Option<u64> {
        match self.handover {
            Some(Handover::Closed(till)) => Some(till),
            _ => None,
        }
    }

    /// Returns the time for which the node stays closed.
    pub(super) fn closed(&self, now: u64) -> Option<Duration> {
        match self.handover {
            Some(Handover::Closed(till)) if now < till => Some(Duration::from_nanos(till - now)),
            _ => None,
        }
    }

    /// Returns true if leases given before a handover may still last.
    fn settles(&self, now: u64) -> bool {
        matches!(self.handover, Some(Handover::Settling(till)) if now < till)
    }

    /// Returns the time (ns) for which a claim may still run after its end by this clock, as far as
    /// an operator can know.
    #[cfg(feature = "test-util")]
    pub(super) fn claims_last(&self, now: u64) -> u64 {
        if self.settles(now) { nanos(self.quarantine) } else { 0 }
    }

    /// Records that a client saw other data here, at this time by the node's clock (µs): before the
    /// present data began, which was just now if they are `new`.
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

    /// Updates the length by what this batch asks for. All clients of a node share one length, the
    /// longest; it is kept for one length after the last client that asked for it, and never
    /// shrinks during a quarantine. Returns true if it was raised.
    fn agree(&mut self, asked: Duration, now: u64) -> bool {
        let before = self.quarantine;
        if asked >= before {
            self.quarantine = asked;
            self.agreed = self.agreed.max(now.saturating_add(nanos(asked)));
            return !before.is_zero() && asked > before;
        }
        if now > self.agreed && self.left(now).is_zero() {
            self.quarantine = asked;
            self.agreed = now.saturating_add(nanos(asked));
        }
        false
    }
}

/// Readings of the clocks at the start of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// Expiry clock in nanoseconds; never zero.
    pub(super) now: u64,
    /// Wall clock in microseconds since 1970.
    pub(super) micros: u64,
}

/// L: time for which a server that this one replaced may still grant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    /// L by all servers whose settings are known.
    pub(super) read: Duration,
    /// L with the servers whose settings are not known: it counts where a history begins.
    pub(super) longest: Duration,
}

/// Properties of a node that each batch needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nature {
    pub(super) history_id: u64,
    pub(super) windows: Windows,
}

/// State that all ops of one batch share.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Header {
    pub(super) now: u64,
    pub(super) micros: u64,
    pub(super) since: u64,
    pub(super) floor: u64,
    /// Rest of the quarantine; zero outside of one.
    pub(super) quarantine: Duration,
    pub(super) quarantine_len: Duration,
    /// Length that this batch asked for, and if it was longer than the one asked for before.
    pub(super) quarantine_asked: Duration,
    pub(super) quarantine_raised: bool,
    pub(super) new_history: bool,
    /// True if there was no marker at all.
    pub(super) marker_missing: bool,
    pub(super) began: Began,
    /// True if the batch came too late to take effect.
    pub(super) late: bool,
    /// True if leases given before a handover may have ended early.
    pub(super) settling: bool,
    pub(super) losses: Losses,
    history_id: u64,
    terms: Terms,
}

impl Header {
    /// Checks the marker against the node's history, and replaces it if it is of another one.
    pub(super) fn open(
        marker: &mut Option<Marker>,
        nature: Nature,
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
            // A server that this one replaced goes on for L: the longest of those who ask.
            m.losses = m.losses.with_window(millis(windows.longest));
        }
        m.remember(known_since, marker_missing);
        let quarantine_raised = m.agree(q, clock.now);
        let settling = m.settles(clock.now);
        m.handover = m.handover.filter(|_| settling);
        let now = clock.micros / 1_000;
        // A clock that was set back notes again, too.
        if now > m.note + NOTED || now < m.note {
            m.note = now;
        }
        *marker = Some(m);
        let late = not_after.is_some_and(|t| clock.micros > t);
        Self {
            now: clock.now,
            micros: clock.micros,
            since: m.since,
            floor: m.floor,
            quarantine: m.left(clock.now),
            quarantine_len: m.quarantine,
            quarantine_asked: q,
            quarantine_raised,
            new_history: known.is_none(),
            marker_missing,
            began: m.began,
            late,
            settling,
            losses: m.losses,
            history_id,
            terms,
        }
    }

    /// Returns the name of this history's quarantine.
    pub(super) fn id(&self) -> QuarantineId {
        QuarantineId { history: self.history_id, since: self.since }
    }

    /// Returns the answer of a node that grants nothing yet.
    pub(super) fn quarantined(&self) -> Reply {
        let (remaining, began) = (self.quarantine, self.began);
        Reply::Quarantined { remaining, id: self.id(), began }
    }

    /// Returns true if an extension counts: outside quarantine, or within it if its holder names
    /// it.
    pub(super) fn may_extend(&self, reassert: Option<QuarantineId>) -> bool {
        self.quarantine.is_zero() || reassert == Some(self.id())
    }

    /// Returns the end of something that starts now and lasts `span`.
    pub(super) fn after(&self, span: Duration) -> u64 {
        self.now.saturating_add(nanos(span))
    }

    /// Returns the time left until `till`.
    pub(super) fn until(&self, till: u64) -> Duration {
        Duration::from_nanos(till.saturating_sub(self.now))
    }

    /// Returns the time until which a fence used now is remembered: after it even a clock that is
    /// behind proposes more.
    pub(super) fn fence_till(&self) -> u64 {
        let lead = token_lead(self.terms.clock_error);
        self.after(self.terms.max_ttl + lead + FENCE_SLACK)
    }

    /// Returns the time until which a record written now is kept: so that no request within its
    /// retention finds it gone by any clock, and so that its promise outlives every late request.
    pub(super) fn record_till(&self, retention: Duration) -> u64 {
        let kept = retention + 2 * self.terms.clock_error + Duration::from_millis(1);
        self.after(kept).max(self.fence_till())
    }

    /// Returns the largest difference between the clocks of two nodes.
    pub(super) fn apart(&self) -> Duration {
        2 * self.terms.clock_error
    }

    /// Returns this node's losses and clock, to judge whether it has every claim of a key.
    pub(super) fn lost_claims(&self) -> LostClaims {
        let now = self.micros / 1_000;
        LostClaims::new(self.losses.list(), self.began, self.terms.clock_error, now)
    }

    /// Returns true if a request made at `created` (milliseconds since 1970) is older than the
    /// retention.
    pub(super) fn is_too_old(&self, created: Option<u64>, retention: Duration) -> bool {
        created.is_some_and(|at| at + millis(retention) < self.micros / 1_000)
    }

    /// Returns the fence of a new grant: above all before, near true time, not below the floor.
    pub(super) fn next_fence(&self, fence: u64, proposal: u64) -> u64 {
        let error = micros(self.terms.clock_error);
        let low = self.micros.saturating_sub(error);
        let high = self.micros.saturating_add(error);
        fence.saturating_add(1).max(proposal.clamp(low, high)).max(self.floor)
    }

    /// Returns true if a token lies further ahead than honest clocks and nodes can bring it.
    pub(super) fn is_ahead(&self, token: u64) -> bool {
        token > self.micros.saturating_add(micros(raise_lead(self.terms.clock_error)))
    }
}

/// Makes the marker of a history that begins with this batch.
fn begin(
    before: Option<&Marker>,
    Nature { history_id, windows }: Nature,
    clock: Clock,
    terms: &Terms,
) -> Marker {
    // The marker may be older than the settings of the server that was replaced just now.
    let q = terms.max_ttl + windows.longest;
    let quarantine = before.map_or(q, |m| m.quarantine.max(q));
    // This clock may be behind by E and the clock of the proposer ahead by E. And for as long as
    // the quarantine, at most, a server that this one replaced goes on granting.
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
