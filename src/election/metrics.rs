//! Counters of an election: the time without a leader, and how close this process's terms came to
//! their end before they were renewed or given up.

use std::time::Duration;

use crate::client::lease::Lease;
use crate::time::{Drift, Moment, validity};

/// Counts of an [`Election`](super::Election) and its clones since it was built. They are for
/// people; nothing is decided by them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElectionMetrics {
    /// Number of terms that this process won.
    pub won: u64,
    /// Number of terms that this process lost; terms that it resigned are not counted.
    pub lost: u64,
    /// Total time for which no process was known to lead, since this process first campaigned or
    /// asked who leads. A leader that died counts as leading until its lease is over on the nodes.
    /// If the nodes could not be asked, the time counts from the end of the last lease that was
    /// seen.
    pub leaderless: Duration,
    /// Time since the last known leader; zero while a process leads.
    pub leaderless_now: Duration,
    /// Shortest time from the moment at which this process gave up a term that it could not renew,
    /// to the earliest moment at which another process could have led. It is zero if a loss was
    /// noticed too late to be certain, and `None` if no term ended so. A [declared drain
    /// time](super::ElectionBuilder::drain) is part of it. If it is close to zero, the ttl is too
    /// short for the pauses of this process or its machine.
    pub least_margin: Option<Duration>,
    /// Longest time from the first attempt of a renewal until a majority had confirmed it. If it is
    /// close to half of the ttl, the ttl is too short for these nodes and this network.
    pub longest_renewal: Duration,
}

/// Sums over all terms except the last one, which may still run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    won: u64,
    lost: u64,
    least_margin: Option<Duration>,
    longest_renewal: Duration,
    leaderless: Duration,
    /// Time until which a process was known to lead; `None` before this process first campaigned or
    /// asked who leads.
    led_until: Option<Moment>,
}

impl Sums {
    /// Adds the previous term, which is over, when the next campaign begins or is won.
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
        // If a majority reported another owner, the term was taken away and not given up, so it has
        // no margin.
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

    /// Counts the last term of this process as time with a leader.
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

    /// Returns all counts, including those of the last term.
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
