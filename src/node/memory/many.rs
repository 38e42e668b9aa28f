//! The ops on several locks of a node in memory: all names under one owner and one fencing token,
//! or none.

use std::time::Duration;

use super::locks::{Entry, Held, Locks, Wake};
use super::quarantine::Header;
use crate::name::LockKeys;
use crate::op::{IfHeld, LockMode, QuarantineId, Reply};
use crate::token::{FencingToken, OwnerToken};

/// Names whose locks are free now, each with the handles to wake.
pub(super) type Woken = Vec<(LockKeys, Wake)>;

impl Entry {
    /// Returns `None` if nothing refuses an exclusive acquire of this name. Otherwise returns the
    /// time until the name may be free (`None` for a value without an end), and true if another
    /// program has the name. A call that takes over the names that it has collected is refused
    /// neither by its own grant nor by a reservation (multi_lock 6).
    fn is_busy(
        &mut self,
        h: &Header,
        owner: OwnerToken,
        (ttl, if_held): (Duration, Option<IfHeld>),
    ) -> Option<(Option<Duration>, bool)> {
        if !takes(if_held)
            && let Some(rest) = self.reserved(h, LockMode::Exclusive, None)
        {
            return Some((Some(rest), false));
        }
        if self.is_given(h, owner, (ttl, if_held)) {
            return None;
        }
        if let Some(held) = self.held.as_ref().filter(|held| held.owner != Some(owner)) {
            return Some((held.till.map(|till| h.until(till)), held.owner.is_none()));
        }
        if let Some(last) = self.readers.iter().map(|(_, till)| *till).max() {
            return Some((Some(h.until(last)), false));
        }
        self.kept(h).map(|rest| (Some(rest), false))
    }
}

fn takes(if_held: Option<IfHeld>) -> bool {
    matches!(if_held, Some(IfHeld::TakeFrom(_)))
}

/// Returns the refusal of an acquire of several names. It states the latest end of the busy names.
fn refuse_all(busy: &[Option<(Option<Duration>, bool)>]) -> Reply {
    let ends = || busy.iter().flatten().map(|(rest, _)| *rest);
    let remaining = if ends().any(|rest| rest.is_none()) { None } else { ends().max().flatten() };
    let foreign = busy.iter().flatten().any(|(_, foreign)| *foreign);
    Reply::Held { remaining, foreign }
}

impl Locks {
    /// Acquires several names: grants all of them, or none (`multi_lock` 1, 2, 6).
    pub(super) fn acquire_all(
        &mut self,
        h: &Header,
        (keys, owner): (&LockKeys, OwnerToken),
        ttl: Duration,
        (proposal, if_held): (u64, Option<IfHeld>),
    ) -> Reply {
        if h.is_quarantined() {
            return h.quarantined();
        }
        let asked = (ttl, if_held);
        let busy: Vec<_> = keys
            .all()
            .map(|name| self.0.open(name.lock(), h.now).is_busy(h, owner, asked))
            .collect();
        if busy.iter().any(Option::is_some) {
            return refuse_all(&busy);
        }
        let entries = || keys.all().map(LockKeys::lock);
        let fences: Vec<_> = entries().map(|lock| self.0.open(lock, h.now).fence).collect();
        let most = fences.iter().copied().max().unwrap_or(0);
        let mut is_owned = |lock| self.0.open(lock, h.now).is_owned_by(owner);
        // A repeated takeover is granted again, with a new fence, as a takeover of one name is.
        let is_repeated = !takes(if_held) && entries().all(&mut is_owned);
        let fence = if is_repeated { most } else { h.next_fence(most, proposal) };
        for lock in entries() {
            let entry = self.0.open(lock, h.now);
            entry.reserved = None;
            if !is_repeated {
                entry.held = Some(Held::by(owner, h.after(ttl)));
            }
            if entry.fence < fence {
                entry.set_fence(h, fence);
            }
        }
        Reply::Granted { fence }
    }

    /// Extends all names, or none.
    pub(super) fn extend_all(
        &mut self,
        h: &Header,
        (keys, owner): (&LockKeys, OwnerToken),
        (ttl, token): (Duration, FencingToken),
        reassert: Option<QuarantineId>,
    ) -> Reply {
        let lost = keys.all().any(|name| {
            let entry = self.0.live(name.lock(), h.now);
            entry.is_some_and(|e| !e.is_free() && !e.is_owned_by(owner))
        });
        if lost {
            return Reply::NotOwner;
        }
        if !h.may_extend(reassert) {
            return h.quarantined();
        }
        for name in keys.all() {
            let entry = self.0.open(name.lock(), h.now);
            entry.reserved = None;
            entry.held = Some(Held::by(owner, h.after(ttl)));
            entry.set_fence(h, entry.fence.max(token.get()));
        }
        Reply::Done
    }

    /// Releases the names that the owner has.
    pub(super) fn release_all(
        &mut self,
        h: &Header,
        keys: &LockKeys,
        owner: OwnerToken,
    ) -> (Reply, Woken) {
        let (mut result, mut woken) = (Reply::Done, Woken::new());
        for name in keys.all() {
            let (reply, wake) = self.release(h, name, owner, (LockMode::Exclusive, false));
            woken.push((name.clone(), wake));
            match reply {
                Reply::NotOwner => result = Reply::NotOwner,
                Reply::Absent if result == Reply::Done => result = Reply::Absent,
                _ => {}
            }
        }
        (result, woken)
    }
}
