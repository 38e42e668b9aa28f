//! The steps that make one lock, or several, what the rule makes of them.

use std::time::Duration;

use super::lock::{Main, Shown, Text};
use super::locks::first;
use super::record::MILLIS;
use super::write::{Key, Step};
use crate::op::{IfHeld, LockMode, Op, Reply};
use crate::rules::header::Header;
use crate::rules::locks::Row;
use crate::token::OwnerToken;

/// What is assumed, or was shown, of the names of an op, and what the rule makes of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    pub(super) h: &'a Header,
    pub(super) op: &'a Op,
    pub(super) shown: &'a [Shown],
    pub(super) old: &'a [Row],
    pub(super) new: &'a [Row],
}

impl<'a> Case<'a> {
    fn each(&self) -> impl Iterator<Item = (usize, &'a Shown, &'a Row, &'a Row)> {
        let rows = self.old.iter().zip(self.new);
        self.shown.iter().zip(rows).enumerate().map(|(i, (shown, (old, new)))| (i, shown, old, new))
    }
}

/// Of an acquire that changes what was shown: it is granted, or keeps locks after a handover
/// (quarantine 11). Nothing if it only waits.
pub(super) fn grant(case: &Case<'_>, run: &[Op], reply: &Reply) -> Vec<Step> {
    let Case { h, op, .. } = *case;
    let Op::Acquire { mode, owner, ttl, proposal, if_held, .. } = op else { return Vec::new() };
    let Reply::Granted { fence } = reply else { return keep(case) };
    let is_one = case.shown.len() == 1;
    let mut steps: Vec<_> = first(h, op).into_iter().flatten().collect();
    for (i, shown, old, _) in case.each() {
        steps.push(Step::On(Key::Main, i));
        steps.push(match &shown.main {
            // Free, it would have to be kept.
            Main::Readers(..) if mode.is_shared() && h.settling => Step::IsRead(run.len()),
            Main::Readers(..) if mode.is_shared() => Step::Shareable(run.len()),
            main => compared_main(main, *owner),
        });
        if mode.is_shared() && *fence != old.fence {
            // Who reads already is given the fence as it is.
            steps.extend(run.iter().filter_map(Op::owner).copied().map(Step::NoMember));
        }
        if old.held.is_none() {
            let may_be_kept = h.settling && !matches!(shown.main, Main::Readers(..));
            steps.extend(may_be_kept.then_some(Step::Settled(shown.kept)));
        } else if is_one || !old.is_owned_by(*owner) {
            steps.push(Step::EndsWithin(millis(*ttl)));
        }
        steps.extend([Step::On(Key::Fence, i), compared(&shown.fence)]);
    }
    // Several names that the owner has, and does not collect, only get one fence.
    let collects = matches!(if_held, Some(IfHeld::TakeFrom(_)));
    let sets = is_one || collects || !case.old.iter().all(|old| old.is_owned_by(*owner));
    let is_read = mode.is_shared() && case.old[0].fence > 0;
    let until = if is_read { u64::MAX } else { h.last_in_range(*proposal) };
    steps.push(Step::Clock(h.facts.node_micros, until));
    for (i, shown, old, new) in case.each().filter(|(_, _, old, new)| new != old) {
        if old.held.is_some() && is_one {
            steps.extend([Step::On(Key::Meta, i), Step::DropMeta]);
        }
        steps.extend([Step::On(Key::Fence, i), Step::Number(*fence, life(h, new))]);
        steps.push(Step::On(Key::Main, i));
        if mode.is_shared() {
            let owners = run.iter().filter_map(Op::owner).copied().collect();
            steps.extend(is_text(shown).then_some(Step::Drop));
            steps.push(Step::Read { owners, ms: millis(*ttl), prolongs: false });
        } else if sets {
            let own = owner.as_str().as_bytes().to_vec();
            steps.push(Step::Set(own.into(), Some(millis(*ttl))));
        }
    }
    steps
}

