//! Counters of an election: the time without a leader, and how close its own terms came to their
//! end.

use std::time::Duration;

use crate::client::lease::Lease;
use crate::time::{Drift, Moment, validity};

/// Counts of an [`Election`](super::Election) and its clones since it was built. Nothing is decided
/// by them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElectionMetrics {
    /// Terms that this process won.
    pub won: u64,
    /// Terms that this process lost (without those that it resigned).
    pub lost: u64,
    /// Total time for which no process was known to lead, since the first campaign or look of this
    /// process. A leader that died counts until its lease is over on the nodes. Time in which the
    /// nodes could not be asked counts from the end of the last lease that was seen.
    pub leaderless: Duration,
    /// Time for which no process has been known to lead until now; zero while one leads.
    pub leaderless_now: Duration,
    /// Shortest time between giving up a term that could not be renewed and the earliest moment at
    /// which another process could have led; zero if one loss was noticed too late for certainty.
    /// `None` if there was no such loss. A [declared drain time](super::ElectionBuilder::drain) is
    /// part of it. If it comes near zero, the ttl is too short for how this process or its machine
    /// stalls.
    pub least_margin: Option<Duration>,
    /// Longest time from the first attempt of a renewal until a majority had confirmed it. If it
    /// comes near half of the ttl, the ttl is too short for these nodes and this network.
    pub longest_renewal: Duration,
}

/// Sums over all terms except the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    won: u64,
    lost: u64,
    least_margin: Option<Duration>,
    longest_renewal: Duration,
    leaderless: Duration,
    /// Time until which a process was known to lead; `None` before the first campaign or look.
    led_until: Option<Moment>,
}

impl Sums {
    /// Adds the previous term, which is over, when a campaign begins or is won.
    pub(super) fn begin(&mut self, now: Moment, before: Option<&Lease>, drift: Drift) {
        self.absorb(before);
        self.led_until.get_or_insert(now);
        if let Some(lease) = before {
            self.close(lease, now, drift);
        }
    }

    fn close(&mut self, lease: &Lease, now: Moment, drift: Drift) {
        self.longest_renewal = self.longest_renewal.max(lease.longest_renewal(now));
        let over = lease.over_since();
        let ended = over.map_or(now, |over| over.at);
        if lease.is_valid(now) || over.is_some_and(|over| !over.lost) {
            return;
        }
        self.lost += 1;
        // A term that a majority reported to be another process's was taken away, not given up, so
        // it has no margin.
        if ended >= lease.until() {
            let kept = lease.ttl + lease.drain;
            let allowance = kept.saturating_sub(validity(kept, drift));
            let margin = (lease.until() + lease.drain + allowance).since(ended);
            self.least_margin = Some(self.least_margin.map_or(margin, |least| least.min(margin)));
        }
    }

    pub(super) fn won(&mut self, now: Moment, until: Moment) {
        self.won += 1;
        self.led(now, until);
    }

    /// Counts this process's own last term as time with a leader.
    pub(super) fn absorb(&mut self, lease: Option<&Lease>) {
        let Some(lease) = lease else { return };
        let end = lease.over_since().map_or(lease.until(), |over| over.at.min(lease.until()));
        self.led_until = self.led_until.max(Some(end));
    }

    pub(super) fn led(&mut self, now: Moment, until: Moment) {
        let before = self.led_until.unwrap_or(now);
        self.leaderless += now.since(before);
        self.led_until = Some(until.max(now));
    }

    pub(super) fn vacant(&mut self, now: Moment) {
        self.led_until = Some(self.led_until.map_or(now, |until| until.min(now)));
    }

    /// Returns all counts, with the last term included.
    pub(super) fn with(self, last: Option<&Lease>, now: Moment, drift: Drift) -> ElectionMetrics {
        let mut sums = self;
        sums.absorb(last);
        if let Some(lease) = last {
            sums.close(lease, now, drift);
        }
        let leaderless_now = sums.led_until.map_or(Duration::ZERO, |until| now.since(until));
        ElectionMetrics {
            won: sums.won,
            lost: sums.lost,
            leaderless: sums.leaderless + leaderless_now,
            leaderless_now,
            least_margin: sums.least_margin,
            longest_renewal: sums.longest_renewal,
        }
    }
}
