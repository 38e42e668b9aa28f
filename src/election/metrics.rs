//! Counters of an election.

use std::time::Duration;

use crate::client::lease::Lease;
use crate::time::{Drift, Moment, validity};

/// Counts of an [`Election`](super::Election) and its clones since it was built. The counts are for
/// people; the library decides nothing by them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElectionMetrics {
    /// Number of terms that this process won.
    pub won: u64,
    /// Number of terms that this process lost. A resigned term does not count.
    pub lost: u64,
    /// Total time without a known leader. It counts from the first campaign of this process, or
    /// from its first read of the leader. A dead leader counts as leading until its lease ends on
    /// the nodes. While the nodes do not answer, the time counts from the end of the last known
    /// lease.
    pub leaderless: Duration,
    /// Time since the last known leader; zero while a process leads.
    pub leaderless_now: Duration,
    /// Shortest margin of a lost term: the time from the moment at which this process stopped
    /// leading, to the earliest moment at which another process could lead. The margin includes a
    /// [declared drain time](super::ElectionBuilder::drain). Zero if this process noticed the loss
    /// too late; `None` if no term ended by its deadline. A margin close to zero means that the ttl
    /// is too short for the pauses of this process or its machine.
    pub least_margin: Option<Duration>,
    /// Longest time from the first attempt of a renewal to its confirmation by a majority. If this
    /// time is close to half of the ttl, the ttl is too short for these nodes and this network.
    pub longest_renewal: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    of: ElectionMetrics,
    led_until: Option<Moment>,
}

impl Sums {
    pub(super) fn begin(&mut self, now: Moment, before: Option<&Lease>, drift: Drift) {
        self.absorb(before);
        self.led_until.get_or_insert(now);
        if let Some(lease) = before {
            self.close(lease, now, drift);
        }
    }

    fn close(&mut self, lease: &Lease, now: Moment, drift: Drift) {
        self.of.longest_renewal = self.of.longest_renewal.max(lease.longest_renewal(now));
        let over = lease.over_since();
        let ended = over.map_or(now, |over| over.at);
        if lease.is_valid(now) || over.is_some_and(|over| !over.lost) {
            return;
        }
        self.of.lost += 1;
        // Ended earlier, a majority had reported another owner: no margin.
        if ended >= lease.until() {
            let kept = lease.ttl + lease.drain;
            let allowance = kept.saturating_sub(validity(kept, drift));
            let margin = (lease.until() + lease.drain + allowance).since(ended);
            let before = self.of.least_margin.unwrap_or(margin);
            self.of.least_margin = Some(margin.min(before));
        }
    }

    pub(super) fn won(&mut self, now: Moment, until: Moment) {
        self.of.won += 1;
        self.led(now, until);
    }

    pub(super) fn absorb(&mut self, lease: Option<&Lease>) {
        let Some(lease) = lease else { return };
        let end = lease.over_since().map_or(lease.until(), |over| over.at.min(lease.until()));
        self.led_until = self.led_until.max(Some(end));
    }

    pub(super) fn led(&mut self, now: Moment, until: Moment) {
        let before = self.led_until.unwrap_or(now);
        self.of.leaderless += now.since(before);
        self.led_until = Some(until.max(now));
    }

    pub(super) fn vacant(&mut self, now: Moment) {
        self.led_until = Some(self.led_until.map_or(now, |until| until.min(now)));
    }

    pub(super) fn with(self, last: Option<&Lease>, now: Moment, drift: Drift) -> ElectionMetrics {
        let mut sums = self;
        sums.absorb(last);
        if let Some(lease) = last {
            sums.close(lease, now, drift);
        }
        let leaderless_now = sums.led_until.map_or(Duration::ZERO, |until| now.since(until));
        let leaderless = sums.of.leaderless + leaderless_now;
        ElectionMetrics { leaderless, leaderless_now, ..sums.of }
    }
}
