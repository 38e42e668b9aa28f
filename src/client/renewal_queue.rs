//! The order in which due renewals are sent, and the limit on those in flight (renewal 12).
//!
//! A node has to answer a renewal within `node_deadline`. If more renewals were sent than a node
//! can answer in that time, the queue of requests to the node would refuse the rest, and all of
//! these renewals would be tried again together. So the limit allows only as many renewals in
//! flight as the nodes answer. The other leases wait in this queue. The lease that ends first is in
//! front. Leases whose last renewal was refused so that more time had not helped, for example
//! because replicas are missing, stand behind all others.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Moment;
use crate::token::OwnerToken;

const LIMITS: (usize, usize) = (32, 512);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    /// True if the last renewal was refused, and more time had not helped it.
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

    /// A second entry for the same lease replaces the first, if the lease still ends at the same
    /// time.
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

    /// In time: the limit grows by one. Otherwise it is halved.
    pub(super) fn finished(&mut self, in_time: bool) {
        self.in_flight -= 1;
        let limit = if in_time { self.limit + 1 } else { self.limit / 2 };
        self.limit = limit.clamp(LIMITS.0, LIMITS.1);
    }

    /// Less than 5/8 of the first lease's ttl is left: midway between 3/4, when its renewal was
    /// due, and 1/2. A lease whose renewal was refused does not count: other requests are not to
    /// blame.
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
        // A failover makes the renewal of lease 3 due a second time.
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
        // No renewal was answered in time, so only few renewals may be in flight until a renewal is
        // answered.
        (0..512).for_each(|_| queue.finished(false));
        assert_eq!(leave(&mut queue), 32);
        // If all renewals in flight are answered, twice as many may be in flight next, up to 512.
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
        // The lease was granted at 0 s. Its renewal is due at 4 s.
        queue.push(Turn { refused: true, ..turn(3, 2) }, TTL, ());
        queue.push(turn(1, 16), TTL, ());
        queue.push(turn(2, 17), TTL, ());
        assert!(!queue.is_late(at(6)));
        assert!(queue.is_late(at(6) + Duration::from_millis(1)));
        assert!(queue.next().is_some() && !queue.is_late(at(7)));
        assert!(queue.next().is_some() && !queue.is_late(at(30)), "a refused one is not late");
    }
}
