//! Renewals that are due: in which order they leave, and how many at once (renewal 12).
//!
//! A request for a renewal has to be answered within `node_deadline`. Those that a node cannot
//! answer in that time would be refused unsent, all of them, and tried again together. So no more
//! leave than nodes answer; the others wait here, the one whose lease ends first in front.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Moment;

/// Fewest and most renewals under way: a lane has as many requests under way at the most.
const UNDER_WAY: (usize, usize) = (32, 512);

/// The line of one keeper.
#[derive(Debug)]
pub(super) struct Line<T> {
    /// By the end of the lease, and a number of the lease.
    due: BTreeMap<(Moment, usize), (Duration, T)>,
    under_way: usize,
    most: usize,
}

impl<T> Line<T> {
    pub(super) fn new() -> Self {
        Self { due: BTreeMap::new(), under_way: 0, most: UNDER_WAY.1 }
    }

    /// A lease of this number, end and ttl is due. One that is in line already stays once.
    pub(super) fn push(&mut self, number: usize, (until, ttl): (Moment, Duration), lease: T) {
        self.due.insert((until, number), (ttl, lease));
    }

    /// The lease that is to be renewed next, if another renewal may leave.
    pub(super) fn next(&mut self) -> Option<T> {
        if self.under_way >= self.most {
            return None;
        }
        let (_, (_, lease)) = self.due.pop_first()?;
        self.under_way += 1;
        Some(lease)
    }

    /// A renewal is over; `decided`: nodes answered it in time. As many leave at once as are
    /// answered: one more with each answer, half with each renewal that got too few.
    pub(super) fn over(&mut self, decided: bool) {
        self.under_way -= 1;
        let most = if decided { self.most + 1 } else { self.most / 2 };
        self.most = most.clamp(UNDER_WAY.0, UNDER_WAY.1);
    }

    /// Whether the first in line has waited so long that less than five eighths of its lease are
    /// left: half of what it has between the moment at which it was due and half of its ttl.
    pub(super) fn is_late(&self, now: Moment) -> bool {
        let first = self.due.first_key_value();
        first.is_some_and(|((until, _), (ttl, _))| until.since(now) < *ttl / 8 * 5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(16);

    fn at(s: u64) -> Moment {
        Moment::from_nanos(s * 1_000_000_000)
    }

    #[test]
    fn the_lease_that_ends_first_is_renewed_first() {
        let mut line = Line::new();
        for (number, until) in [(1, 9), (2, 7), (3, 8), (4, 7)] {
            line.push(number, (at(until), TTL), number);
        }
        // Due again, because of a failover.
        line.push(3, (at(8), TTL), 3);
        let order: Vec<_> = std::iter::from_fn(|| line.next()).collect();
        assert_eq!(order, [2, 4, 3, 1]);
    }

    #[test]
    fn no_more_are_under_way_than_are_answered() {
        let mut line = Line::new();
        (0..100_000).for_each(|n| line.push(n, (at(9), TTL), n));
        let leave = |line: &mut Line<usize>| std::iter::from_fn(|| line.next()).count();
        assert_eq!(leave(&mut line), 512);
        assert_eq!(leave(&mut line), 0);
        // Nothing is answered in time: few are tried until something is.
        (0..512).for_each(|_| line.over(false));
        assert_eq!(leave(&mut line), 32);
        // Each round trip doubles them.
        for most in [64, 128, 256, 512, 512] {
            let answered = line.under_way;
            (0..answered).for_each(|_| line.over(true));
            assert_eq!(leave(&mut line), most);
        }
    }

    #[test]
    fn one_that_waits_for_an_eighth_of_its_ttl_is_late() {
        let mut line = Line::new();
        assert!(!line.is_late(at(0)));
        // Granted at 0 and due at 4.
        line.push(1, (at(16), TTL), ());
        line.push(2, (at(17), TTL), ());
        assert!(!line.is_late(at(6)));
        assert!(line.is_late(at(6) + Duration::from_millis(1)));
        assert!(line.next().is_some() && !line.is_late(at(7)));
    }
}
