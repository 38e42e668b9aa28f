//! Limit on the rate at which hints wake the waiters of a handle.

use std::time::Duration;

use crate::time::Moment;

/// Smallest average time between two wake-ups. Those that found a released lock do not count.
const APART: Duration = Duration::from_millis(10);
/// Wake-ups without a pause between them. After 2 × `BURST` useless ones in a row, and after each
/// further `BURST`, the time between two is doubled.
const BURST: u32 = 16;
const DOUBLED_MAX: u32 = 4;
/// Much longer than the longest time between two wake-ups, so waiters that wake each other in vain
/// do not reset the count.
const QUIET: Duration = Duration::from_secs(2);

/// A forged hint costs its sender little. Waiters can also wake each other in vain: a node that
/// lacks the holder's grant grants to one, the others refuse, and its release wakes the next. So
/// the distance grows with the useless wake-ups in a row.
#[derive(Debug, Default)]
pub(crate) struct RateLimit {
    next: Moment,
    step: Duration,
    useless: u32,
}

impl RateLimit {
    pub(crate) fn wake(&mut self, now: Moment) -> Duration {
        if now > self.next + QUIET {
            self.useless = 0;
        }
        let at = self.next.max(now - APART * BURST);
        self.step = APART * (1 << (self.useless / BURST).saturating_sub(1).min(DOUBLED_MAX));
        self.next = at + self.step;
        self.useless = self.useless.saturating_add(1);
        at.since(now)
    }

    pub(super) fn forgive(&mut self) {
        self.next = self.next - std::mem::take(&mut self.step);
        self.useless = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_ups_that_bring_nothing_are_held_apart_after_a_burst() {
        let mut limit = RateLimit::default();
        let mut now = Moment::from_nanos(1_000_000_000_000);
        let mut woken = 0;
        let begun = now;
        while now.since(begun) < Duration::from_secs(1) {
            now = now + limit.wake(now) + Duration::from_micros(200);
            woken += 1;
        }
        assert!((BURST..=BURST + 102).contains(&woken), "{woken}");
        let (begun, mut more) = (now, 0);
        while now.since(begun) < Duration::from_secs(4) {
            now = now + limit.wake(now) + Duration::from_micros(200);
            more += 1;
        }
        assert!(more < 2 * woken, "the time between them grows: {woken}, then {more}");
        now = now + 2 * QUIET;
        for _ in 0..=BURST {
            assert_eq!(limit.wake(now), Duration::ZERO);
        }
        assert!(!limit.wake(now).is_zero());
    }

    #[test]
    fn wake_ups_that_were_right_are_never_held_back() {
        let mut limit = RateLimit::default();
        let mut now = Moment::from_nanos(1_000_000_000_000);
        for _ in 0..10_000 {
            assert_eq!(limit.wake(now), Duration::ZERO);
            limit.forgive();
            now = now + Duration::from_micros(100);
        }
    }

    #[test]
    fn the_first_right_wake_up_after_many_useless_ones_delays_no_other() {
        for useless in [1, 20, 40, 300] {
            let mut limit = RateLimit::default();
            let mut now = Moment::from_nanos(1_000_000_000_000);
            for _ in 0..useless {
                now = now + limit.wake(now) + Duration::from_micros(200);
            }
            now = now + limit.wake(now);
            limit.forgive();
            assert_eq!(limit.wake(now), Duration::ZERO, "after {useless}");
        }
    }
}