fn keep(case: &Case<'_>) -> Vec<Step> {
    let Case { h, op, .. } = *case;
    let changed = || case.each().filter(|(_, shown, old, new)| to_be_kept(h, shown, old, new));
    if changed().next().is_none() {
        return Vec::new();
    }
    // A reader that has to wait for writers notes nothing.
    let is_reader = matches!(op, Op::Acquire { mode: LockMode::Shared, .. });
    let is_new = is_reader && changed().any(|(_, _, old, new)| new.kept != old.kept);
    let mut steps: Vec<_> = first(h, op).filter(|_| is_new).into_iter().flatten().collect();
    // A note that is not new may be over soon.
    let noted = changed().filter(|(_, _, old, new)| new.kept == old.kept);
    let ends = noted.filter_map(|(_, shown, ..)| shown.kept).chain([h.settles_till]);
    let until = ends.min().unwrap_or(0).saturating_mul(1_000);
    steps.push(Step::Clock(h.facts.node_micros, until));
    for (i, shown, ..) in changed() {
        steps.push(Step::On(Key::Main, i));
        match &shown.main {
            // All of them are over, and the first step removes them.
            Main::Readers(..) => steps.extend([Step::Readable, Step::Absent]),
            main => steps.push(compared_main(main, OwnerToken::KEPT)),
        }
        steps.push(Step::Settled(shown.kept));
        // Without a fence it is not kept.
        steps.extend([Step::On(Key::Fence, i), Step::Present]);
    }
    for (i, _, old, new) in changed() {
        let Some((end, till)) = new.kept else { continue };
        let rest = till.saturating_sub(h.now).div_ceil(MILLIS).max(1);
        let till = till.div_ceil(MILLIS);
        let kept = OwnerToken::KEPT.as_str().as_bytes().to_vec();
        steps.push(Step::On(Key::Main, i));
        steps.extend((new.kept != old.kept).then_some(Step::Settle(till, end)));
        steps.push(Step::Set(kept.into(), Some(rest)));
    }
    steps.push(Step::Refuse);
    steps
}

/// It is noted until when, and a mark stands in the lock's place, for clients that know no note.
pub(super) fn to_be_kept(h: &Header, shown: &Shown, old: &Row, new: &Row) -> bool {
    let is_free = shown.main == Main::None && !h.is_quarantined();
    new.kept != old.kept || is_free && new.kept_lately(h).is_some()
}

pub(super) fn prolong(case: &Case<'_>) -> Vec<Step> {
    let Case { h, op, .. } = *case;
    let Op::Extend { mode, owner, ttl, token, .. } = op else { return Vec::new() };
    let (ttl, owners) = (millis(*ttl), vec![*owner]);
    let mut steps = Vec::from_iter(clock(h, op));
    for (i, shown, old, _) in case.each() {
        steps.push(Step::On(Key::Main, i));
        steps.push(match &shown.main {
            Main::Readers(..) if !old.is_read_by(*owner, h.now) => Step::Readable,
            main => compared_main(main, *owner),
        });
        steps.extend([Step::On(Key::Fence, i), compared(&shown.fence)]);
    }
    for (i, shown, old, new) in case.each() {
        let is_owned = old.is_owned_by(*owner);
        steps.extend(of_meta(case).into_iter().flatten());
        let life = life(h, new);
        steps.extend([
            Step::On(Key::Fence, i),
            match new.fence {
                fence if fence != old.fence => Step::Number(fence, life),
                // (locks 5): nobody else can have a grant.
                fence if is_owned && fence == token.get() => Step::LiveFor(life),
                _ => Step::KeepFor(life),
            },
        ]);
        steps.push(Step::On(Key::Main, i));
        if mode.is_shared() {
            steps.extend(is_text(shown).then_some(Step::Drop));
            steps.push(Step::Read { owners: owners.clone(), ms: ttl, prolongs: true });
            let wakes = [Step::On(Key::Queue, i), Step::WakeReaders];
            steps.extend(wakes.into_iter().filter(|_| is_owned));
        } else if is_owned {
            steps.push(Step::LiveFor(ttl));
        } else {
            steps.push(Step::Set(owner.as_str().as_bytes().to_vec().into(), Some(ttl)));
        }
    }
    steps
}

