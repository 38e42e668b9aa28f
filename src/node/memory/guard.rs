//! The crash guard that opens every batch (DESIGN 5.5): marker, quarantine, floor.

use std::time::Duration;

use crate::op::{Reply, Terms};

/// Added to a fence's life so that it certainly outlives what was reckoned in whole milliseconds.
const FENCE_SLACK: Duration = Duration::from_secs(1);

/// The node-wide marker: since when this node's memory is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marker {
    /// The data history the marker was written in.
    pub(super) generation: u64,
    /// When it was written, on the expiry clock; zero = since ever (a node born empty).
    pub(super) since: u64,
    /// No fence below this is handed out: more than any clock can have proposed before.
    pub(super) floor: u64,
    /// The quarantine's length; the longest that any client asked for.
    pub(super) quarantine: Duration,
}

impl Marker {
    /// A node that was created this moment: nothing can have been granted, nothing forgotten.
    pub(super) fn born(generation: u64) -> Self {
        Self { generation, since: 0, floor: 0, quarantine: Duration::ZERO }
    }
}

/// What the clocks say at the start of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// Expiry clock, nanoseconds; never zero.
    pub(super) now: u64,
    /// Wall clock, microseconds since 1970.
    pub(super) micros: u64,
}

/// All that the ops of one batch share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) now: u64,
    pub(super) micros: u64,
    pub(super) since: u64,
    pub(super) floor: u64,
    /// Rest of the quarantine; zero outside.
    pub(super) quarantine: Duration,
    pub(super) quarantine_len: Duration,
    /// What this batch asked it to be, and whether that was longer than what another had asked.
    pub(super) quarantine_asked: Duration,
    pub(super) quarantine_raised: bool,
    /// Rest of the failover window, L from `since`, in which a replaced master may still grant;
    /// zero outside.
    window: Duration,
    pub(super) new_generation: bool,
    /// There was no marker at all.
    pub(super) marker_missing: bool,
    /// How long a fence is remembered after its last use, nanoseconds.
    fence_life: u64,
    clock_error: u64,
}

impl Header {
    /// Checks the marker against the node's generation and sets it if it is not from here.
    pub(super) fn open(
        marker: &mut Option<Marker>,
        last_since: &mut u64,
        generation: u64,
        clock: Clock,
        terms: &Terms,
        window: Duration,
    ) -> Self {
        let error = micros(terms.clock_error);
        let q = terms.max_ttl + window;
        let (marker_missing, told) = (marker.is_none(), marker.map_or(q, |m| m.quarantine));
        let known = marker.filter(|m| m.generation == generation);
        let mut m = known.unwrap_or_else(|| Marker {
            generation,
            // Never the same twice, even if two restarts share an instant: promises are told apart
            // by it.
            since: clock.now.max(*last_since + 1),
            // Twice: this clock may be behind by E and the clock of who proposed ahead by E.
            floor: clock.micros.saturating_add(2 * error),
            quarantine: q,
        });
        #[cfg(feature = "sim-bugs")]
        if crate::bugs::on(crate::bugs::Bug::NoFloor) {
            m.floor = 0;
        }
        // One client with a shorter quarantine would break it for all (5.5).
        m.quarantine = m.quarantine.max(q);
        *last_since = m.since.max(*last_since);
        *marker = Some(m);
        let rest = |span| match m.since {
            0 => Duration::ZERO,
            since => {
                Duration::from_nanos(since.saturating_add(nanos(span)).saturating_sub(clock.now))
            }
        };
        #[cfg(feature = "sim-bugs")]
        if crate::bugs::on(crate::bugs::Bug::QuarantineShort) {
            m.quarantine = q.saturating_sub(Duration::from_millis(1));
        }
        Self {
            now: clock.now,
            micros: clock.micros,
            since: m.since,
            floor: m.floor,
            quarantine: rest(m.quarantine),
            quarantine_len: m.quarantine,
            quarantine_asked: q,
            quarantine_raised: !told.is_zero() && told < q,
            window: rest(window),
            new_generation: known.is_none(),
            marker_missing,
            fence_life: nanos(terms.max_ttl + 4 * terms.clock_error + FENCE_SLACK),
            clock_error: error,
        }
    }

    /// The answer of a node that grants nothing yet.
    pub(super) fn quarantined(&self) -> Reply {
        Reply::Quarantined { remaining: self.quarantine, epoch: self.since }
    }

    /// Whether a holder may write anew what is not there: outside quarantine, or within it to put
    /// back what it knows that this node forgot (5.3).
    pub(super) fn may_recreate(&self, reassert: Option<u64>) -> bool {
        #[cfg(feature = "sim-bugs")]
        if crate::bugs::on(crate::bugs::Bug::RecreateInQuarantine) {
            return true;
        }
        self.quarantine.is_zero() || reassert == Some(self.since)
    }

    /// Whether a holder may prolong its own that stands here until `till`: in the failover window
    /// only what a replaced master cannot see expire and give away before it stops, or what its
    /// holder knows to last there (5.3).
    pub(super) fn may_prolong(&self, till: Option<u64>, reassert: Option<u64>) -> bool {
        #[cfg(feature = "sim-bugs")]
        if crate::bugs::on(crate::bugs::Bug::TwoMastersVote) {
            return true;
        }
        self.window.is_zero()
            || till.is_none_or(|t| self.until(t) >= self.window)
            || reassert == Some(self.since)
    }

    /// When something that starts now and lasts `span` ends.
    pub(super) fn after(&self, span: Duration) -> u64 {
        self.now.saturating_add(nanos(span))
    }

    /// How long until `till`.
    pub(super) fn until(&self, till: u64) -> Duration {
        Duration::from_nanos(till.saturating_sub(self.now))
    }

    /// For how long this node has forgotten nothing.
    pub(super) fn complete_for(&self) -> Duration {
        Duration::from_nanos(self.now.saturating_sub(self.since))
    }

    /// Until when a fence used now is remembered.
    pub(super) fn fence_till(&self) -> u64 {
        self.now.saturating_add(self.fence_life)
    }

    /// The fence of a new grant: above all before, near true time, not below the floor (5.1, 5.5).
    pub(super) fn next_fence(&self, fence: u64, proposal: u64) -> u64 {
        let low = self.micros.saturating_sub(self.clock_error);
        let high = self.micros.saturating_add(self.clock_error);
        fence.saturating_add(1).max(proposal.clamp(low, high)).max(self.floor)
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}
