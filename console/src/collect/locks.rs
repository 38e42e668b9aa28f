//! Reads the holders of locks and semaphores, and the leaders of elections, in one batch for each
//! node.

use std::time::Duration;

use futures_util::future::{join, join_all};
use palisade::{Inspection, SemaphoreInspection};

use super::elections;
use crate::history::{Entry, Level, now_ms};
use crate::model::{LockId, LockRow, View, steady};
use crate::start::Shared;

/// Maximum number of requests to a node in one reading. They fit into one batch.
const MOST: usize = 96;
/// Number of requests to a node about one election, and maximum number of elections about which one
/// reading asks the nodes.
const EACH: usize = 3;
const ELECTIONS: usize = MOST / (2 * EACH);
/// Largest number of slots that a semaphore may have.
const SLOTS: u16 = 256;
/// Time in ms. If an owner is gone and its lease had less time left than this, the lease may have
/// run out; otherwise it was released.
const SOON: u64 = 700;

pub(super) async fn read(shared: &Shared) {
    let (locks, elections) = {
        let model = shared.model();
        let mut elections: Vec<_> = model.elections.iter().map(|(id, row)| (row.at, id)).collect();
        elections.sort_unstable();
        let elections: Vec<String> =
            elections.into_iter().take(ELECTIONS).map(|(_, id)| id.clone()).collect();
        let mut locks: Vec<_> = model.locks.iter().map(|(id, row)| (row.at, id)).collect();
        locks.sort_unstable();
        let rest = MOST - EACH * elections.len();
        let locks: Vec<LockId> = locks.into_iter().take(rest).map(|(_, id)| id.clone()).collect();
        (locks, elections)
    };
    let views = join_all(locks.iter().map(|id| view(shared, id)));
    let (views, leads) = join(views, elections::read(shared, elections)).await;
    for (id, view) in locks.into_iter().zip(views) {
        if let Some(view) = view {
            note(shared, &id, view);
        }
    }
    elections::note(shared, leads);
}

/// Asks all nodes for the holders of a lock; `None` if its name is invalid or the console's handle
/// is closed.
pub(crate) async fn view(shared: &Shared, id: &LockId) -> Option<View> {
    if id.is_semaphore {
        let semaphore = shared.redlock.semaphore(&id.name, SLOTS).build().ok()?;
        return semaphore.inspect().await.ok().map(View::Semaphore);
    }
    let mutex = shared.redlock.mutex(&id.name).build().ok()?;
    mutex.inspect().await.ok().map(View::Lock)
}

#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) owner: String,
    pub(crate) fence: u64,
    pub(crate) remaining: Duration,
    pub(crate) note: Option<String>,
    pub(crate) slot: Option<u16>,
    pub(crate) is_reader: bool,
}

impl View {
    pub(crate) fn holders(&self) -> Vec<Holder> {
        match self {
            Self::Lock(seen) => {
                let holder = |holder: palisade::LockHolder, is_reader| Holder {
                    owner: holder.owner,
                    fence: holder.fence.get(),
                    remaining: holder.remaining,
                    note: holder.note,
                    slot: None,
                    is_reader,
                };
                let one = seen.holder().into_iter().map(|one| holder(one, false));
                one.chain(seen.readers().into_iter().map(|one| holder(one, true))).collect()
            }
            Self::Semaphore(seen) => {
                let holder = |holder: palisade::PermitHolder| Holder {
                    owner: holder.owner,
                    fence: holder.fence.get(),
                    remaining: holder.remaining,
                    note: None,
                    slot: Some(holder.slot),
                    is_reader: false,
                };
                seen.held().into_iter().map(holder).collect()
            }
        }
    }

    fn is_known(&self) -> bool {
        let (unknown, all) = match self {
            Self::Lock(Inspection { nodes, .. }) => {
                let unknown = |(_, view): &&(_, _)| matches!(view, palisade::NodeView::Unknown(_));
                (nodes.iter().filter(unknown).count(), nodes.len())
            }
            Self::Semaphore(SemaphoreInspection { nodes, .. }) => {
                let unknown =
                    |(_, view): &&(_, _)| matches!(view, palisade::NodePermits::Unknown(_));
                (nodes.iter().filter(unknown).count(), nodes.len())
            }
        };
        2 * unknown < all
    }
}

/// Stores the holders of a lock in the model, and adds an entry to the history for each change
/// since the last reading.
fn note(shared: &Shared, id: &LockId, view: View) {
    let now = now_ms();
    let holders = view.holders();
    let mut happened = Vec::new();
    {
        let mut model = shared.model();
        let mut lost = Vec::new();
        let row = model.locks.entry(id.clone()).or_default();
        let before = std::mem::take(&mut row.ends);
        let is_known = view.is_known();
        for holder in &holders {
            let end = now + holder.remaining.as_millis() as u64;
            let earlier = before.get(&holder.owner).copied();
            row.ends.insert(holder.owner.clone(), steady(earlier, end));
            if earlier.is_none() && row.view.is_some() {
                let text = format!("{:?} is held by {}", id.name, holder.owner);
                happened.push(Entry::of(Level::Info, "lock_held", &id.name, text));
            }
        }
        if is_known {
            for (owner, end) in before {
                if row.ends.contains_key(&owner) {
                    continue;
                }
                if end <= now + SOON {
                    let text = format!("the lease of {owner} on {:?} ran out", id.name);
                    happened.push(Entry::of(Level::Warn, "lock_lost", &id.name, text));
                    lost.push(owner);
                } else {
                    let text = format!("{:?} was released by {owner}", id.name);
                    happened.push(Entry::of(Level::Info, "lock_free", &id.name, text));
                }
            }
        } else {
            // Too few nodes answered, so an owner that no node reported may still hold the lock.
            // The end of its lease is kept.
            for (owner, end) in before {
                row.ends.entry(owner).or_insert(end);
            }
        }
        let is_over = is_known && is_empty(row, &view);
        (row.view, row.at) = (Some(view), now);
        if is_over {
            model.locks.remove(id);
        }
        for owner in lost {
            super::events::lease_lost(&mut model, &id.name, &owner);
        }
    }
    shared.all_happened(happened);
}

fn is_empty(row: &LockRow, view: &View) -> bool {
    let waits = row.waiters.as_ref().is_none_or(|waiters| !waiters.is_empty());
    let is_free = match view {
        View::Lock(seen) => seen.nodes.iter().all(|(_, view)| {
            matches!(view, palisade::NodeView::Free | palisade::NodeView::Unknown(_))
        }),
        View::Semaphore(seen) => seen.held().is_empty(),
    };
    is_free && !waits
}
