//! The order of fair waiters, who get a lock in the order of their tickets, on a node in memory.

use std::time::Duration;

use super::locks::{Entry, Waiter};
use crate::op::{Place, Queued};
use crate::rules::header::Header;
use crate::token::OwnerToken;

/// The script computes with doubles, which represent every whole number up to this.
const TICKET_MAX: u64 = 1 << 53;

impl Entry {
    /// The ticket on this node, the number of fresh fair places ahead (fair 1 to 3), and the time
    /// until none of these is fresh.
    pub(super) fn standing(
        &self,
        h: &Header,
        place: &Place,
        ticket: Option<u64>,
    ) -> (Queued, Option<Duration>) {
        let is_fresh = |w: &&Waiter| w.fresh_till(h) > h.now && !h.is_ahead(w.since);
        let fair = self.queue.iter().filter(|w| w.is_fair).filter(is_fresh);
        let largest = fair.clone().map(|w| w.since).max().unwrap_or(0);
        let is_ahead = |w: &&Waiter| {
            let earlier = |ticket| (w.since, w.place.waiter) < (ticket, place.waiter);
            w.place.waiter != place.waiter && ticket.is_none_or(earlier)
        };
        let ahead: Vec<_> = fair.filter(is_ahead).map(|w| w.fresh_till(h)).collect();
        let here = ticket.unwrap_or(h.facts.node_micros.max(largest + 1));
        let queued = Queued { ticket: here.min(TICKET_MAX), ahead: ahead.len() as u16 };
        (queued, ahead.into_iter().max().map(|till| h.until(till)))
    }

    /// `value` stands in an owner's place while the lock is reserved for this waiter.
    pub(super) fn give_up(&mut self, value: OwnerToken) {
        self.queue.retain(|w| !w.is_fair || OwnerToken::reserved_for(w.place.waiter) != value);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{acquire, ask, node, owner};
    use super::*;
    use crate::name::LockKeys;
    use crate::op::{IfHeld, LockMode, Op, Reply};

    /// Checks that a fair caller's place in the queue counts for at most 3 s after the caller's
    /// next request, even if the clock steps back by a minute, which E (the clock error) allows.
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
