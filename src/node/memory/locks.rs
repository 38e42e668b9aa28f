//! The ops on locks of a node in memory: acquire, raise, extend, release, inspect.
//!
//! A lock has one exclusive grant (`held`) or any number of shared grants (`readers`), never both.

use std::sync::Arc;
use std::time::Duration;

use super::shelf::{Perish, Shelf};
use super::slots::Slot;
use crate::name::LockKeys;
use crate::op::{Holder, IfHeld, LockMode, Place, QuarantineId, Reply};
use crate::rules::header::Header;
use crate::token::{FencingToken, OwnerToken};

/// Further handles have no place in the queue, and ask again from time to time.
const PLACES: usize = 64;
/// Longest wait that counts for a place.
const WAITED_MAX: Duration = Duration::from_secs(3600);

/// For how long after its last request a waiter keeps others out (readers 9, fair 3).
const FRESH: Duration = Duration::from_secs(3);

/// Until it may be free (`None`: its value has no expiry), and true if another program has it.
pub(super) type Busy = (Option<Duration>, bool);

/// All that watch, and in `waiters` the first of the queue, or the readers at its head.
#[derive(Clone, Debug, Default)]
pub(super) struct Wake {
    pub(super) watchers: bool,
    pub(super) waiters: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) mode: LockMode,
    pub(super) place: Place,
    /// By the node's wall clock, in µs; for a fair waiter, its ticket.
    pub(super) since: u64,
    pub(super) is_fair: bool,
    /// Until then it keeps out waiters that come later.
    fresh_till: u64,
}

impl Waiter {
    /// At most `FRESH` from now, even if the node's clock has stepped back since.
    pub(super) fn fresh_till(&self, h: &Header) -> u64 {
        self.fresh_till.min(h.after(FRESH))
    }

    pub(super) fn is_fresh_writer(&self, now: u64) -> bool {
        self.mode == LockMode::Exclusive && self.fresh_till > now
    }

    /// Readers and fair waiters that have stopped asking lose their places, so that others find
    /// one.
    fn stays(&self, now: u64) -> bool {
        !(self.mode.is_shared() || self.is_fair) || self.fresh_till > now
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    pub(super) held: Option<Held>,
    /// Each with its end, in the order in which they were first given. Ended ones may be in it
    /// until the next acquire or release.
    pub(super) readers: Vec<(OwnerToken, u64)>,
    /// They expire with the fence.
    pub(super) slots: Vec<Slot>,
    pub(super) fence: u64,
    fence_till: u64,
    watched_till: u64,
    pub(super) queue: Vec<Waiter>,
    queue_till: u64,
    /// What stands in the owner's place, and the end of the reservation. A reserved lock has no
    /// holder.
    pub(super) reserved: Option<(OwnerToken, u64)>,
    /// Kept for its old holder after a planned handover: the data history in which it was first
    /// kept, and until when no other owner gets it (quarantine 11).
    kept: Option<(u64, u64)>,
}

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) owner: Option<OwnerToken>,
    pub(super) till: Option<u64>,
    pub(super) meta: Option<Arc<[u8]>>,
}

impl Held {
    pub(super) fn by(owner: OwnerToken, till: u64) -> Self {
        Self { owner: Some(owner), till: Some(till), meta: None }
    }
}

impl Perish for Entry {
    fn refresh(&mut self, now: u64) -> bool {
        self.held.take_if(|h| h.till.is_some_and(|t| t <= now));
        if self.readers.iter().all(|(_, till)| *till <= now) {
            self.readers.clear();
        }
        if self.fence_till <= now {
            self.fence = 0;
            self.slots.clear();
        }
        if self.queue_till <= now {
            self.queue.clear();
        }
        self.reserved.take_if(|(_, till)| *till <= now);
        !self.is_free() || self.fence_till > now || self.watched_till.max(self.queue_till) > now
    }
}

impl Entry {
    pub(super) fn is_free(&self) -> bool {
        self.held.is_none() && self.readers.is_empty() && self.slots.is_empty()
    }

