//! Locks as conditional writes. [`plan`] turns what the rule decides about a lock that is as its
//! owner assumes, or as the server has shown it, into a write; [`judge`] gives what the server
//! shows to the same rule. What a write replies to is compared by it; a refusal, and a grant that
//! changes nothing, come from what the server shows.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::lock::{Main, Shown};
use super::lock_steps::{Case, fence_life, grant, millis, prolong, put_back, raise, to_be_kept};
use super::planned::Judged;
use super::write::{Ahead, Answer, Class, Extent, Join, Key, Look, Step, Take, Waits, Write};
use crate::error::NodeError;
use crate::name::LockKeys;
use crate::op::{IfHeld, LockMode, MAX_LISTED, Op, Place, Reply};
use crate::rules::header::Header;
use crate::rules::locks::{Held, READERS_MAX, Row, Ruling, decide};
use crate::time::raise_lead;
use crate::token::OwnerToken;

#[derive(Clone, Debug)]
pub(crate) struct Planned {
    /// Number of neighbours that this writes: of readers of one lock.
    pub(crate) count: usize,
    /// If the steps ran.
    reply: Reply,
    pub(crate) write: Write,
}

/// Whether a plan is needed even if nothing is known. Other ops on locks are executed by steps of
/// their own, and need a plan only if the server has shown what is in their way.
pub(crate) fn is_planned(op: &Op) -> bool {
    match op {
        Op::Acquire { mode: LockMode::Slot(_), .. }
        | Op::Extend { mode: LockMode::Slot(_), .. }
        | Op::Release { mode: LockMode::Slot(_) | LockMode::Shared, .. }
        | Op::Raise { slot: Some(_), .. } => false,
        Op::Acquire { mode: LockMode::Exclusive, keys, if_held: None, .. } => keys.is_many(),
        Op::Release { keys, meta, .. } => *meta && !keys.is_many(),
        op => op.lock_keys().is_some(),
    }
}

/// Others are never planned, whatever is believed.
pub(crate) fn can_be_planned(op: &Op) -> bool {
    is_planned(op) || matches!(op, Op::Acquire { mode: LockMode::Exclusive, if_held: None, .. })
}

/// Both are acquires of readers of one lock, which only differ in owner and proposal.
pub(crate) fn are_readers(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (
            Op::Acquire { mode: LockMode::Shared, keys, ttl, if_held: None, .. },
            Op::Acquire { mode: LockMode::Shared, keys: next, ttl: other, if_held: None, .. },
        ) => ttl == other && keys == next,
        _ => false,
    }
}

const ONE: [Key; 2] = [Key::Main, Key::Fence];
const QUEUED: [Key; 3] = [Key::Main, Key::Fence, Key::Queue];
const PUBLISHING: [Key; 4] = [Key::Main, Key::Fence, Key::Meta, Key::Queue];
const RELEASING: [Key; 3] = [Key::Main, Key::Queue, Key::Meta];
/// The third one is shown.
const LEAVING: [Key; 3] = [Key::Main, Key::Queue, Key::Queue];

