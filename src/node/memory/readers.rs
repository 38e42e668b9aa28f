//! The ops of readers on locks of a node in memory. Readers have shared grants, of which a lock can
//! have several at a time.

use std::time::Duration;

use super::locks::{Entry, Locks, Waiter, Wake, since};
use crate::name::LockKeys;
use crate::op::{IfHeld, LockMode, MAX_LISTED, QuarantineId, Readers, Reply, SharedGrant};
use crate::rules::header::Header;
use crate::token::{FencingToken, OwnerToken};

const READERS_MAX: usize = 4_096;

impl Entry {
    pub(super) fn is_read_by(&self, owner: OwnerToken, now: u64) -> bool {
        self.readers.iter().any(|(reader, till)| *reader == owner && *till > now)
    }

    pub(super) fn read_until(&mut self, owner: OwnerToken, till: u64) {
        match self.readers.iter_mut().find(|(reader, _)| *reader == owner) {
            Some(reader) => reader.1 = till,
            None => self.readers.push((owner, till)),
        }
    }

    pub(super) fn writers_ahead(&self, h: &Header, if_held: Option<IfHeld>) -> Option<Duration> {
        let since = if_held
            .as_ref()
            .and_then(IfHeld::place)
            .map_or(h.facts.node_micros, |place| since(h, place));
        let ahead = self.queue.iter().filter(|w| w.since < since && w.is_fresh_writer(h.now));
        ahead.map(|writer| h.until(writer.fresh_till(h))).max()
    }

    pub(super) fn readers(&self, h: &Header) -> Readers {
        let live = self.readers.iter().filter(|(_, till)| *till > h.now);
        let mut listed: Vec<_> = live
            .map(|(owner, till)| SharedGrant { owner: *owner, remaining: h.until(*till) })
            .collect();
        let count = u32::try_from(listed.len()).unwrap_or(u32::MAX);
        listed.sort_by_key(|reader| std::cmp::Reverse(reader.remaining));
        listed.truncate(MAX_LISTED);
        Readers { fence: self.fence, count, listed }
    }

    /// Also removes those that have ended (readers 7).
    pub(super) fn release_shared(&mut self, h: &Header, owner: OwnerToken) -> (Reply, Wake) {
        let before = self.readers.len();
        self.readers.retain(|(reader, _)| *reader != owner);
        let reply = if self.readers.len() < before { Reply::Done } else { Reply::Absent };
        self.readers.retain(|(_, till)| *till > h.now);
        (reply, if self.readers.is_empty() { self.wake(h) } else { Wake::default() })
    }

    pub(super) fn first_readers(&mut self, h: &Header) -> Vec<Waiter> {
        let writer = self.queue.iter().position(|waiter| waiter.is_fresh_writer(h.now));
        let end = writer.unwrap_or(self.queue.len());
        self.queue.extract_if(..end, |waiter| waiter.mode.is_shared()).collect()
    }
}

impl Locks {
    /// Grants or refuses (readers 1, 2, 4).
    pub(super) fn acquire_shared(
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
        let (entry, asked) = (self.0.open(keys.lock(), h.now), (LockMode::Shared, if_held));
        if entry.is_read_by(owner, h.now) {
            return Reply::Granted { fence: entry.fence };
        }
        if let Some(rest) = entry.reserved(h, LockMode::Shared, if_held) {
            return entry.refuse(h, asked, (Some(rest), false));
        }
        if let Some(busy) = entry.closed(h) {
            return entry.refuse(h, asked, busy);
        }
        if let Some(rest) = entry.writers_ahead(h, if_held) {
            return entry.refuse(h, asked, (Some(rest), false));
        }
        entry.readers.retain(|(_, till)| *till > h.now);
        if entry.readers.len() >= READERS_MAX {
            let first = entry.readers.iter().map(|(_, till)| h.until(*till)).min();
            return entry.refuse(h, asked, (first, false));
        }
        entry.reserved = None;
        if let Some(rest) = entry.kept(h) {
            return entry.refuse(h, asked, (Some(rest), false));
        }
        entry.read_until(owner, h.after(ttl));
        let fence = match entry.fence {
            0 => h.next_fence(0, proposal),
            fence => fence.max(h.floor),
        };
        entry.set_fence(h, fence);
        Reply::Granted { fence }
    }

    /// Also makes an exclusive grant shared (readers 6).
    pub(super) fn extend_shared(
        &mut self,
        h: &Header,
        keys: &LockKeys,
        owner: OwnerToken,
        (ttl, token): (Duration, FencingToken),
        reassert: Option<QuarantineId>,
    ) -> (Reply, Wake) {
        let entry = self.0.live(keys.lock(), h.now);
        if entry.as_ref().is_some_and(|e| !e.slots.is_empty()) {
            return (Reply::NotOwner, Wake::default());
        }
        let held = entry.and_then(|e| e.held.as_ref());
        if held.is_some_and(|held| held.owner != Some(owner)) {
            return (Reply::NotOwner, Wake::default());
        }
        if !h.may_extend(reassert) {
            return (h.quarantined(), Wake::default());
        }
        let entry = self.0.open(keys.lock(), h.now);
        entry.reserved = None;
        let was_writer = entry.held.take().is_some();
        entry.read_until(owner, h.after(ttl));
        entry.set_fence(h, entry.fence.max(token.get()));
        let woken = if was_writer { entry.first_readers(h) } else { Vec::new() };
        let waiters = woken.iter().map(|waiter| waiter.place.waiter).collect();
        (Reply::Done, Wake { watchers: false, waiters })
    }
}
