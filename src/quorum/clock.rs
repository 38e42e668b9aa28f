//! Checks that a node's clock runs at the allowed rate and does not step (clocks 4). If it stepped,
//! a lease may end earlier there than its holder assumes.

use std::time::Duration;

use crate::error::{NodeError, NodeFault};
use crate::time::{Drift, Moment};

/// Up to this, plus the drift of `CRYSTAL`, a change after a long time without readings is no step.
const WANDER_MAX: Duration = Duration::from_secs(1);
/// Drift of a clock without NTP, allowed for any time without readings.
const CRYSTAL: Drift = Drift::from_ppm(100);

#[derive(Clone, Copy, Debug)]
struct Reading {
    /// Lower and upper bound of the node's clock minus the local clock, in µs.
    offset: (i128, i128),
    at: Moment,
}

impl Reading {
    /// In µs; gain and loss count alike. Zero or less shows no change.
    fn change(&self, before: &Self) -> i128 {
        (self.offset.0 - before.offset.1).max(before.offset.0 - self.offset.1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep {
    pub micros: i128,
    /// Between the two readings that show the step.
    pub span: Duration,
}

#[derive(Clone, Debug)]
pub struct ClockCheck {
    drift: Drift,
    ttl: Duration,
    max_ttl: Duration,
    last: Option<Reading>,
    /// While the node is in use, at most one ttl old, and between one and two ttls: consecutive
    /// readings cannot show that a clock gains slowly.
    anchors: [Option<Reading>; 2],
    discounted: Option<Moment>,
}

impl ClockCheck {
    /// `ttl` is the length of the caller's leases, `max_ttl` the longest of any client.
    pub fn new(drift: Drift, ttl: Duration, max_ttl: Duration) -> Self {
        Self { drift, ttl, max_ttl, last: None, anchors: [None; 2], discounted: None }
    }

    /// After a change of the server process, which may have another clock.
    pub fn restart(&mut self) {
        (self.last, self.anchors) = (None, [None; 2]);
    }

    /// `micros` is from a batch that was under way from `sent` to `received`.
    pub fn read(&mut self, micros: u64, sent: Moment, received: Moment) -> Option<ClockStep> {
        let us = |m: Moment| i128::from(m.as_nanos() / 1_000);
        let offset = (i128::from(micros) - us(received), i128::from(micros) - us(sent));
        let now = Reading { offset, at: received };
        let known = self.anchors.iter().chain([&self.last]).flatten();
        let step = known
            .map(|before| ClockStep { micros: now.change(before), span: received.since(before.at) })
            .find(|step| step.micros > self.budget(step.span));
        if step.is_some() {
            self.discounted = Some(received + self.max_ttl);
            self.anchors = [Some(now), None];
        } else if self.anchors[0].is_none_or(|newer| received.since(newer.at) >= self.ttl) {
            self.anchors = [Some(now), self.anchors[0]];
        }
        self.last = Some(now);
        step
    }

    pub fn objection(&self, now: Moment) -> Option<NodeError> {
        let until = self.discounted.filter(|until| now < *until)?;
        let detail = format!("votes again in {:?}", until.since(now));
        Some(NodeError::maybe_executed(NodeFault::ClockJump, detail))
    }

    /// In µs. The drift during one ttl is always allowed, because each lease's validity is already
    /// shortened by it.
    fn budget(&self, span: Duration) -> i128 {
        let wandered = self.drift.of(span).min(WANDER_MAX + CRYSTAL.of(span));
        let budget = wandered.max(self.drift.of(self.ttl));
        i128::try_from(budget.as_micros()).unwrap_or(i128::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(ms * 1_000_000)
    }

    fn clock() -> ClockCheck {
        let secs = Duration::from_secs;
        ClockCheck::new(Drift::DEFAULT, secs(10), secs(30))
    }

    /// A reading at `ms` of the local time; the node's clock then shows 1000 s and `micros` µs.
    fn votes(clock: &mut ClockCheck, ms: u64, micros: u64) -> bool {
        let step = clock.read(1_000_000_000 + micros, at(ms), at(ms));
        let objection = clock.objection(at(ms));
        assert!(step.is_none() || objection.is_some());
        objection.is_none()
    }

    /// `0:0 1000:5 -> yes no`: at 1000 ms the node's clock has gained 5 ms; `no`: its votes do not
    /// count.
    #[test]
    fn a_step_discounts_for_one_max_ttl_and_drift_does_not() {
        let table = include_str!("testdata/clock.txt");
        for line in table.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let (readings, expect) = line.split_once(" -> ").expect("a line has an outcome");
            let mut clock = clock();
            let voted = readings.split_whitespace().map(|reading| {
                let (ms, gained) = reading.split_once(':').expect("time and gain");
                let (ms, gained): (u64, i64) = (ms.parse().unwrap(), gained.parse().unwrap());
                let micros = (ms * 1_000).checked_add_signed(gained * 1_000).unwrap();
                if votes(&mut clock, ms, micros) { "yes" } else { "no" }
            });
            assert_eq!(voted.collect::<Vec<_>>().join(" "), expect, "{line}");
        }
    }

    #[test]
    fn a_slow_slew_shows_on_a_busy_queue_too() {
        let after = |gain_ppm: u64| {
            let mut clock = clock();
            (1..60_000_u64)
                .step_by(10)
                .find(|ms| !votes(&mut clock, *ms, ms * 1_000 + ms * gain_ppm / 1_000))
        };
        // 10,000 µs per second in 10 s.
        assert_eq!(after(9_900), None, "a clock within the drift that was declared");
        let seen = after(12_000).expect("a lease would be shorter there than its holder believes");
        assert!(seen <= 20_000, "{seen} ms");
        let seen = after(100_000).expect("a tenth");
        assert!(seen <= 1_100, "{seen} ms");
    }

    #[test]
    fn a_step_is_judged_once() {
        let mut clock = clock();
        let stepped = |ms: u64| if ms < 5_000 { 0 } else { 2_000_000 };
        let voted = (0..60_000_u64).step_by(10);
        let voted: Vec<u64> =
            voted.filter(|ms| votes(&mut clock, *ms, ms * 1_000 + stepped(*ms))).collect();
        assert_eq!(voted.iter().filter(|ms| (5_000..35_000).contains(*ms)).count(), 0);
        assert_eq!(voted.len(), 500 + 2_500);
    }

    #[test]
    fn a_pause_of_ours_is_not_a_step() {
        let mut clock = clock();
        assert!(clock.read(1_000_000, at(0), at(1)).is_none());
        assert!(clock.read(3_000_000, at(1_000), at(20_000)).is_none());
        clock.restart();
        assert!(clock.read(9_000_000_000, at(20_001), at(20_002)).is_none(), "another process");
    }
}
