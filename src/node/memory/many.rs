//! Ops for several locks, on a node in memory: all names get one owner and one fencing token, or
//! none is granted.

use std::time::Duration;

use super::locks::{Busy, Held, Locks, Wake};
use crate::name::LockKeys;
use crate::op::{IfHeld, LockMode, Reply};
use crate::rules::header::Header;
use crate::token::OwnerToken;

pub(super) type Woken = Vec<(LockKeys, Wake)>;

fn takes(if_held: Option<IfHeld>) -> bool {
    matches!(if_held, Some(IfHeld::TakeFrom(_)))
}

/// With the latest end of the busy names.
fn refuse_all(busy: &[Busy]) -> Reply {
    let ends = || busy.iter().map(|(rest, _)| *rest);
    let remaining = if ends().any(|rest| rest.is_none()) { None } else { ends().max().flatten() };
    let foreign = busy.iter().any(|(_, foreign)| *foreign);
    Reply::Held { remaining, foreign }
}

impl Locks {
    /// All, or none (multi_lock 1, 2, 6).
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
        let busy = keys.all().filter_map(|name| {
            let entry = self.0.open(name.lock(), h.now);
            // A call that takes over what it has collected (`takes`) is not refused because a name
            // is reserved (multi_lock 6).
            let rest = entry.reserved(h, LockMode::Exclusive, None).filter(|_| !takes(if_held));
            let reserved = rest.map(|rest| (Some(rest), false));
            let busy = reserved.or_else(|| entry.busy(h, owner, (ttl, if_held)));
            if takes(if_held) && entry.kept_lately(h).is_some() {
                // A name that is kept for its old holder is reserved no longer.
                entry.reserved = None;
            }
            busy
        });
        let busy: Vec<Busy> = busy.collect();
        if !busy.is_empty() {
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