    pub(super) fn is_owned_by(&self, owner: OwnerToken) -> bool {
        self.held.as_ref().is_some_and(|h| h.owner == Some(owner))
    }

    /// For [`IfHeld::TakeFrom`] or [`IfHeld::TakeOnly`]: held by the owner from which it is taken,
    /// or by `asker` because the request was repeated; for at most `ttl`, so no transfer shortens
    /// the hold.
    pub(super) fn is_given(
        &self,
        h: &Header,
        asker: OwnerToken,
        (ttl, if_held): (Duration, Option<IfHeld>),
    ) -> bool {
        let (from, latest) = match if_held {
            Some(IfHeld::TakeFrom(from)) => (from, u64::MAX),
            Some(IfHeld::TakeOnly { from, token }) => (from, token.get()),
            Some(IfHeld::Watch | IfHeld::Queue(_) | IfHeld::Fair { .. }) | None => return false,
        };
        (self.is_owned_by(from) && self.fence <= latest || self.is_owned_by(asker))
            && self.held.as_ref().and_then(|h| h.till).is_some_and(|till| h.until(till) <= ttl)
    }

    pub(super) fn set_fence(&mut self, h: &Header, fence: u64) {
        self.fence = fence;
        // If the fence ended with the lock, the next owner could be given the same token.
        self.keep_fence(h);
    }

    /// Prolongs the life of the fence and of the semaphore's slots. Never shortens it: other owners
    /// may have longer leases than this client's (locks 5).
    pub(super) fn keep_fence(&mut self, h: &Header) {
        self.fence_till = self.fence_till.max(h.fence_till());
    }

    fn watch(&mut self, h: &Header) {
        self.watched_till = self.watched_till.max(h.fence_till());
    }

    pub(super) fn fence_left(&self, h: &Header) -> Duration {
        h.until(self.fence_till)
    }

    pub(super) fn was_watched(&mut self, h: &Header) -> bool {
        std::mem::take(&mut self.watched_till) > h.now
    }

    pub(super) fn kept(&mut self, h: &Header) -> Option<Duration> {
        if h.settling && self.is_free() && self.fence_till > h.now {
            let begun = self.kept.filter(|(history, _)| *history == h.settles_till);
            self.kept = begun.or(Some((h.settles_till, h.after(h.apart()))));
        }
        self.kept_till(h).map(|till| h.until(till))
    }

    /// If no acquire has asked for it since the handover, the time that one would set now.
    fn kept_till(&self, h: &Header) -> Option<u64> {
        if !h.settling || !self.is_free() || self.fence_till <= h.now {
            return None;
        }
        let begun = self.kept.filter(|(history, _)| *history == h.settles_till);
        Some(begun.map_or(h.after(h.apart()), |(_, till)| till)).filter(|till| *till > h.now)
    }

    pub(super) fn kept_lately(&self, h: &Header) -> Option<Duration> {
        self.kept.and_then(|_| self.kept_till(h)).map(|till| h.until(till))
    }

    pub(super) fn reserved(
        &self,
        h: &Header,
        mode: LockMode,
        if_held: Option<IfHeld>,
    ) -> Option<Duration> {
        let (waiter, till) = self.reserved?;
        let place = if_held.as_ref().and_then(IfHeld::place);
        let own = match mode {
            LockMode::Exclusive | LockMode::Slot(_) => {
                place.map(|place| OwnerToken::reserved_for(place.waiter))
            }
            LockMode::Shared => Some(OwnerToken::READERS),
        };
        (own != Some(waiter)).then(|| h.until(till))
    }

    /// An exclusive grant, or permits under the same key.
    pub(super) fn closed(&self, h: &Header) -> Option<Busy> {
        match &self.held {
            Some(held) => Some((held.till.map(|t| h.until(t)), held.owner.is_none())),
            None if self.slots.is_empty() => None,
            None => Some((Some(self.fence_left(h)), true)),
        }
    }

