//! The ops of permits on a node in memory.

use std::time::Duration;

use super::locks::{Entry, Locks, Wake};
use crate::name::LockKeys;
use crate::op::{IfHeld, LockMode, Place, QuarantineId, Reply, SlotGrant, Slots};
use crate::rules::header::Header;
use crate::token::{FencingToken, OwnerToken};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    /// While reserved, the value in the place of a token; `None` after a release.
    owner: Option<OwnerToken>,
    till: u64,
    fence: u64,
}

impl Slot {
    /// Soon after a planned handover 2E after the end of the grant, which may have ended too early
    /// by this clock.
    fn taken_till(&self, h: &Header) -> u64 {
        let is_grant = self.owner.is_some_and(|owner| !owner.is_ownerless());
        let apart = if h.settling && is_grant { h.apart() } else { Duration::ZERO };
        self.till.saturating_add(u64::try_from(apart.as_nanos()).unwrap_or(u64::MAX))
    }

    fn is_free(&self, h: &Header) -> bool {
        self.owner.is_none() || self.taken_till(h) <= h.now
    }

    /// Of a reserved slot, the token stands for the waiting handle.
    fn is_of(&self, owner: OwnerToken, h: &Header) -> bool {
        self.owner == Some(owner) && self.till > h.now
    }

    fn free(&mut self) {
        (self.owner, self.till) = (None, 0);
    }
}

impl Entry {
    fn make_slots(&mut self, of: u16) {
        let len = self.slots.len().max(of.into());
        self.slots.resize(len, Slot::default());
    }

    fn occupy(&mut self, h: &Header, slot: u16, owner: OwnerToken, till: u64) -> &mut Slot {
        self.leave(owner);
        self.keep_fence(h);
        let slot = &mut self.slots[usize::from(slot)];
        (slot.owner, slot.till) = (Some(owner), till);
        slot
    }

    /// `None` if refused (semaphore 1, 2).
    fn choose(
        &self,
        h: &Header,
        owner: OwnerToken,
        slots: Slots,
        if_held: Option<IfHeld>,
    ) -> Option<u16> {
        let of = |owner| slots.order().find(|i| self.slots[usize::from(*i)].is_of(owner, h));
        let place = if_held.as_ref().and_then(IfHeld::place);
        let reserved = place.and_then(|place| of(OwnerToken::reserved_for(place.waiter)));
        let moves = slots.slot().is_some();
        let is_reserved = |slot: &Slot| slot.owner.is_some_and(|owner| owner.is_ownerless());
        let is_free = |slot: &Slot| slot.is_free(h) || moves && is_reserved(slot);
        let free = || slots.order().find(|i| is_free(&self.slots[usize::from(*i)]));
        of(owner).or(reserved).or_else(free)
    }

    fn wake_for(&mut self, h: &Header, number: usize, slot: usize) -> u64 {
        let Place { waiter, needs, .. } = self.queue.remove(number).place;
        let needs = needs.min(Place::RESERVED_MAX);
        if !needs.is_zero() {
            let slot = &mut self.slots[slot];
            (slot.owner, slot.till) = (Some(OwnerToken::reserved_for(waiter)), h.after(needs));
        }
        waiter
    }

    fn leave(&mut self, owner: OwnerToken) -> Vec<usize> {
        let of_owner = |(_, slot): &(usize, &mut Slot)| slot.owner == Some(owner);
        let slots = self.slots.iter_mut().enumerate().filter(of_owner);
        slots.map(|(i, slot)| (slot.free(), i).1).collect()
    }

    /// One waiter for each slot, and all that watch. A waiter gets the highest free slot that it
    /// knows, so that lower ones are left for waiters that know fewer.
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
            let owner = slot.owner.filter(|owner| !owner.is_ownerless() && slot.till > h.now)?;
            let number = u16::try_from(i).ok()?;
            let remaining = h.until(slot.till);
            Some(SlotGrant { slot: number, owner, fence: slot.fence, remaining })
        };
        self.slots.iter().enumerate().filter_map(grant).collect()
    }

    fn is_lock(&self) -> bool {
        self.held.is_some() || !self.readers.is_empty() || self.reserved.is_some()
    }
}

