//! The rule of locks (docs/design: locks, readers, fair, multi_lock, semaphore): what an op makes
//! of a lock.
//!
//! A lock has one exclusive grant, or shared ones, or the slots of a semaphore. Who may have which
//! of them beside whom says `beside`, whose turn it is `queue`.

mod beside;
mod many;
mod permits;
mod queue;
mod readers;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::permits::Slot;
pub(crate) use self::queue::Waiter;
pub(crate) use self::readers::READERS_MAX;
use super::header::Header;
use crate::op::{Holder, IfHeld, LockMode, Op, Place, QuarantineId, Reply};
use crate::token::{FencingToken, OwnerToken};

/// All that a node has under the keys of one lock; the default is nothing. Times are in ns on the
/// expiry clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) held: Option<Held>,
    /// Each with its end, in the order in which they were first given. Those that are over may
    /// stay until the next acquire or release.
    pub(crate) readers: Vec<(OwnerToken, u64)>,
    /// They expire with the fence.
    pub(crate) slots: Vec<Slot>,
    pub(crate) fence: u64,
    pub(crate) fence_till: u64,
    watched_till: u64,
    /// The longest wait first; fair waiters by their tickets.
    queue: Vec<Waiter>,
    queue_till: u64,
    /// Value in the owner's place, and its end. A reserved lock has no holder of ours.
    pub(crate) reserved: Option<(OwnerToken, u64)>,
    /// (quarantine 11): the handover after which the lock was first kept, and until when.
    pub(crate) kept: Option<(u64, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// `None` if another program wrote the value.
    pub(crate) owner: Option<OwnerToken>,
    /// `None` if it has no expiry.
    pub(crate) till: Option<u64>,
    pub(crate) meta: Option<Arc<[u8]>>,
}

impl Held {
    fn by(owner: OwnerToken, till: u64) -> Self {
        Self { owner: Some(owner), till: Some(till), meta: None }
    }
}

/// What the rule makes of an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ruling {
    pub(crate) reply: Reply,
    /// The rows as they become, in the order of the names.
    pub(crate) rows: Vec<Row>,
    /// Whom to notify of each name, in their order; none at the end if it is shorter.
    pub(crate) wakes: Vec<Wake>,
}

/// Whom to notify because a lock has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wake {
    /// All handles that watch the lock.
    pub(crate) watchers: bool,
    /// Handles whose turn it is.
    pub(crate) waiters: Vec<u64>,
}

/// An acquire, but for its names.
#[derive(Clone, Copy, Debug)]
struct Ask {
    mode: LockMode,
    owner: OwnerToken,
    ttl: Duration,
    proposal: u64,
    if_held: Option<IfHeld>,
    /// It is for several names, which have no queue.
    many: bool,
}

impl Ask {
    fn place(&self) -> Option<&Place> {
        self.if_held.as_ref().filter(|_| !self.many).and_then(IfHeld::place)
    }

    /// Place and ticket of a fair caller. In other modes `Fair` counts as `Queue`.
    fn fair(&self) -> Option<(Place, Option<u64>)> {
        match self.if_held {
            Some(IfHeld::Fair { place, ticket }) if self.is_writer() && !self.many => {
                Some((place, ticket))
            }
            _ => None,
        }
    }

    fn is_writer(&self) -> bool {
        self.mode == LockMode::Exclusive
    }
}

/// An extension, but for its names.
#[derive(Clone, Copy, Debug)]
struct Extension<'a> {
    mode: LockMode,
    owner: OwnerToken,
    ttl: Duration,
    token: FencingToken,
    meta: Option<&'a Arc<[u8]>>,
    reassert: Option<QuarantineId>,
}

