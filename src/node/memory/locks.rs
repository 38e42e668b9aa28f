//! The locks of a node in memory. What an op makes of one says `rules::locks`.

use super::shelf::{Perish, Shelf};
use crate::name::LockKeys;
use crate::op::{Op, Reply};
use crate::rules::header::Header;
use crate::rules::locks::{Row, Ruling, Wake, decide};

impl Perish for Row {
    fn refresh(&mut self, now: u64) -> bool {
        self.expire(now)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Locks(Shelf<Row>);

impl Locks {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the answer, and whom to notify of each name.
    pub(super) fn execute(&mut self, h: &Header, keys: &LockKeys, op: &Op) -> (Reply, Vec<Wake>) {
        let live = |name: &LockKeys| self.0.live(name.lock(), h.now).cloned();
        let rows = keys.all().map(live).map(Option::unwrap_or_default).collect();
        let Ruling { reply, rows, wakes } = decide(h, op, rows);
        for (name, row) in keys.all().zip(rows) {
            self.0.put(name.lock(), row, h.now);
        }
        (reply, wakes)
    }

    pub(super) fn is_foreign(&mut self, key: &str, now: u64) -> bool {
        self.0.live(key, now).is_some_and(|row| row.is_foreign())
    }

    /// For another program's writes.
    #[cfg(feature = "test-util")]
    pub(super) fn row(&mut self, key: &str, now: u64) -> &mut Row {
        self.0.open(key, now)
    }

    #[cfg(feature = "test-util")]
    pub(super) fn delete_foreign(&mut self, key: &str, now: u64) {
        if let Some(row) = self.0.live(key, now) {
            row.delete_foreign();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::{acquire, ask, node, owner};
    use super::*;
    use crate::op::{IfHeld, LockMode, Place};

    /// Checks that a fair caller's place in the queue counts for at most 3 s after the caller's
    /// next request, even if the clock steps back by a minute, which E allows.
    /// The same holds on a server (`tests/nodes/redis/waiting.rs`).
    #[test]
    fn a_step_back_of_the_clock_prolongs_no_place() {
        let (node, hand) = node();
        hand.pass(Duration::from_secs(600));
        let (mode, keys) = (LockMode::Exclusive, LockKeys::new("a"));
        ask(&node, acquire("a", 1, 0));
        let asks = |by: u128, ticket| {
            let mut op = acquire("a", by, 0);
            let place = Place { waiter: by as u64, waited: Duration::ZERO, needs: Duration::ZERO };
            if let Op::Acquire { if_held, .. } = &mut op {
                *if_held = Some(IfHeld::Fair { place, ticket: Some(ticket) });
            }
            op
        };
        let (first, second) = (1_000, 1_001);
        assert!(matches!(ask(&node, asks(2, first)), Reply::Queued { .. }));
        hand.step_back(Duration::from_secs(60));
        ask(&node, Op::Release { mode, keys, owner: owner(1), meta: false });
        let refused = ask(&node, asks(3, second));
        let Reply::Queued { remaining: Some(rest), queued, .. } = refused else {
            panic!("the first is ahead: {refused:?}")
        };
        assert!(queued.ahead == 1 && rest <= Duration::from_secs(3), "for {rest:?}");
        hand.pass(Duration::from_millis(3_001));
        let granted = ask(&node, asks(3, second));
        assert!(matches!(granted, Reply::Granted { .. }), "the first is gone: {granted:?}");
    }
}