    pub(super) fn busy(
        &mut self,
        h: &Header,
        owner: OwnerToken,
        asked: (Duration, Option<IfHeld>),
    ) -> Option<Busy> {
        if self.is_owned_by(owner) || self.is_given(h, owner, asked) {
            return None;
        }
        let readers = self.readers.iter().map(|(_, till)| *till).max();
        let readers = readers.map(|last| (Some(h.until(last)), false));
        let kept = |rest| (Some(rest), false);
        self.closed(h).or(readers).or_else(|| self.kept(h).map(kept))
    }

    pub(super) fn refuse(
        &mut self,
        h: &Header,
        (mode, if_held): (LockMode, Option<IfHeld>),
        (remaining, foreign): Busy,
    ) -> Reply {
        match if_held {
            Some(IfHeld::Watch) => self.watch(h),
            Some(IfHeld::Fair { place, ticket }) if mode == LockMode::Exclusive => {
                let (queued, _) = self.standing(h, &place, ticket);
                if self.queue(h, mode, place, Some(queued.ticket)) {
                    return Reply::Queued { remaining, foreign, queued };
                }
            }
            Some(IfHeld::Queue(place) | IfHeld::Fair { place, .. }) => {
                self.queue(h, mode, place, None);
            }
            Some(IfHeld::TakeFrom(_) | IfHeld::TakeOnly { .. }) | None => {}
        }
        Reply::Held { remaining, foreign }
    }

    /// By its ticket, or else by its wait, in place of an earlier one. False if the queue is full.
    fn queue(&mut self, h: &Header, mode: LockMode, place: Place, ticket: Option<u64>) -> bool {
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

    /// The first waiter leaves the queue, unless it is a fair one, and the lock is reserved for it.
    /// If it is a reader, so do all readers before the first fresh exclusive waiter.
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
        Wake { watchers, waiters: woken.iter().map(|waiter| waiter.place.waiter).collect() }
    }
}

/// In µs by the node's wall clock.
pub(super) fn since(h: &Header, place: &Place) -> u64 {
    h.facts.node_micros.saturating_sub(place.waited.min(WAITED_MAX).as_micros() as u64)
}

#[derive(Clone, Debug, Default)]
pub(super) struct Locks(pub(super) Shelf<Entry>);

impl Locks {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn acquire(
        &mut self,
        h: &Header,
        keys: &LockKeys,
        owner: OwnerToken,
        ttl: Duration,
        (proposal, if_held): (u64, Option<IfHeld>),
    ) -> Reply {
        if h.is_quarantined() {
            return h.quarantined();
        }
        let entry = self.0.open(keys.lock(), h.now);
        let asked = (LockMode::Exclusive, if_held);
        if let Some(rest) = entry.reserved(h, LockMode::Exclusive, if_held) {
            return entry.refuse(h, asked, (Some(rest), false));
        }
        entry.reserved = None;
        let given = entry.is_given(h, owner, (ttl, if_held));
        let only = matches!(if_held, Some(IfHeld::TakeOnly { .. }));
        if only && !given && entry.is_free() {
            let rest = entry.kept_lately(h).unwrap_or_default();
            return entry.refuse(h, asked, (Some(rest), false));
        }
        if let Some(busy) = entry.busy(h, owner, (ttl, if_held)) {
            return entry.refuse(h, asked, busy);
        }
        entry.held.take_if(|_| given);
        if entry.is_owned_by(owner) {
            return Reply::Granted { fence: entry.fence };
        }
        if let Some(IfHeld::Fair { place, ticket }) = if_held {
            let (queued, kept) = entry.standing(h, &place, ticket);
            if kept.is_some() {
                return entry.refuse(h, asked, (kept, false));
            }
            if ticket.is_some() {
                entry.queue(h, LockMode::Exclusive, place, Some(queued.ticket));
            }
        }
        entry.held = Some(Held::by(owner, h.after(ttl)));
        let fence = h.next_fence(entry.fence, proposal);
        entry.set_fence(h, fence);
        Reply::Granted { fence }
    }

