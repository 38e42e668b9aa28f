//! The order of fair waiters on a node in memory.

use std::time::Duration;

use super::locks::{Entry, Waiter};
use super::quarantine::Header;
use crate::op::{Place, Queued};
use crate::token::OwnerToken;

/// Largest ticket: the script counts in doubles.
const TICKET_MAX: u64 = 1 << 53;

impl Entry {
    /// Returns the ticket that a fair waiter has here, and the number of fresh fair places ahead of
    /// it (fair 1 to 3). Also returns the time until none of these counts any more.
    pub(super) fn standing(
        &self,
        h: &Header,
        place: &Place,
        ticket: Option<u64>,
    ) -> (Queued, Option<Duration>) {
        let fair =
            self.queue.iter().filter(|w| w.is_fair && w.fresh_till > h.now && !h.is_ahead(w.since));
        let largest = fair.clone().map(|w| w.since).max().unwrap_or(0);
        let is_ahead = |w: &&Waiter| {
            let earlier = |ticket| (w.since, w.place.waiter) < (ticket, place.waiter);
            w.place.waiter != place.waiter && ticket.is_none_or(earlier)
        };
        let ahead: Vec<_> = fair.filter(is_ahead).map(|w| w.fresh_till).collect();
        let here = ticket.unwrap_or(h.micros.max(largest + 1));
        let queued = Queued { ticket: here.min(TICKET_MAX), ahead: ahead.len() as u16 };
        (queued, ahead.into_iter().max().map(|till| h.until(till)))
    }

    /// Removes the place of the fair waiter whose reservation would have this value.
    pub(super) fn give_up(&mut self, value: OwnerToken) {
        self.queue.retain(|w| !w.is_fair || OwnerToken::reserved_for(w.place.waiter) != value);
    }
}