/// `shown` is what the server showed of the lock just now, if it was not as assumed. `h` has a time
/// that the node's clock has reached. `None` if no plan is needed. Several ops are acquires of
/// readers of one lock.
pub(crate) fn plan(h: &Header, run: &[Op], shown: Option<Vec<Shown>>) -> Option<Planned> {
    let op = run.first()?;
    if !can_be_planned(op) || shown.is_none() && !is_planned(op) {
        return None;
    }
    let (is_shown, names) = (shown.is_some(), op.lock_keys()?.all().count());
    // The batch's window is that of the proposal as it is.
    let in_range = is_shown.then(|| as_planned(h, op));
    let op = in_range.as_deref().unwrap_or(op);
    let shown = shown.unwrap_or_else(|| vec![Shown::held(op); names]);
    let old: Vec<Row> = shown.iter().map(|shown| row(h, op, shown)).collect();
    let Ruling { reply, rows: new, .. } = decide(h, op, old.clone());
    let run = if is_shown { &run[..fit(run, &shown[0], &reply)] } else { run };
    let mut extent = Extent { fence: true, ..Extent::default() };
    let case = Case { h, op, shown: &shown, old: &old, new: &new };
    let is_spoiled = reply.is_grant() && shown.iter().any(|shown| shown.fence().is_none());
    let (mut joins, mut ran) = (None, reply.clone());
    let (class, keys, steps): (_, &[Key], _) = match op {
        Op::Acquire { mode, owner, proposal, if_held, .. } => {
            let is_waiting = names == 1 && if_held.is_some_and(|then| waits(*mode, then).is_some());
            let is_fair = matches!(if_held, Some(IfHeld::Fair { .. })) && names == 1;
            extent.kept = h.settling;
            extent.queue = mode.is_shared() || is_fair && *mode == LockMode::Exclusive;
            extent.reader = mode.is_shared().then_some(*owner);
            let asks = if_held.and_then(|then| waits(*mode, then)).filter(|_| is_waiting);
            let has_ticket = matches!(asks, Some(Waits::Fair(_, Some(_))));
            let always = is_shown && !reply.is_grant() || has_ticket;
            let quarantined = h.is_quarantined();
            joins = asks.filter(|_| !quarantined).map(|place| Join { place, always });
            let keys: &[Key] = match if_held {
                _ if is_waiting || extent.queue => &QUEUED,
                Some(IfHeld::TakeFrom(_) | IfHeld::TakeOnly { .. }) if names == 1 => {
                    &PUBLISHING[..3]
                }
                _ => &ONE,
            };
            let steps = match () {
                () if quarantined || is_spoiled => None,
                // What changes nothing is answered with what is there.
                () if is_shown && reply.is_grant() && new == old => None,
                () if is_shown => Some(grant(&case, run, &reply)),
                () => {
                    ran = Reply::Granted { fence: *proposal };
                    blind(&case, run)
                }
            };
            (Class::Grant, keys, steps)
        }
        Op::Extend { mode, owner, meta, .. } => {
            let keys: &[Key] = match mode {
                LockMode::Shared => &QUEUED,
                _ if names > 1 => &ONE,
                _ if meta.is_some() => &PUBLISHING,
                _ => &PUBLISHING[..3],
            };
            extent.reader = mode.is_shared().then_some(*owner);
            let is_done = reply == Reply::Done && !is_spoiled;
            let steps = || if is_shown || !h.is_young { prolong(&case) } else { put_back(&case) };
            (Class::Keep, keys, is_done.then(steps))
        }
        Op::Raise { owner, .. } => {
            extent.reader = Some(*owner);
            let is_done = reply == Reply::Done && !is_spoiled;
            (Class::Keep, &ONE, is_done.then(|| raise(&case)))
        }
        Op::Release { owner, .. } => {
            let free = Step::Free(*owner);
            (ran, extent) = (Reply::Done, Extent::default());
            extent.queue = owner.is_ownerless();
            let steps = if owner.is_ownerless() {
                // (fair 4): its place goes, too.
                vec![Step::On(Key::Queue, 0), Step::Leave(*owner), Step::On(Key::Main, 0), free]
            } else if shown[0].main == Main::None {
                vec![Step::Absent, free]
            } else {
                let own = Step::Is(owner.as_str().as_bytes().to_vec());
                let meta = [Step::On(Key::Meta, 0), Step::DropMeta, Step::On(Key::Main, 0)];
                [&[own][..], &meta, &[free]].concat()
            };
            let keys = if owner.is_ownerless() { &LEAVING } else { &RELEASING };
            (Class::Undo, keys, Some(steps))
        }
        Op::Inspect { wait, .. } => {
            extent = Extent { fence: true, all: true, kept: h.settling, ..extent };
            joins = wait.then_some(Join { place: Waits::Watcher, always: true });
            (Class::Read, &PUBLISHING[..if *wait { 4 } else { 3 }], None)
        }
        _ => return None,
    };
    let (steps, look) = (steps.unwrap_or_default(), Look::Lock(extent));
    // Of several readers one is shown.
    let is_read = is_shown && (!reply.is_grant() || new == old);
    let write = Write { class, keys, names, steps, look, joins };
    Some(Planned { count: if is_read { 1 } else { run.len() }, reply: ran, write })
}

/// Number of readers that are written together. Who changes a fence must be none yet, and only the
/// first one may be shown.
fn fit(run: &[Op], shown: &Shown, reply: &Reply) -> usize {
    let Main::Readers(count, _) = shown.main else { return run.len() };
    let free = READERS_MAX.saturating_sub(usize::try_from(count).unwrap_or(READERS_MAX));
    let is_same = matches!(reply, Reply::Granted { fence } if shown.fence() == Some(*fence));
    if is_same { free.clamp(1, run.len()) } else { 1 }
}

