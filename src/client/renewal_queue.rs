//! The order of due renewals, and the limit on those in flight (renewal 12): the lease that ends
//! first is in front, and those whose last renewal was refused so that more time had not helped
//! stand behind all others.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Moment;
use crate::token::OwnerToken;

const LIMITS: (usize, usize) = (32, 512);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    pub(super) refused: bool,
    pub(super) until: Moment,
    pub(super) owner: OwnerToken,
}

#[derive(Debug)]
pub(super) struct RenewalQueue<T> {
    due: BTreeMap<Turn, (Duration, T)>,
    in_flight: usize,
    limit: usize,
}

impl<T> RenewalQueue<T> {
    pub(super) fn new() -> Self {
        Self { due: BTreeMap::new(), in_flight: 0, limit: LIMITS.1 }
    }

    pub(super) fn push(&mut self, turn: Turn, ttl: Duration, lease: T) {
        self.due.insert(turn, (ttl, lease));
    }

    pub(super) fn next(&mut self) -> Option<T> {
        if self.in_flight >= self.limit {
            return None;
        }
        let (_, (_, lease)) = self.due.pop_first()?;
        self.in_flight += 1;
        Some(lease)
    }

    pub(super) fn finished(&mut self, in_time: bool) {
        self.in_flight -= 1;
        let limit = if in_time { self.limit + 1 } else { self.limit / 2 };
        self.limit = limit.clamp(LIMITS.0, LIMITS.1);
    }

    /// 5/8: midway between 3/4, when the renewal was due, and 1/2. A refusal is not the fault of
    /// other requests.
    pub(super) fn is_late(&self, now: Moment) -> bool {
        let first = self.due.first_key_value().filter(|(turn, _)| !turn.refused);
        first.is_some_and(|(turn, (ttl, _))| turn.until.since(now) < *ttl / 8 * 5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(16);

    fn turn(number: u128, until: u64) -> Turn {
        let owner = OwnerToken::from_random(number);
        Turn { refused: false, until: at(until), owner }
    }

    fn at(s: u64) -> Moment {
        Moment::from_nanos(s * 1_000_000_000)
    }

    #[test]
    fn the_lease_that_ends_first_is_renewed_first() {
        let mut queue = RenewalQueue::new();
        for (number, until) in [(1, 9), (2, 7), (3, 8), (4, 7)] {
            queue.push(turn(number, until), TTL, number);
        }
        queue.push(turn(3, 8), TTL, 3);
        queue.push(Turn { refused: true, ..turn(5, 1) }, TTL, 5);
        let order: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(order, [2, 4, 3, 1, 5]);
    }

    #[test]
    fn no_more_are_in_flight_than_are_answered() {
        let mut queue = RenewalQueue::new();
        (0..100_000).for_each(|n| queue.push(turn(n, 9), TTL, n));
        let leave = |queue: &mut RenewalQueue<u128>| std::iter::from_fn(|| queue.next()).count();
        assert_eq!(leave(&mut queue), 512);
        assert_eq!(leave(&mut queue), 0);
        (0..512).for_each(|_| queue.finished(false));
        assert_eq!(leave(&mut queue), 32);
        for limit in [64, 128, 256, 512, 512] {
            let answered = queue.in_flight;
            (0..answered).for_each(|_| queue.finished(true));
            assert_eq!(leave(&mut queue), limit);
        }
    }

    #[test]
    fn one_that_waits_for_an_eighth_of_its_ttl_is_late() {
        let mut queue = RenewalQueue::new();
        assert!(!queue.is_late(at(0)));
        queue.push(Turn { refused: true, ..turn(3, 2) }, TTL, ());
        queue.push(turn(1, 16), TTL, ());
        queue.push(turn(2, 17), TTL, ());
        assert!(!queue.is_late(at(6)));
        assert!(queue.is_late(at(6) + Duration::from_millis(1)));
        assert!(queue.next().is_some() && !queue.is_late(at(7)));
        assert!(queue.next().is_some() && !queue.is_late(at(30)), "a refused one is not late");
    }
}
