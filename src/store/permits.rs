//! Permits as conditional writes of the slots of a semaphore.

use super::lock::{Main, SLOT, Shown};
use super::lock_steps::{clock, fence_life, millis};
use super::locks::{as_planned, waits};
use super::write::{Choose, Class, Extent, FENCE_MAX, Join, Key, Look, SlotWrite, Step, Write};
use crate::name::LockKeys;
use crate::op::{IfHeld, Op, Reply, Slots};
use crate::rules::header::Header;
use crate::rules::locks::{Row, Ruling, Slot, decide};
use crate::token::OwnerToken;

const KEYS: [Key; 2] = [Key::Main, Key::Queue];

pub(super) fn is_permit(op: &Op) -> bool {
    match op {
        Op::Acquire { mode, keys, .. } | Op::Extend { mode, keys, .. } => {
            mode.slots().is_some() && !keys.is_many()
        }
        Op::Release { mode, keys, .. } => mode.slots().is_some() && !keys.is_many(),
        Op::Raise { slot, .. } => slot.is_some(),
        _ => false,
    }
}

/// Of an op on permits.
pub(super) fn keys(op: &Op) -> Option<&LockKeys> {
    op.lock_keys().filter(|_| is_permit(op))
}

/// Returns the reply if the steps run, and the write.
pub(super) fn plan(h: &Header, op: &Op, shown: Option<&Shown>) -> (Reply, Write) {
    let (reply, steps) = match shown {
        None => (Reply::Done, blind(h, op).unwrap_or_default()),
        Some(shown) => known(h, op, shown),
    };
    let class = match op {
        Op::Acquire { .. } => Class::Grant,
        Op::Release { .. } => Class::Undo,
        _ => Class::Keep,
    };
    let joins = match op {
        Op::Acquire { mode, if_held: Some(then), .. } if !h.is_quarantined() => {
            let always = shown.is_some() && !reply.is_grant();
            let place = waits(*mode, *then).filter(|_| mode.slots().is_some_and(Slots::are_there));
            place.map(|place| Join { place, always })
        }
        _ => None,
    };
    let is_release = matches!(op, Op::Release { .. });
    let hands_on = |step: &Step| matches!(step, Step::Slots { hands_on: true, .. });
    let has_queue = is_release || joins.is_some() || steps.iter().any(hands_on);
    let look = Look::Lock(Extent { slots: true, queue: is_release, ..Extent::default() });
    let keys = if has_queue { &KEYS[..] } else { &KEYS[..1] };
    (reply, Write { class, keys, names: 1, steps, look, joins })
}

/// The owner has its slot, and no fence is above its token. `None` if it has to be read first.
fn blind(h: &Header, op: &Op) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let (slot, owner) = match op {
        Op::Acquire { mode, owner, ttl, proposal, if_held, .. } => {
            let (slots, ttl) = (mode.slots().filter(|slots| slots.are_there())?, millis(*ttl));
            let place = if_held.as_ref().and_then(IfHeld::place);
            let reserved = place.map(|place| OwnerToken::reserved_for(place.waiter));
            let (owner, proposal, is_new) = (*owner, *proposal, false);
            let choose = Choose { slots, owner, proposal, ttl, reserved, is_new };
            let life = Some(fence_life(h));
            let slots = Step::Slots { life, hands_on: false };
            return Some(vec![Step::Window, Step::Choose(choose), slots]);
        }
        Op::Release { owner, .. } | Op::Raise { owner, .. } | Op::Extend { owner, .. } => {
            (named(op), owner)
        }
        _ => return None,
    };
    let begins = owner.as_str().as_bytes().to_vec();
    let mut write = SlotWrite { slot, begins, owner: Some(*owner), ms: None, fence: None };
    match op {
        Op::Release { .. } => write.owner = None,
        Op::Extend { ttl, token, reassert, .. } if slot.is_some() && h.may_extend(*reassert) => {
            (write.ms, write.fence) = (Some(millis(*ttl)), Some(token.get()));
        }
        Op::Raise { token, .. } if !h.is_quarantined() && !h.is_ahead(token.get()) => {
            write.fence = Some(token.get());
        }
        _ => return None,
    }
    let is_release = write.owner.is_none();
    steps.extend(clock(h, op).filter(|_| !is_release));
    let life = (!is_release).then(|| fence_life(h));
    steps.extend([Step::Slot(write), Step::Slots { life, hands_on: is_release }]);
    Some(steps)
}