/// Of an acquire that knows nothing of the lock, in the range of the clock for which the batch was
/// judged. `None` if it has to be read first.
fn blind(case: &Case<'_>, run: &[Op]) -> Option<Vec<Step>> {
    let Case { h, op, .. } = *case;
    let Op::Acquire { mode, owner, ttl, proposal, if_held, .. } = op else { return None };
    let (ttl, life, proposal) = (millis(*ttl), fence_life(h), *proposal);
    let mut steps = vec![Step::Window];
    if matches!(if_held, Some(IfHeld::TakeFrom(_) | IfHeld::TakeOnly { .. })) {
        return None;
    }
    if case.shown.len() > 1 {
        let names = 0..case.shown.len();
        steps.extend(names.clone().flat_map(|i| {
            let most = Step::AtMost(proposal.saturating_sub(1));
            [Step::On(Key::Main, i), Step::Absent, Step::On(Key::Fence, i), most]
        }));
        let own = owner.as_str().as_bytes().to_vec();
        steps.extend(names.flat_map(|i| {
            let set = Step::Set(own.clone().into(), Some(ttl));
            let fence = Step::Set(proposal.to_string().into_bytes().into(), Some(life));
            [Step::On(Key::Main, i), set, Step::On(Key::Fence, i), fence]
        }));
        return Some(steps);
    }
    steps.extend(first(h, op).into_iter().flatten());
    steps.push(Step::On(Key::Main, 0));
    if mode.is_shared() {
        let owners = run.iter().filter_map(Op::owner).copied().collect();
        // Few correct clocks are farther apart.
        let most = Step::AtMost(proposal.saturating_add(1_000_000));
        steps.extend([Step::Shareable(run.len()), Step::On(Key::Fence, 0), most]);
        steps.push(Step::Keep { first: proposal, low: h.floor, ms: life });
        steps.extend([Step::On(Key::Main, 0), Step::Read { owners, ms: ttl, prolongs: false }]);
    } else {
        let place = if_held.as_ref().and_then(IfHeld::place);
        let reserved = place.map(|place| OwnerToken::reserved_for(place.waiter));
        steps.push(Step::Take(Take { owner: *owner, proposal, ttl, life, reserved }));
    }
    Some(steps)
}

/// Nobody is ahead in the queue (readers 9, fair 3).
pub(super) fn first(h: &Header, op: &Op) -> Option<[Step; 2]> {
    let Op::Acquire { mode, if_held, .. } = op else { return None };
    let ahead = match (mode, if_held) {
        (LockMode::Shared, then) => {
            let waited = then.as_ref().and_then(IfHeld::place).map_or(0, Place::micros);
            Ahead::OfReader(waited)
        }
        (LockMode::Exclusive, Some(IfHeld::Fair { place, ticket })) => {
            let lead = raise_lead(h.terms.clock_error).as_micros();
            Ahead::OfFair(place.waiter, *ticket, u64::try_from(lead).unwrap_or(u64::MAX))
        }
        _ => return None,
    };
    Some([Step::On(Key::Queue, 0), Step::First(ahead)])
}

pub(crate) fn waits(mode: LockMode, then: IfHeld) -> Option<Waits> {
    match then {
        IfHeld::Watch => Some(Waits::Watcher),
        IfHeld::Fair { place, ticket } if mode == LockMode::Exclusive => {
            Some(Waits::Fair(place, ticket))
        }
        IfHeld::Queue(place) | IfHeld::Fair { place, .. } if mode.is_shared() => {
            Some(Waits::Reader(place))
        }
        IfHeld::Queue(place) | IfHeld::Fair { place, .. } => Some(Waits::Writer(place)),
        IfHeld::TakeFrom(_) | IfHeld::TakeOnly { .. } => None,
    }
}

/// With a fence that is right for some time after this clock, and a ttl in whole ms, as what is
/// left of the lock is shown.
fn as_planned<'a>(h: &Header, op: &'a Op) -> Cow<'a, Op> {
    let mut op = Cow::Borrowed(op);
    if let Op::Acquire { .. } = *op
        && let Op::Acquire { proposal, ttl, .. } = op.to_mut()
    {
        *proposal = h.in_range_for_long(*proposal);
        *ttl = Duration::from_millis(millis(*ttl));
    }
    op
}

/// A fence of another program is above every token; but it keeps no acquire out before the acquire
/// is to be granted, and is none to who only reads.
fn row(h: &Header, op: &Op, shown: &Shown) -> Row {
    let mut row = shown.row(h);
    if let Op::Inspect { .. } | Op::Acquire { .. } = op {
        row.fence = shown.fence().unwrap_or(0);
    }
    row
}

/// An acquire that is no plan's, but one of a run.
pub(crate) fn judge_one(h: &Header, op: &Op, answer: Answer) -> (Judged, Option<Vec<Shown>>) {
    let Op::Acquire { proposal, .. } = op else { return (Judged::Again, None) };
    let (class, look) = (Class::Grant, Look::Lock(Extent::default()));
    let write = Write { class, keys: &ONE, names: 1, steps: Vec::new(), look, joins: None };
    let reply = Reply::Granted { fence: *proposal };
    judge(h, op, &Planned { count: 1, reply, write }, answer)
}