/// Of an extension that knows nothing of a lock that may be lost: what is lost is put back.
pub(super) fn put_back(case: &Case<'_>) -> Vec<Step> {
    let Case { h, op, .. } = *case;
    let Op::Extend { mode, owner, ttl, token, .. } = op else { return Vec::new() };
    let (own, ms) = (owner.as_str().as_bytes().to_vec(), millis(*ttl));
    let mut steps = Vec::from_iter(clock(h, op));
    for (i, ..) in case.each() {
        steps.push(Step::On(Key::Main, i));
        steps.push(if mode.is_shared() { Step::Readable } else { Step::IsOrAbsent(own.clone()) });
        steps.extend([Step::On(Key::Fence, i), Step::AtMost(token.get())]);
    }
    for (i, _, _, new) in case.each() {
        steps.extend(of_meta(case).into_iter().flatten());
        steps.extend([Step::On(Key::Fence, i), Step::Number(token.get(), life(h, new))]);
        steps.extend([
            Step::On(Key::Main, i),
            if mode.is_shared() {
                Step::Read { owners: vec![*owner], ms, prolongs: true }
            } else {
                Step::Set(own.clone().into(), Some(ms))
            },
        ]);
    }
    steps
}

/// Of an extension of one exclusive lock.
fn of_meta(case: &Case<'_>) -> Option<[Step; 2]> {
    let Op::Extend { mode: LockMode::Exclusive, ttl, meta, .. } = case.op else { return None };
    let step = match meta {
        Some(meta) => Step::Publish(meta.to_vec(), millis(*ttl)),
        None => Step::KeepMeta(millis(*ttl)),
    };
    (case.shown.len() == 1).then_some([Step::On(Key::Meta, 0), step])
}

pub(super) fn raise(case: &Case<'_>) -> Vec<Step> {
    let Case { h, op, .. } = *case;
    let Op::Raise { owner, token, .. } = op else { return Vec::new() };
    let mut steps = Vec::from_iter(clock(h, op));
    for (i, shown, ..) in case.each() {
        steps.extend([Step::On(Key::Main, i), compared_main(&shown.main, *owner)]);
        steps.extend([Step::On(Key::Fence, i), Step::AtMost(token.get())]);
    }
    for (i, _, _, new) in case.each() {
        steps.extend([Step::On(Key::Fence, i), Step::Number(token.get(), life(h, new))]);
    }
    steps
}

/// By a clock that has stepped back, by 2E at most, the quarantine may be ahead again, and the
/// token too far.
fn clock(h: &Header, op: &Op) -> Option<Step> {
    let depends = match op {
        Op::Extend { reassert, .. } => *reassert != Some(h.id()) && h.ended_lately(),
        _ => true,
    };
    depends.then_some(Step::Clock(h.facts.node_micros, u64::MAX))
}

/// Of a reservation, or the owner's own exclusive grant.
fn is_text(shown: &Shown) -> bool {
    matches!(shown.main, Main::Text(_))
}

fn compared_main(main: &Main, owner: OwnerToken) -> Step {
    match main {
        Main::Text(text) => Step::Is(text.clone()),
        Main::Readers(..) => Step::Member(owner),
        Main::None | Main::Other => Step::Absent,
    }
}

fn compared(text: &Text) -> Step {
    match text {
        Text::Is(text) => Step::Is(text.clone()),
        Text::None | Text::Other => Step::Absent,
    }
}

/// Of the fence, in ms.
fn life(h: &Header, new: &Row) -> u64 {
    new.fence_till.saturating_sub(h.now).div_ceil(MILLIS).max(1)
}

/// Of a fence that is written now, in ms.
pub(super) fn fence_life(h: &Header) -> u64 {
    h.fence_till().saturating_sub(h.now).div_ceil(MILLIS).max(1)
}

pub(super) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}