/// The rule. `rows` is what is under each name of the op as it is, in the order of the names. Only
/// exclusive ops may have several.
pub(crate) fn decide(h: &Header, op: &Op, mut rows: Vec<Row>) -> Ruling {
    let many = rows.len() > 1;
    let (reply, wakes) = match op {
        Op::Acquire { mode, owner, ttl, proposal, if_held, .. } => {
            let mode = if many { LockMode::Exclusive } else { *mode };
            let (owner, ttl, proposal, if_held) = (*owner, *ttl, *proposal, *if_held);
            let ask = Ask { mode, owner, ttl, proposal, if_held, many };
            match mode {
                _ if many => (many::acquire(h, &ask, &mut rows), Vec::new()),
                LockMode::Slot(slots) => {
                    let (reply, wake) = permits::acquire(h, &ask, slots, &mut rows[0]);
                    (reply, vec![wake])
                }
                LockMode::Exclusive | LockMode::Shared => {
                    (acquire(h, &ask, &mut rows[0]), Vec::new())
                }
            }
        }
        Op::Raise { owner, token, slot, .. } => {
            let reply = match slot {
                Some(slot) => permits::raise(h, (*owner, *slot), *token, &mut rows[0]),
                None => raise(h, *owner, *token, &mut rows),
            };
            (reply, Vec::new())
        }
        Op::Extend { mode, owner, ttl, token, meta, reassert, .. } => {
            let (mode, owner, ttl, token) = (*mode, *owner, *ttl, *token);
            let (meta, reassert) = (meta.as_ref(), *reassert);
            let extension = Extension { mode, owner, ttl, token, meta, reassert };
            match mode {
                LockMode::Slot(slots) => {
                    let (reply, wake) = permits::extend(h, &extension, slots, &mut rows[0]);
                    (reply, vec![wake])
                }
                LockMode::Exclusive | LockMode::Shared => extend(h, &extension, &mut rows),
            }
        }
        Op::Release { owner, .. } if many => many::release(h, *owner, &mut rows),
        Op::Release { mode, owner, meta, .. } => {
            let (reply, wake) = match mode {
                LockMode::Slot(slots) => permits::release(h, *owner, *slots, &mut rows[0]),
                LockMode::Exclusive | LockMode::Shared => {
                    release(h, *owner, (*mode, *meta), &mut rows[0])
                }
            };
            (reply, vec![wake])
        }
        Op::Inspect { wait, .. } => (inspect(h, *wait, &mut rows[0]), Vec::new()),
        Op::Enlist(_)
        | Op::Claim(_)
        | Op::RaiseClaim { .. }
        | Op::ExtendClaim { .. }
        | Op::Complete { .. }
        | Op::Steps { .. }
        | Op::Unclaim { .. }
        | Op::Lookup { .. } => unreachable!("no op on a lock: {op:?}"),
    };
    Ruling { reply, rows, wakes }
}

/// A writer or a reader (locks 1, readers 1, 2).
fn acquire(h: &Header, ask: &Ask, row: &mut Row) -> Reply {
    if h.is_quarantined() {
        return h.quarantined();
    }
    if let Some(busy) = row.bar(h, ask) {
        return row.refuse(h, ask, busy);
    }
    if row.has(h, ask) && !row.is_given(h, ask) {
        // The request was repeated.
        return Reply::Granted { fence: row.fence };
    }
    if let Some((place, ticket @ Some(_))) = ask.fair() {
        // (fair 4): the holder has its place.
        let (queued, _) = row.standing(h, &place, ticket);
        row.join(h, ask.mode, place, Some(queued.ticket));
    }
    row.reserved = None;
    let till = h.after(ask.ttl);
    let fence = if ask.mode.is_shared() {
        row.read_until(ask.owner, till);
        match row.fence {
            0 => h.next_fence(0, ask.proposal),
            fence => h.honest(fence).max(h.floor),
        }
    } else {
        row.held = Some(Held::by(ask.owner, till));
        h.next_fence(h.honest(row.fence), ask.proposal)
    };
    row.set_fence(h, fence);
    Reply::Granted { fence }
}

/// All names, or none (multi_lock 3).
fn raise(h: &Header, owner: OwnerToken, token: FencingToken, rows: &mut [Row]) -> Reply {
    if h.is_quarantined() {
        return h.quarantined();
    }
    let many = rows.len() > 1;
    // Where the fence is larger, another owner may have got the lock since.
    let may_raise = |row: &Row| {
        (row.is_owned_by(owner) || !many && row.is_read_by(owner, h.now))
            && row.fence <= token.get()
    };
    if !rows.iter().all(may_raise) || h.is_ahead(token.get()) {
        return Reply::NotOwner;
    }
    for row in rows {
        row.set_fence(h, token.get());
    }
    Reply::Done
}

/// All names, or none (multi_lock 4).
fn extend(h: &Header, extension: &Extension<'_>, rows: &mut [Row]) -> (Reply, Vec<Wake>) {
    if rows.iter().any(|row| row.is_anothers(extension.mode, extension.owner)) {
        return (Reply::NotOwner, Vec::new());
    }
    if !h.may_extend(extension.reassert) {
        return (h.quarantined(), Vec::new());
    }
    (Reply::Done, rows.iter_mut().map(|row| row.prolong(h, extension)).collect())
}

