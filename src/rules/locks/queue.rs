//! Whose turn it is: the queue of a lock, tickets, and who is woken when the lock is free.

use std::time::Duration;

use super::{Row, Wake};
use crate::op::{LockMode, Place, Queued};
use crate::rules::header::Header;
use crate::token::OwnerToken;

/// Further handles have no place, and ask again from time to time.
const PLACES: usize = 64;
/// Time after a waiter's last request in which it keeps others out: a writer later readers, a fair
/// caller those with larger tickets (readers 9, fair 3).
const FRESH: Duration = Duration::from_secs(3);
/// The script computes with doubles, which represent every whole number up to this one.
const TICKET_MAX: u64 = 1 << 53;

/// A handle that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) mode: LockMode,
    pub(crate) place: Place,
    /// Start of the wait by the node's wall clock, in µs; of a fair waiter the ticket.
    pub(crate) since: u64,
    pub(crate) is_fair: bool,
    pub(crate) fresh_till: u64,
}

impl Waiter {
    pub(super) fn number(&self) -> u64 {
        self.place.waiter
    }

    /// At most `FRESH` from now, even if the clock has stepped back since the waiter asked.
    pub(super) fn fresh_till(&self, h: &Header) -> u64 {
        self.fresh_till.min(h.after(FRESH))
    }

    pub(super) fn is_fresh_writer(&self, now: u64) -> bool {
        self.mode == LockMode::Exclusive && self.fresh_till > now
    }

    /// Readers and fair waiters that have stopped asking lose their places to others.
    fn stays(&self, now: u64) -> bool {
        !(self.mode.is_shared() || self.is_fair) || self.fresh_till > now
    }
}

impl Row {
    /// Gives the handle a place, in place of any other that it has. Returns false if the queue is
    /// full.
    pub(super) fn join(
        &mut self,
        h: &Header,
        mode: LockMode,
        place: Place,
        ticket: Option<u64>,
    ) -> bool {
        let (since, is_fair) = (ticket.unwrap_or_else(|| since(h, &place)), ticket.is_some());
        self.queue.retain(|other| other.place.waiter != place.waiter && other.stays(h.now));
        self.queue.iter_mut().for_each(|other| other.fresh_till = other.fresh_till(h));
        let at = self.queue.partition_point(|other| {
            let is_tie = other.since == since;
            other.since < since || is_tie && (!is_fair || other.place.waiter < place.waiter)
        });
        self.queue.insert(at, Waiter { mode, place, since, is_fair, fresh_till: h.after(FRESH) });
        self.queue.truncate(PLACES);
        self.queue_till = self.queue_till.max(h.fence_till()).max(h.after(FRESH));
        at < PLACES
    }

    /// Whom to wake because the lock is free: the first waiter, for whom the lock is reserved. It
    /// leaves the queue unless it is fair (fair 5). If it is a reader, all readers before the first
    /// fresh writer come with it (readers 10).
    pub(super) fn wake(&mut self, h: &Header) -> Wake {
        let watchers = self.was_watched(h);
        self.queue.retain(|waiter| !waiter.is_fair || waiter.stays(h.now));
        let woken = match self.queue.first() {
            None => Vec::new(),
            Some(first) if first.is_fair => vec![*first],
            Some(first) if first.mode.is_shared() => self.first_readers(h),
            Some(_) => vec![self.queue.remove(0)],
        };
        let needs = woken.iter().map(|waiter| waiter.place.needs.min(Place::RESERVED_MAX)).max();
        let needs = needs.filter(|needs| !needs.is_zero());
        self.reserved = needs.zip(woken.first()).map(|(needs, first)| {
            let value = match first.mode {
                LockMode::Exclusive | LockMode::Slot(_) => {
                    OwnerToken::reserved_for(first.place.waiter)
                }
                LockMode::Shared => OwnerToken::READERS,
            };
            (value, h.after(needs))
        });
        Wake { watchers, waiters: woken.iter().map(Waiter::number).collect() }
    }

    /// Takes all readers before the first fresh writer out of the queue.
    pub(super) fn first_readers(&mut self, h: &Header) -> Vec<Waiter> {
        let writer = self.queue.iter().position(|waiter| waiter.is_fresh_writer(h.now));
        let end = writer.unwrap_or(self.queue.len());
        self.queue.extract_if(..end, |waiter| waiter.mode.is_shared()).collect()
    }

    /// Ticket of a fair waiter and the number of fresh places ahead of it (fair 1 to 3); and for
    /// how long one of these is fresh.
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

    /// The fair waiter whose reservations have this value has a place.
    pub(crate) fn is_fair_to(&self, value: OwnerToken) -> bool {
        let is_own = |w: &Waiter| OwnerToken::reserved_for(w.place.waiter) == value;
        self.queue.iter().any(|w| w.is_fair && is_own(w))
    }

    /// Takes the place of a fair waiter, whose reservations have this value, out of the queue.
    pub(super) fn give_up(&mut self, value: OwnerToken) {
        self.queue.retain(|w| !w.is_fair || OwnerToken::reserved_for(w.place.waiter) != value);
    }
}

/// Start of the wait, in µs by the node's wall clock.
pub(super) fn since(h: &Header, place: &Place) -> u64 {
    h.facts.node_micros.saturating_sub(place.micros())
}