    pub(super) fn raise(
        &mut self,
        h: &Header,
        keys: &LockKeys,
        owner: OwnerToken,
        token: FencingToken,
    ) -> Reply {
        if h.is_quarantined() {
            return h.quarantined();
        }
        // The fence is larger: another owner may have got the lock since.
        let may = keys.all().all(|name| {
            self.0.live(name.lock(), h.now).is_some_and(|e| {
                let is_read = !keys.is_many() && e.is_read_by(owner, h.now);
                (e.is_owned_by(owner) || is_read) && e.fence <= token.get()
            })
        });
        if !may || h.is_ahead(token.get()) {
            return Reply::NotOwner;
        }
        for name in keys.all() {
            self.0.open(name.lock(), h.now).set_fence(h, token.get());
        }
        Reply::Done
    }

    pub(super) fn extend(
        &mut self,
        h: &Header,
        keys: &LockKeys,
        owner: OwnerToken,
        (ttl, token): (Duration, FencingToken),
        (meta, reassert): (Option<&Arc<[u8]>>, Option<QuarantineId>),
    ) -> (Reply, Wake) {
        let lost = keys.all().any(|name| {
            let entry = self.0.live(name.lock(), h.now);
            // An extension never makes a reader the writer. Only an acquire can do that.
            entry.is_some_and(|e| !e.is_free() && !e.is_owned_by(owner))
        });
        if lost {
            return (Reply::NotOwner, Wake::default());
        }
        if !h.may_extend(reassert) {
            return (h.quarantined(), Wake::default());
        }
        let mut wake = Wake::default();
        for name in keys.all() {
            let entry = self.0.open(name.lock(), h.now);
            entry.reserved = None;
            let held = entry.held.get_or_insert(Held::by(owner, 0));
            held.till = Some(h.after(ttl));
            if meta.is_some() && held.meta.as_ref() != meta {
                held.meta = meta.cloned();
                wake.watchers = entry.was_watched(h);
            }
            entry.set_fence(h, entry.fence.max(token.get()));
        }
        (Reply::Done, wake)
    }

    pub(super) fn release(
        &mut self,
        h: &Header,
        keys: &LockKeys,
        owner: OwnerToken,
        (mode, meta): (LockMode, bool),
    ) -> (Reply, Wake) {
        let Some(entry) = self.0.live(keys.lock(), h.now) else {
            return (Reply::Absent, Wake::default());
        };
        if meta && owner.is_ownerless() {
            entry.give_up(owner);
        }
        if !entry.readers.is_empty() {
            return if mode.is_shared() {
                entry.release_shared(h, owner)
            } else {
                (Reply::NotOwner, Wake::default())
            };
        }
        if !entry.slots.is_empty() {
            return (Reply::NotOwner, Wake::default());
        }
        if entry.held.is_none() {
            return match entry.reserved {
                Some((waiter, _)) if owner == waiter => (Reply::Done, entry.wake(h)),
                Some(_) => (Reply::Absent, Wake::default()),
                None => (Reply::Absent, entry.wake(h)),
            };
        }
        if !entry.is_owned_by(owner) {
            return (Reply::NotOwner, Wake::default());
        }
        entry.held = None;
        (Reply::Done, entry.wake(h))
    }

    pub(super) fn inspect(&mut self, h: &Header, keys: &LockKeys, wait: bool) -> Reply {
        if wait {
            self.0.open(keys.lock(), h.now).watch(h);
        }
        let entry = self.0.live(keys.lock(), h.now);
        if let Some(e) = entry.as_ref().filter(|e| !e.readers.is_empty()) {
            return Reply::Readers(e.readers(h));
        }
        if let Some(e) = entry.as_ref().filter(|e| !e.slots.is_empty()) {
            return Reply::Permits(e.permits(h));
        }
        let holder = entry.and_then(|e| {
            let (owner, till, meta) = match &e.held {
                Some(held) => (held.owner, held.till, held.meta.clone()),
                None => (Some(OwnerToken::KEPT), Some(e.kept_till(h)?), None),
            };
            let remaining = till.map(|t| h.until(t));
            Some(Holder { owner, fence: e.fence, remaining, meta })
        });
        Reply::Holder(holder)
    }
}