impl Locks {
    /// Grants or refuses (semaphore 1, 2).
    pub(super) fn acquire_slot(
        &mut self,
        h: &Header,
        keys: &LockKeys,
        (owner, slots): (OwnerToken, Slots),
        ttl: Duration,
        (proposal, if_held): (u64, Option<IfHeld>),
    ) -> (Reply, Wake) {
        if h.is_quarantined() {
            return (h.quarantined(), Wake::default());
        }
        if !slots.are_there() {
            return (Reply::Held { remaining: None, foreign: false }, Wake::default());
        }
        let (entry, asked) = (self.0.open(keys.lock(), h.now), (LockMode::Slot(slots), if_held));
        if entry.is_lock() {
            let held = entry.held.as_ref().and_then(|held| held.till);
            let rest = held.map(|till| h.until(till));
            return (entry.refuse(h, asked, (rest, true)), Wake::default());
        }
        entry.make_slots(slots.of);
        let has = entry.slots.iter().position(|slot| slot.is_of(owner, h));
        if let (None, Some(has)) = (slots.slot(), has) {
            let slot = u16::try_from(has).unwrap_or_default();
            return (Reply::Permit { fence: entry.slots[has].fence, slot }, Wake::default());
        }
        let Some(slot) = entry.choose(h, owner, slots, if_held) else {
            let taken = slots.order().map(|i| entry.slots[usize::from(i)].taken_till(h)).min();
            let reply = entry.refuse(h, asked, (taken.map(|till| h.until(till)), false));
            // One exact slot: its others are freed.
            let free = if slots.slot().is_some() { entry.leave(owner) } else { Vec::new() };
            return (reply, entry.hand_on(h, free));
        };
        let at = usize::from(slot);
        if has == Some(at) {
            return (Reply::Permit { fence: entry.slots[at].fence, slot }, Wake::default());
        }
        let fence = h.next_fence(entry.slots[at].fence, proposal);
        entry.occupy(h, slot, owner, h.after(ttl)).fence = fence;
        (Reply::Permit { fence, slot }, Wake::default())
    }

    pub(super) fn raise_slot(
        &mut self,
        h: &Header,
        keys: &LockKeys,
        (owner, slot): (OwnerToken, u16),
        token: FencingToken,
    ) -> Reply {
        if h.is_quarantined() {
            return h.quarantined();
        }
        let Some(entry) = self.0.live(keys.lock(), h.now) else { return Reply::NotOwner };
        match entry.slots.get_mut(usize::from(slot)) {
            Some(slot)
                if slot.is_of(owner, h)
                    && slot.fence <= token.get()
                    && !h.is_ahead(token.get()) =>
            {
                slot.fence = token.get();
                entry.keep_fence(h);
                Reply::Done
            }
            _ => Reply::NotOwner,
        }
    }

    /// The owner then has this slot and no other, or none if another owner has it (semaphore 4).
    pub(super) fn extend_slot(
        &mut self,
        h: &Header,
        keys: &LockKeys,
        (owner, slots): (OwnerToken, Slots),
        (ttl, token): (Duration, FencingToken),
        reassert: Option<QuarantineId>,
    ) -> (Reply, Wake) {
        let refused = (Reply::NotOwner, Wake::default());
        let Some(slot) = slots.slot() else { return refused };
        if let Some(entry) = self.0.live(keys.lock(), h.now) {
            if entry.held.is_some() || !entry.readers.is_empty() {
                return refused;
            }
            let is_anothers = |slot: &Slot| {
                let other = slot.owner.filter(|other| *other != owner && !other.is_ownerless());
                other.is_some() && slot.till > h.now
            };
            if entry.slots.get(usize::from(slot)).is_some_and(is_anothers) {
                let free = if h.may_extend(reassert) { entry.leave(owner) } else { Vec::new() };
                return (Reply::NotOwner, entry.hand_on(h, free));
            }
        }
        if !h.may_extend(reassert) {
            return (h.quarantined(), Wake::default());
        }
        let entry = self.0.open(keys.lock(), h.now);
        entry.make_slots(slots.of.max(slot + 1));
        let slot = entry.occupy(h, slot, owner, h.after(ttl));
        slot.fence = slot.fence.max(token.get());
        (Reply::Done, Wake::default())
    }

    /// Frees and wakes (semaphore 5).
    pub(super) fn release_slots(
        &mut self,
        h: &Header,
        keys: &LockKeys,
        owner: OwnerToken,
        slots: Slots,
    ) -> (Reply, Wake) {
        let Some(entry) = self.0.live(keys.lock(), h.now) else {
            return (Reply::Absent, Wake::default());
        };
        if entry.held.is_some() || !entry.readers.is_empty() {
            return (Reply::NotOwner, Wake::default());
        }
        let has = entry.slots.iter().any(|slot| slot.is_of(owner, h));
        let mut reply = if has { Reply::Done } else { Reply::Absent };
        let mut free = entry.leave(owner);
        if free.is_empty() {
            let is_anothers = |slot: &Slot| {
                slot.till > h.now && slot.owner.is_some_and(|other| !other.is_ownerless())
            };
            let named = slots.slot().and_then(|slot| entry.slots.get(usize::from(slot)));
            if named.is_some_and(is_anothers) {
                reply = Reply::NotOwner;
            }
            let known = entry.slots.iter().take(slots.of.into());
            free.extend(known.into_iter().position(|slot| slot.is_free(h)));
        } else {
            entry.keep_fence(h);
        }
        (reply, entry.hand_on(h, free))
    }
}
