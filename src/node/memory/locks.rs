//! The ops on locks of a node in memory: acquire, raise, extend, release, inspect.

use std::sync::Arc;
use std::time::Duration;

use super::quarantine::Header;
use super::shelf::{Perish, Shelf};
use crate::name::LockKeys;
use crate::op::{Holder, IfHeld, Place, QuarantineId, Reply};
use crate::token::{FencingToken, OwnerToken};

/// Most handles that have a place in the queue of one lock; other handles that wait ask again from
/// time to time.
const PLACES: usize = 64;
/// Longest waiting time that counts for a handle's place in the queue of a lock.
const WAITED_MAX: Duration = Duration::from_secs(3600);

/// Handles that receive a hint because a lock has changed: all that watch it (`watchers`), and the
/// first in its queue (`waiter`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wake {
    pub(super) watchers: bool,
    pub(super) waiter: Option<u64>,
}

/// All data under one lock's keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    held: Option<Held>,
    fence: u64,
    fence_till: u64,
    /// Time until which a client watches the lock.
    watched_till: u64,
    /// Queue of the handles that wait, each with the start of its wait; the longest wait first.
    queue: Vec<(u64, Place)>,
    /// Time until which the queue is kept; every handle that asks again moves it later.
    queue_till: u64,
    /// Handle for which the lock is reserved while it has no holder, and the time until which it
    /// is.
    reserved: Option<(u64, u64)>,
    /// Data history in which the free lock is kept for its old holder after a planned handover, and
    /// the time until which it is. The holder's lease may have ended early by this server's clock.
    kept: Option<(u64, u64)>,
}

#[derive(Clone, Debug)]
struct Held {
    /// Owner token; `None` if another program wrote the value of the lock's key.
    owner: Option<OwnerToken>,
    till: Option<u64>,
    meta: Option<Arc<[u8]>>,
}

impl Perish for Entry {
    fn refresh(&mut self, now: u64) -> bool {
        self.held.take_if(|h| h.till.is_some_and(|t| t <= now));
        if self.fence_till <= now {
            self.fence = 0;
        }
        if self.queue_till <= now {
            self.queue.clear();
        }
        self.reserved.take_if(|(_, till)| *till <= now);
        self.held.is_some() || self.fence_till > now || self.watched_till.max(self.queue_till) > now
    }
}

impl Entry {
    fn is_owned_by(&self, owner: OwnerToken) -> bool {
        self.held.as_ref().is_some_and(|h| h.owner == Some(owner))
    }

    /// Returns true if the lock is to be transferred to `asker` by [`IfHeld::TakeFrom`]: it is held
    /// by the owner from which it is taken, or already by `asker` because the request was repeated,
    /// and its remaining time is at most `ttl`. So no transfer shortens the time for which the lock
    /// is held.
    fn is_given(
        &self,
        h: &Header,
        asker: OwnerToken,
        (ttl, if_held): (Duration, Option<IfHeld>),
    ) -> bool {
        let Some(IfHeld::TakeFrom(from)) = if_held else { return false };
        (self.is_owned_by(from) || self.is_owned_by(asker))
            && self.held.as_ref().and_then(|h| h.till).is_some_and(|till| h.until(till) <= ttl)
    }

    fn set_fence(&mut self, h: &Header, fence: u64) {
        self.fence = fence;
        // The fence is kept for longer than the lock, because a fence that expired with it would be
        // given again.
        self.fence_till = h.fence_till();
    }

    /// Returns the time for which the lock, although it is free, is kept for a holder that may
    /// still exist, because a planned handover was made lately; `None` if it is not kept.
    fn kept(&mut self, h: &Header) -> Option<Duration> {
        if !h.settling || self.held.is_some() || self.fence_till <= h.now {
            return None;
        }
        let here = h.id().history;
        let (_, till) = *self
            .kept
            .filter(|(history, _)| *history == here)
            .as_ref()
            .unwrap_or(&(here, h.after(h.apart())));
        self.kept = Some((here, till));
        Some(h.until(till)).filter(|rest| !rest.is_zero())
    }

    /// Returns the time for which the lock is reserved for another handle than the one that asks;
    /// `None` if it is not.
    fn reserved(&self, h: &Header, if_held: Option<IfHeld>) -> Option<Duration> {
        let (waiter, till) = self.reserved?;
        let place = if_held.as_ref().and_then(IfHeld::place);
        (place.is_none_or(|place| place.waiter != waiter)).then(|| h.until(till))
    }

    /// Refuses an acquire, and registers the hint that its `if_held` asks for.
    fn refuse(
        &mut self,
        h: &Header,
        if_held: Option<IfHeld>,
        (remaining, foreign): (Option<Duration>, bool),
    ) -> Reply {
        match if_held {
            Some(IfHeld::Watch) => self.watched_till = h.fence_till(),
            Some(IfHeld::Queue(place)) => self.queue(h, place),
            Some(IfHeld::TakeFrom(_)) | None => {}
        }
        Reply::Held { remaining, foreign }
    }

    /// Gives the handle a place in the queue by the time for which it has waited. Any place that it
    /// had before is removed.
    fn queue(&mut self, h: &Header, place: Place) {
        let since = h.now.saturating_sub(place.waited.min(WAITED_MAX).as_nanos() as u64);
        self.queue.retain(|(_, other)| other.waiter != place.waiter);
        let at = self.queue.partition_point(|(other, _)| *other <= since);
        self.queue.insert(at, (since, place));
        self.queue.truncate(PLACES);
        self.queue_till = h.fence_till();
    }

