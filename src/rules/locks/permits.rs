//! The permits of a semaphore: grants of its numbered slots.

use std::time::Duration;

use super::beside::Busy;
use super::{Ask, Extension, Row, Wake};
use crate::op::{LockMode, Place, Reply, SlotGrant, Slots};
use crate::rules::header::Header;
use crate::token::{FencingToken, OwnerToken};

/// A slot of a semaphore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    /// A value in its place while the slot is reserved; `None` after a release.
    pub(crate) owner: Option<OwnerToken>,
    /// End of the grant or of the reservation.
    pub(crate) till: u64,
    pub(crate) fence: u64,
}

impl Slot {
    /// Time until which no other owner gets the slot. (quarantine 11): soon after a planned
    /// handover a grant may have ended too early by this clock.
    fn taken_till(&self, h: &Header) -> u64 {
        let is_grant = self.owner.is_some_and(|owner| !owner.is_ownerless());
        let apart = if h.settling && is_grant { h.apart() } else { Duration::ZERO };
        self.till.saturating_add(u64::try_from(apart.as_nanos()).unwrap_or(u64::MAX))
    }

    fn is_free(&self, h: &Header) -> bool {
        self.owner.is_none() || self.taken_till(h) <= h.now
    }

    /// Also of the value that stands for a waiting handle.
    fn is_of(&self, owner: OwnerToken, h: &Header) -> bool {
        self.owner == Some(owner) && self.till > h.now
    }

    fn is_granted(&self, h: &Header) -> bool {
        self.till > h.now && self.owner.is_some_and(|owner| !owner.is_ownerless())
    }

    fn free(&mut self) {
        (self.owner, self.till) = (None, 0);
    }
}

impl Row {
    fn make_slots(&mut self, of: u16) {
        let len = self.slots.len().max(of.into());
        self.slots.resize(len, Slot::default());
    }

    /// Gives the owner the slot, in place of any other that it has.
    fn occupy(&mut self, h: &Header, slot: u16, owner: OwnerToken, till: u64) -> &mut Slot {
        self.leave(owner);
        self.keep_fence(h);
        let slot = &mut self.slots[usize::from(slot)];
        (slot.owner, slot.till) = (Some(owner), till);
        slot
    }

    /// The slot that the request gets (semaphore 1, 2).
    fn choose(&self, h: &Header, ask: &Ask, slots: Slots) -> Option<u16> {
        let of = |owner| slots.order().find(|i| self.slots[usize::from(*i)].is_of(owner, h));
        let reserved = ask.place().and_then(|place| of(OwnerToken::reserved_for(place.waiter)));
        let moves = slots.slot().is_some();
        let is_reserved = |slot: &Slot| slot.owner.is_some_and(|owner| owner.is_ownerless());
        let is_free = |slot: &Slot| slot.is_free(h) || moves && is_reserved(slot);
        let free = || slots.order().find(|i| is_free(&self.slots[usize::from(*i)]));
        of(ask.owner).or(reserved).or_else(free)
    }

    /// Takes the waiter at this position out of the queue, and reserves the free slot for it.
    fn wake_for(&mut self, h: &Header, number: usize, slot: usize) -> u64 {
        let Place { waiter, needs, .. } = self.queue.remove(number).place;
        let needs = needs.min(Place::RESERVED_MAX);
        if !needs.is_zero() {
            let slot = &mut self.slots[slot];
            (slot.owner, slot.till) = (Some(OwnerToken::reserved_for(waiter)), h.after(needs));
        }
        waiter
    }

    /// Frees the owner's slots.
    fn leave(&mut self, owner: OwnerToken) -> Vec<usize> {
        let of_owner = |(_, slot): &(usize, &mut Slot)| slot.owner == Some(owner);
        let slots = self.slots.iter_mut().enumerate().filter(of_owner);
        slots.map(|(i, slot)| (slot.free(), i).1).collect()
    }

    /// Wakes a waiter for each free slot (semaphore 5). A waiter knows the slots below the number
    /// of permits in its request. It gets the highest one that it knows, so that lower ones are
    /// left for waiters that know fewer.
    fn hand_on(&mut self, h: &Header, mut free: Vec<usize>) -> Wake {
        if free.is_empty() {
            return Wake::default();
        }
        let (mut waiters, mut number) = (Vec::new(), 0);
        while let Some(waiter) = self.queue.get(number) {
            let known = waiter.mode.slots().map_or(Slots::MAX, |slots| slots.of);
            match free.iter().rposition(|slot| *slot < usize::from(known)) {
                Some(at) => waiters.push(self.wake_for(h, number, free.remove(at))),
                None => number += 1,
            }
        }
        Wake { watchers: self.was_watched(h), waiters }
    }