fn release(
    h: &Header,
    owner: OwnerToken,
    (mode, meta): (LockMode, bool),
    row: &mut Row,
) -> (Reply, Wake) {
    if meta && owner.is_ownerless() {
        row.give_up(owner);
    }
    if !row.readers.is_empty() && mode.is_shared() {
        return row.release_shared(h, owner);
    }
    if !row.readers.is_empty() || !row.slots.is_empty() {
        return (Reply::NotOwner, Wake::default());
    }
    if row.held.is_none() {
        return match row.reserved {
            Some((waiter, _)) if owner == waiter => (Reply::Done, row.wake(h)),
            Some(_) => (Reply::Absent, Wake::default()),
            None if row.kept_lately(h).is_some() => (Reply::Absent, Wake::default()),
            None => (Reply::Absent, row.wake(h)),
        };
    }
    if !row.is_owned_by(owner) {
        return (Reply::NotOwner, Wake::default());
    }
    row.held = None;
    (Reply::Done, row.wake(h))
}

fn inspect(h: &Header, wait: bool, row: &mut Row) -> Reply {
    if wait {
        row.watch(h);
    }
    if !row.readers.is_empty() {
        return Reply::Readers(row.readers(h));
    }
    if !row.slots.is_empty() {
        return Reply::Permits(row.permits(h));
    }
    let (owner, till, meta) = match (&row.held, row.kept_till(h)) {
        (Some(held), _) => (held.owner, held.till, held.meta.clone()),
        (None, Some(till)) => (Some(OwnerToken::KEPT), Some(till), None),
        (None, None) => return Reply::Holder(None),
    };
    let remaining = till.map(|till| h.until(till));
    Reply::Holder(Some(Holder { owner, fence: row.fence, remaining, meta }))
}

impl Row {
    /// Drops what is over at `now`. Returns false if nothing is left.
    pub(crate) fn expire(&mut self, now: u64) -> bool {
        self.held.take_if(|held| held.till.is_some_and(|till| till <= now));
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

    /// But for who waits.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        let without = |row: &Self| Self { queue: Vec::new(), queue_till: 0, ..row.clone() };
        without(self) == Self { watched_till: self.watched_till, ..without(other) }
    }

    #[cfg(test)]
    pub(crate) fn waiters(&self) -> Vec<(u64, LockMode, u64)> {
        self.queue.iter().map(|w| (w.since, w.mode, w.place.waiter)).collect()
    }

    /// Behind those that wait for longer, or have smaller tickets.
    pub(crate) fn wait(&mut self, waiter: Waiter) {
        self.queue.push(waiter);
    }

    /// The key has another program's value.
    pub(crate) fn is_foreign(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.owner.is_none())
    }

    /// Another program writes its value.
    #[cfg(feature = "test-util")]
    pub(crate) fn put_foreign(&mut self, till: Option<u64>) {
        self.held = Some(Held { owner: None, till, meta: None });
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn delete_foreign(&mut self) {
        self.held.take_if(|held| held.owner.is_none());
    }

    /// There is no value under the main key.
    #[cfg(feature = "test-util")]
    pub(crate) fn is_empty(&self) -> bool {
        self.is_free() && self.reserved.is_none()
    }

    fn is_free(&self) -> bool {
        self.held.is_none() && self.readers.is_empty() && self.slots.is_empty()
    }

    pub(crate) fn is_owned_by(&self, owner: OwnerToken) -> bool {
        self.held.as_ref().is_some_and(|held| held.owner == Some(owner))
    }

    fn set_fence(&mut self, h: &Header, fence: u64) {
        self.fence = fence;
        // If the fence ended with the lock, the next owner could be given the same token.
        self.keep_fence(h);
    }

    /// Never shortens the life of the fence and of the slots: other owners may have longer leases
    /// than this client's (locks 5).
    fn keep_fence(&mut self, h: &Header) {
        self.fence_till = self.fence_till.max(h.fence_till());
    }

    fn watch(&mut self, h: &Header) {
        self.watched_till = self.watched_till.max(h.fence_till());
    }

    fn was_watched(&mut self, h: &Header) -> bool {
        std::mem::take(&mut self.watched_till) > h.now
    }

    fn prolong(&mut self, h: &Header, e: &Extension<'_>) -> Wake {
        let (mut wake, till) = (Wake::default(), h.after(e.ttl));
        self.reserved = None;
        if e.mode.is_shared() {
            let was_writer = self.held.take().is_some();
            self.read_until(e.owner, till);
            if was_writer {
                wake.waiters = self.first_readers(h).iter().map(Waiter::number).collect();
            }
        } else {
            let held = self.held.get_or_insert(Held::by(e.owner, 0));
            held.till = Some(till);
            if e.meta.is_some() && held.meta.as_ref() != e.meta {
                held.meta = e.meta.cloned();
                wake.watchers = self.was_watched(h);
            }
        }
        self.set_fence(h, self.fence.max(e.token.get()));
        wake
    }
}