    /// Returns the handles to wake because the lock is free. Takes the first out of the queue and
    /// reserves the lock for it.
    fn wake(&mut self, h: &Header) -> Wake {
        let watchers = std::mem::take(&mut self.watched_till) > h.now;
        let first = (!self.queue.is_empty()).then(|| self.queue.remove(0).1);
        let till = |place: Place| h.after(place.needs.min(Place::RESERVED_MAX));
        let reserved = first.filter(|place| !place.needs.is_zero());
        self.reserved = reserved.map(|place| (place.waiter, till(place)));
        Wake { watchers, waiter: first.map(|place| place.waiter) }
    }
}

/// All locks of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Locks(Shelf<Entry>);

impl Locks {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Sets another program's value under a lock's key.
    #[cfg(feature = "test-util")]
    pub(super) fn put_foreign(&mut self, key: &str, now: u64, till: Option<u64>) {
        let entry = self.0.open(key, now);
        entry.held = Some(Held { owner: None, till, meta: None });
    }

    /// Runs another program's `SET NX PX`; returns true if it has the lock now.
    #[cfg(feature = "test-util")]
    pub(super) fn set_foreign(&mut self, key: &str, now: u64, till: u64) -> bool {
        let entry = self.0.open(key, now);
        let is_free = entry.held.is_none() && entry.reserved.is_none();
        if is_free {
            entry.held = Some(Held { owner: None, till: Some(till), meta: None });
        }
        is_free
    }

    /// Acts as another program that releases its lock: deletes the key if it has another program's
    /// value.
    #[cfg(feature = "test-util")]
    pub(super) fn delete_foreign(&mut self, key: &str, now: u64) {
        if let Some(entry) = self.0.live(key, now) {
            entry.held.take_if(|held| held.owner.is_none());
        }
    }

    pub(super) fn acquire(
        &mut self,
        h: &Header,
        keys: &LockKeys,
        owner: OwnerToken,
        ttl: Duration,
        (proposal, if_held): (u64, Option<IfHeld>),
    ) -> Reply {
        if !h.quarantine.is_zero() {
            return h.quarantined();
        }
        let entry = self.0.open(keys.lock(), h.now);
        if let Some(rest) = entry.reserved(h, if_held) {
            return entry.refuse(h, if_held, (Some(rest), false));
        }
        entry.reserved = None;
        let given = entry.is_given(h, owner, (ttl, if_held));
        if !given && let Some(rest) = entry.kept(h) {
            return entry.refuse(h, if_held, (Some(rest), false));
        }
        entry.held.take_if(|_| given);
        if entry.is_owned_by(owner) {
            // The request was repeated: this attempt has the lock already.
            return Reply::Granted { fence: entry.fence };
        }
        if let Some(held) = &entry.held {
            let (remaining, foreign) = (held.till.map(|t| h.until(t)), held.owner.is_none());
            return entry.refuse(h, if_held, (remaining, foreign));
        }
        entry.held = Some(Held { owner: Some(owner), till: Some(h.after(ttl)), meta: None });
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
        if !h.quarantine.is_zero() {
            return h.quarantined();
        }
        match self.0.live(keys.lock(), h.now) {
            // A fence above the token is refused: another owner may have been granted the lock
            // since.
            Some(e)
                if e.is_owned_by(owner) && e.fence <= token.get() && !h.is_ahead(token.get()) =>
            {
                e.set_fence(h, token.get());
                Reply::Done
            }
            _ => Reply::NotOwner,
        }
    }

    /// Extends a lock. Returns the answer, and the handles to wake because the metadata changed.
    pub(super) fn extend(
        &mut self,
        h: &Header,
        keys: &LockKeys,
        owner: OwnerToken,
        (ttl, token): (Duration, FencingToken),
        (meta, reassert): (Option<&Arc<[u8]>>, Option<QuarantineId>),
    ) -> (Reply, Wake) {
        let held = self.0.live(keys.lock(), h.now).and_then(|e| e.held.as_ref());
        if held.is_some_and(|held| held.owner != Some(owner)) {
            return (Reply::NotOwner, Wake::default());
        }
        if !h.may_extend(reassert) {
            return (h.quarantined(), Wake::default());
        }
        let entry = self.0.open(keys.lock(), h.now);
        entry.reserved = None;
        let held = entry.held.get_or_insert(Held { owner: Some(owner), till: None, meta: None });
        held.till = Some(h.after(ttl));
        let changed = meta.is_some() && held.meta.as_ref() != meta;
        if changed {
            held.meta = meta.cloned();
        }
        entry.set_fence(h, entry.fence.max(token.get()));
        let watchers = changed && std::mem::take(&mut entry.watched_till) > h.now;
        (Reply::Done, Wake { watchers, waiter: None })
    }

    /// Releases a lock. Returns the answer, and the handles to wake because the lock is free.
    pub(super) fn release(
        &mut self,
        h: &Header,
        keys: &LockKeys,
        owner: OwnerToken,
    ) -> (Reply, Wake) {
        let Some(entry) = self.0.live(keys.lock(), h.now) else {
            return (Reply::Absent, Wake::default());
        };
        if entry.held.is_none() {
            return match entry.reserved {
                Some((waiter, _)) if owner == OwnerToken::reserved_for(waiter) => {
                    (Reply::Done, entry.wake(h))
                }
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
            self.0.open(keys.lock(), h.now).watched_till = h.fence_till();
        }
        let holder = self.0.live(keys.lock(), h.now).and_then(|e| {
            let (owner, till, meta) = match (&e.held, e.kept) {
                (Some(held), _) => (held.owner, held.till, held.meta.clone()),
                (None, Some((history, till))) if history == h.id().history && till > h.now => {
                    (Some(OwnerToken::KEPT), Some(till), None)
                }
                (None, _) => return None,
            };
            let remaining = till.map(|t| h.until(t));
            Some(Holder { owner, fence: e.fence, remaining, meta })
        });
        Reply::Holder(holder)
    }
}
