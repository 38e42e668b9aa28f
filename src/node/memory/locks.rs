//! Locks: acquire, raise, extend, release, inspect.

use std::sync::Arc;
use std::time::Duration;

use super::quarantine::Header;
use super::shelf::{Perish, Shelf};
use crate::name::LockKeys;
use crate::op::{Holder, QuarantineId, Reply};
use crate::token::{FencingToken, OwnerToken};

/// Everything stored under one lock's keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    held: Option<Held>,
    fence: u64,
    fence_till: u64,
    /// Until when somebody wants a hint.
    waiter_till: u64,
    /// Until when only its holder is admitted, and in which history: its lease may have ended early
    /// by the clock of a server that took over.
    kept: Option<(u64, u64)>,
}

#[derive(Clone, Debug)]
struct Held {
    /// `None`: a foreign client's value.
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
        self.held.is_some() || self.fence_till > now || self.waiter_till > now
    }
}

impl Entry {
    fn is_owned_by(&self, owner: OwnerToken) -> bool {
        self.held.as_ref().is_some_and(|h| h.owner == Some(owner))
    }

    fn set_fence(&mut self, h: &Header, fence: u64) {
        self.fence = fence;
        // A fence that died with its lock would be handed out again.
        self.fence_till = h.fence_till();
        #[cfg(feature = "sim-bugs")]
        if crate::bugs::on(crate::bugs::Bug::FenceDiesWithLock) {
            self.fence_till = self.held.as_ref().and_then(|held| held.till).unwrap_or(h.now);
        }
    }

    /// Soon after a handover: how long the lock, free here, is still kept for its possible holder.
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

    fn has_waiter(&self, h: &Header) -> bool {
        self.waiter_till > h.now
    }
}

/// The locks of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Locks(Shelf<Entry>);

impl Locks {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// A foreign client's value under a lock's key.
    #[cfg(feature = "test-util")]
    pub(super) fn put_foreign(&mut self, key: &str, now: u64, till: Option<u64>) {
        self.0.open(key, now).held = Some(Held { owner: None, till, meta: None });
    }

    pub(super) fn acquire(
        &mut self,
        h: &Header,
        keys: &LockKeys,
        owner: OwnerToken,
        ttl: Duration,
        (proposal, wait): (u64, bool),
    ) -> Reply {
        if !h.quarantine.is_zero() {
            return h.quarantined();
        }
        let entry = self.0.open(keys.lock(), h.now);
        if let Some(rest) = entry.kept(h) {
            if wait {
                entry.waiter_till = h.fence_till();
            }
            return Reply::Held { remaining: Some(rest), foreign: false };
        }
        if entry.is_owned_by(owner) {
            // A repeated request recognises itself.
            return Reply::Granted { fence: entry.fence };
        }
        if let Some(held) = &entry.held {
            let remaining = held.till.map(|t| h.until(t));
            let foreign = held.owner.is_none();
            if wait {
                entry.waiter_till = h.fence_till();
            }
            return Reply::Held { remaining, foreign };
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
        #[cfg(feature = "sim-bugs")]
        let quarantine_raises = crate::bugs::on(crate::bugs::Bug::RaiseInQuarantine);
        #[cfg(not(feature = "sim-bugs"))]
        let quarantine_raises = false;
        if !h.quarantine.is_zero() && !quarantine_raises {
            return h.quarantined();
        }
        match self.0.live(keys.lock(), h.now) {
            // `fence ≤ T`: another grant may have come in between.
            Some(e)
                if e.is_owned_by(owner)
                    && e.fence.max(h.floor) <= token.get()
                    && !h.is_ahead(token.get()) =>
            {
                e.set_fence(h, token.get());
                Reply::Done
            }
            _ => Reply::NotOwner,
        }
    }

    /// The answer, and whether a waiter has something new to read.
    pub(super) fn extend(
        &mut self,
        h: &Header,
        keys: &LockKeys,
        owner: OwnerToken,
        (ttl, token): (Duration, FencingToken),
        (meta, reassert): (Option<&Arc<[u8]>>, Option<QuarantineId>),
    ) -> (Reply, bool) {
        #[cfg(feature = "sim-bugs")]
        if crate::bugs::on(crate::bugs::Bug::OvertakenRenewed) {
            return (Reply::Done, false);
        }
        let held = self.0.live(keys.lock(), h.now).and_then(|e| e.held.as_ref());
        if held.is_some_and(|held| held.owner != Some(owner)) {
            return (Reply::NotOwner, false);
        }
        #[cfg(feature = "sim-bugs")]
        let by_copy = held.is_some_and(|held| h.counts_by_copy(held.till));
        #[cfg(not(feature = "sim-bugs"))]
        let by_copy = false;
        if !h.may_extend(reassert) && !by_copy {
            return (h.quarantined(), false);
        }
        let entry = self.0.open(keys.lock(), h.now);
        let held = entry.held.get_or_insert(Held { owner: Some(owner), till: None, meta: None });
        held.till = Some(h.after(ttl));
        let changed = meta.is_some() && held.meta.as_ref() != meta;
        if changed {
            held.meta = meta.cloned();
        }
        entry.set_fence(h, entry.fence.max(token.get()));
        (Reply::Done, changed && entry.has_waiter(h))
    }

    /// The answer, and whether somebody waits.
    pub(super) fn release(
        &mut self,
        h: &Header,
        keys: &LockKeys,
        owner: OwnerToken,
    ) -> (Reply, bool) {
        let Some(entry) = self.0.live(keys.lock(), h.now) else { return (Reply::Absent, false) };
        if entry.held.is_none() {
            return (Reply::Absent, false);
        }
        if !entry.is_owned_by(owner) {
            return (Reply::NotOwner, false);
        }
        entry.held = None;
        let wake = entry.has_waiter(h);
        entry.waiter_till = 0;
        (Reply::Done, wake)
    }

    pub(super) fn inspect(&mut self, h: &Header, keys: &LockKeys, wait: bool) -> Reply {
        if wait {
            self.0.open(keys.lock(), h.now).waiter_till = h.fence_till();
        }
        let holder = self.0.live(keys.lock(), h.now).and_then(|e| {
            let held = e.held.as_ref()?;
            Some(Holder {
                owner: held.owner,
                fence: e.fence,
                remaining: held.till.map(|t| h.until(t)),
                meta: held.meta.clone(),
            })
        });
        Reply::Holder(holder)
    }
}