/// Also returns what the locks are now, for another plan. `h` has the time of the answer.
pub(crate) fn judge(
    h: &Header,
    op: &Op,
    planned: &Planned,
    answer: Answer,
) -> (Judged, Option<Vec<Shown>>) {
    let Planned { reply, write, .. } = planned;
    let mut joined = write.joins.as_ref().is_some_and(|joins| joins.always);
    let mut is_refused = false;
    let shown = match answer {
        Answer::Late => return (Judged::Reply(Err(NodeError::past_deadline())), None),
        Answer::Full => return (Judged::Full, None),
        Answer::Deferred => return (Judged::Reply(Ok(Reply::Deferred)), None),
        Answer::Ran(told) => return (Judged::Reply(granted(op, reply, told)), None),
        Answer::Shown(shown) => shown,
        Answer::Refused(shown) => {
            (joined, is_refused) = (true, true);
            shown
        }
        Answer::Not(_) | Answer::Foreign => return (Judged::Reply(Err(foreign(op))), None),
    };
    let mut old: Vec<Row> = shown.iter().map(|shown| row(h, op, shown)).collect();
    let is_spoiled = shown.iter().any(|shown| shown.fence().is_none());
    if let Op::Inspect { .. } = op {
        old[0].expire(h.now);
        // It is shown as kept until it is over, though the node may have settled since.
        if let Some((owner @ OwnerToken::KEPT, till)) = old[0].reserved {
            let meta = shown[0].meta.as_deref().map(Arc::from);
            old[0].held = Some(Held { owner: Some(owner), till: Some(till), meta });
        }
    }
    let Ruling { mut reply, rows, .. } = decide(h, &as_planned(h, op), old.clone());
    let is_open = match op {
        Op::Inspect { .. } => false,
        Op::Release { .. } if is_refused => false,
        // What waits for a lock that is free has to be woken.
        Op::Release { owner, .. } => {
            let is_free = shown[0].main == Main::None;
            is_free || reply == Reply::Done || old[0].is_fair_to(*owner)
        }
        // A fence is kept longer than its lock, so without one another program has deleted it.
        _ if reply == (Reply::Granted { fence: 0 }) || reply.is_grant() && is_spoiled => {
            return (Judged::Reply(Err(foreign(op))), None);
        }
        // Of a run only one is shown.
        Op::Acquire { owner, .. }
            if !h.is_quarantined()
                && matches!(shown[0].main, Main::Readers(..))
                && looks_for(write.look).is_some_and(|own| own != *owner) =>
        {
            true
        }
        _ if is_refused && reply.is_grant() => {
            if rows != old {
                reply = Reply::Held { remaining: Some(Duration::ZERO), foreign: false };
            }
            false
        }
        // Its own reservation lapses soon.
        Op::Acquire { .. } if !reply.is_grant() => {
            let mut each = shown.iter().zip(rows.iter().zip(&old));
            let is_kept = each.any(|(shown, (new, old))| to_be_kept(h, shown, old, new));
            is_kept || !joined && write.joins.is_some()
        }
        _ if is_refused => false,
        _ if joined => rows.iter().zip(&old).any(|(new, old)| !new.is_as(old)),
        _ => rows != old,
    };
    if is_open {
        return (Judged::Again, Some(shown));
    }
    if let (Reply::Readers(readers), Main::Readers(count, _)) = (&mut reply, &shown[0].main)
        && readers.listed.len() == MAX_LISTED
    {
        readers.count = *count;
    }
    (Judged::Reply(Ok(reply)), None)
}

fn looks_for(look: Look) -> Option<OwnerToken> {
    match look {
        Look::Lock(Extent { reader, .. }) => reader,
        Look::Record { .. } => None,
    }
}

fn granted(op: &Op, reply: &Reply, told: Option<Vec<u8>>) -> Result<Reply, NodeError> {
    let Some(told) = told else { return Ok(reply.clone()) };
    let fence = std::str::from_utf8(&told).ok().and_then(|digits| digits.parse().ok());
    fence.map(|fence| Reply::Granted { fence }).ok_or_else(|| foreign(op))
}

/// Of a release of these names, which found this.
pub(crate) fn released(h: &Header, op: &Op, found: Vec<Main>) -> Reply {
    let rows = found.into_iter().map(|main| Shown::of(main).row(h)).collect();
    decide(h, op, rows).reply
}

fn foreign(op: &Op) -> NodeError {
    let keys = op.lock_keys().into_iter().flat_map(|keys| keys.all().map(LockKeys::fence));
    NodeError::foreign(&keys.collect::<Vec<_>>().join(" or "))
}