/// What the rule makes of the slots as they were shown.
fn known(h: &Header, op: &Op, shown: &Shown) -> (Reply, Vec<Step>) {
    let op = as_planned(h, op);
    let op = &*op;
    let old = shown.row(h);
    let Ruling { reply, rows, wakes } = decide(h, op, vec![old.clone()]);
    let freed = wakes.into_iter().next().map(|wake| wake.slots).unwrap_or_default();
    let new = &rows[0].slots;
    let changes: Vec<usize> = changed(&old, &rows[0], &freed).collect();
    let Some(last) = changes.last().copied() else { return (reply, Vec::new()) };
    let (lease, mut steps) = match op {
        Op::Acquire { ttl, proposal, .. } if reply.is_grant() => {
            let until = h.last_in_range(*proposal);
            (Some(millis(*ttl)), vec![Step::Clock(h.facts.node_micros, until)])
        }
        Op::Extend { ttl, .. } => (Some(millis(*ttl)), Vec::from_iter(clock(h, op))),
        Op::Raise { .. } => (None, Vec::from_iter(clock(h, op))),
        _ => (None, Vec::new()),
    };
    let text = match &shown.main {
        Main::Text(text) => &text[..],
        _ => &[],
    };
    let grows = last >= old.slots.len();
    let is_new = grows && !h.settling && matches!(op, Op::Extend { .. });
    let number = |i: usize| u16::try_from(i).unwrap_or(Slots::MAX);
    let part = |i: usize| (Some(number(i)), text[SLOT * i..SLOT * (i + 1)].to_vec());
    match named(op).map(usize::from) {
        // What a server has lost its holders extend at once. Which slots it has by then is the same
        // to each of them.
        Some(_) if is_new => {}
        // Which one is the first that is free, and whether the caller has one, says the whole.
        _ if text.is_empty() => steps.push(Step::Absent),
        at if at.is_none() || grows => steps.push(Step::Is(text.to_vec())),
        Some(i) if !changes.contains(&i) => {
            let (slot, begins) = part(i);
            let owner = old.slots[i].owner;
            steps.push(Step::Slot(SlotWrite { slot, begins, owner, ms: None, fence: None }));
        }
        _ => {}
    }
    // Those that become free come first, because an owner has one slot at most.
    let is_own = |i: &usize| is_of(op, &new[*i]) && !freed.contains(i);
    let (given, free): (Vec<_>, Vec<_>) = changes.into_iter().partition(is_own);
    for i in free.into_iter().chain(given) {
        let holder = new[i].owner.filter(|_| is_own(&i));
        if let (true, Some(owner)) = (i >= old.slots.len(), holder) {
            let slots = Slots::any(number(new.len())).exactly(number(i));
            let (proposal, ttl) = (new[i].fence.min(FENCE_MAX), lease.unwrap_or_default());
            let reserved = None;
            steps.push(Step::Choose(Choose { slots, owner, proposal, ttl, reserved, is_new }));
            continue;
        }
        let (slot, begins) = part(i);
        let (ms, fence) = (lease.filter(|_| holder.is_some()), holder.map(|_| new[i].fence));
        steps.push(Step::Slot(SlotWrite { slot, begins, owner: holder, ms, fence }));
    }
    let life = (!matches!(op, Op::Release { .. })).then(|| fence_life(h));
    steps.push(Step::Slots { life, hands_on: !freed.is_empty() });
    (reply, steps)
}

/// The slot that the op is about, if that is given.
fn named(op: &Op) -> Option<u16> {
    match op {
        Op::Acquire { mode, .. } | Op::Extend { mode, .. } => mode.slots().and_then(Slots::slot),
        Op::Raise { slot, .. } => *slot,
        _ => None,
    }
}

fn is_of(op: &Op, slot: &Slot) -> bool {
    op.owner().is_some_and(|owner| slot.owner == Some(*owner))
}

/// Whether the rule has changed anything but the number of free slots at the end, and the place of
/// a caller that has one.
pub(super) fn is_open(old: &Row, new: &Row, joined: bool) -> bool {
    let rest = |row: &Row| {
        let mut row = row.clone();
        (row.slots, row.fence_till) = (Vec::new(), 0);
        row
    };
    changed(old, new, &[]).next().is_some() || !joined && rest(old) != rest(new)
}

/// Fence and number of a slot.
pub(super) fn given(told: &str) -> Option<Reply> {
    let (fence, slot) = told.split_once(' ')?;
    let slot = slot.parse().ok().filter(|slot| *slot < Slots::MAX)?;
    Some(Reply::Permit { fence: fence.parse().ok()?, slot })
}

/// Numbers of the slots that differ, and of those that are to be passed on.
fn changed<'a>(old: &'a Row, new: &'a Row, freed: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    let was = |i: usize| old.slots.get(i).copied().unwrap_or_default();
    let slots = new.slots.iter().enumerate();
    slots.filter(move |(i, slot)| **slot != was(*i) || freed.contains(i)).map(|(i, _)| i)
}