    pub(super) fn permits(&self, h: &Header) -> Vec<SlotGrant> {
        let grant = |(i, slot): (usize, &Slot)| {
            let owner = slot.owner.filter(|_| slot.is_granted(h))?;
            let number = u16::try_from(i).ok()?;
            let remaining = h.until(slot.till);
            Some(SlotGrant { slot: number, owner, fence: slot.fence, remaining })
        };
        self.slots.iter().enumerate().filter_map(grant).collect()
    }
}

/// (semaphore 1, 2).
pub(super) fn acquire(h: &Header, ask: &Ask, slots: Slots, row: &mut Row) -> (Reply, Wake) {
    if h.is_quarantined() {
        return (h.quarantined(), Wake::default());
    }
    if !slots.are_there() {
        return (Reply::Held { remaining: None, foreign: false }, Wake::default());
    }
    if let Some(busy) = row.bar(h, ask) {
        return (row.refuse(h, ask, busy), Wake::default());
    }
    row.make_slots(slots.of);
    let has = row.slots.iter().position(|slot| slot.is_of(ask.owner, h));
    if let (None, Some(has)) = (slots.slot(), has) {
        // The request was repeated.
        let slot = u16::try_from(has).unwrap_or_default();
        return (Reply::Permit { fence: row.slots[has].fence, slot }, Wake::default());
    }
    let Some(slot) = row.choose(h, ask, slots) else {
        let taken = slots.order().map(|i| row.slots[usize::from(i)].taken_till(h)).min();
        let remaining = taken.map(|till| h.until(till));
        let reply = row.refuse(h, ask, Busy { remaining, foreign: false });
        // Who asks for exactly one slot needs no other.
        let free = if slots.slot().is_some() { row.leave(ask.owner) } else { Vec::new() };
        return (reply, row.hand_on(h, free));
    };
    let at = usize::from(slot);
    if has == Some(at) {
        return (Reply::Permit { fence: row.slots[at].fence, slot }, Wake::default());
    }
    let fence = h.next_fence(row.slots[at].fence, ask.proposal);
    row.occupy(h, slot, ask.owner, h.after(ask.ttl)).fence = fence;
    (Reply::Permit { fence, slot }, Wake::default())
}

/// (semaphore 3).
pub(super) fn raise(
    h: &Header,
    (owner, slot): (OwnerToken, u16),
    token: FencingToken,
    row: &mut Row,
) -> Reply {
    if h.is_quarantined() {
        return h.quarantined();
    }
    match row.slots.get_mut(usize::from(slot)) {
        Some(slot)
            if slot.is_of(owner, h) && slot.fence <= token.get() && !h.is_ahead(token.get()) =>
        {
            slot.fence = token.get();
            row.keep_fence(h);
            Reply::Done
        }
        _ => Reply::NotOwner,
    }
}

/// The owner then has this slot and no other, or none if another owner has this one (semaphore 4).
pub(super) fn extend(
    h: &Header,
    extension: &Extension<'_>,
    slots: Slots,
    row: &mut Row,
) -> (Reply, Wake) {
    let Extension { mode, owner, ttl, token, reassert, .. } = *extension;
    let Some(slot) = slots.slot().filter(|_| !row.is_anothers(mode, owner)) else {
        return (Reply::NotOwner, Wake::default());
    };
    let is_anothers = |slot: &Slot| slot.owner != Some(owner) && slot.is_granted(h);
    if row.slots.get(usize::from(slot)).is_some_and(is_anothers) {
        let free = if h.may_extend(reassert) { row.leave(owner) } else { Vec::new() };
        return (Reply::NotOwner, row.hand_on(h, free));
    }
    if !h.may_extend(reassert) {
        return (h.quarantined(), Wake::default());
    }
    row.make_slots(slots.of.max(slot + 1));
    let slot = row.occupy(h, slot, owner, h.after(ttl));
    slot.fence = slot.fence.max(token.get());
    (Reply::Done, Wake::default())
}

/// (semaphore 5).
pub(super) fn release(h: &Header, owner: OwnerToken, slots: Slots, row: &mut Row) -> (Reply, Wake) {
    if row.is_anothers(LockMode::Slot(slots), owner) {
        return (Reply::NotOwner, Wake::default());
    }
    let has = row.slots.iter().any(|slot| slot.is_of(owner, h));
    let mut reply = if has { Reply::Done } else { Reply::Absent };
    let mut free = row.leave(owner);
    if free.is_empty() {
        let named = slots.slot().and_then(|slot| row.slots.get(usize::from(slot)));
        if named.is_some_and(|slot| slot.is_granted(h)) {
            reply = Reply::NotOwner;
        }
        let mut known = row.slots.iter().take(slots.of.into());
        free.extend(known.position(|slot| slot.is_free(h)));
    } else {
        row.keep_fence(h);
    }
    (reply, row.hand_on(h, free))
}
