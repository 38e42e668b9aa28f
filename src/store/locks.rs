//! Exclusive locks as conditional writes. [`plan`] turns what the rule decides about a lock that is
//! as its owner assumes, or as the server has shown it, into a write; [`judge`] gives what the
//! server shows to the same rule. A refusal is never given out of a belief: such a plan only reads.

use std::sync::Arc;
use std::time::Duration;

use super::lock::{Main, Shown, Text};
use super::planned::Judged;
use super::write::{Answer, Class, Extent, Key, Look, Step, Write};
use crate::error::NodeError;
use crate::op::{IfHeld, LockMode, MAX_LISTED, Op, Reply};
use crate::rules::header::Header;
use crate::rules::locks::{Held, Row, Ruling, decide};
use crate::token::OwnerToken;

#[derive(Clone, Debug)]
pub(crate) struct Planned {
    op: Op,
    /// If the steps ran.
    reply: Reply,
    pub(crate) write: Write,
}

/// It is a conditional write on one lock, and not executed by a rule in the script.
pub(crate) fn are_written(op: &Op) -> bool {
    let is_one = op.lock_keys().is_some_and(|keys| !keys.is_many());
    is_one
        && match op {
            Op::Raise { slot, .. } => slot.is_none(),
            Op::Extend { mode, .. } => *mode == LockMode::Exclusive,
            Op::Release { mode, owner, meta, .. } => {
                *mode == LockMode::Exclusive && *meta && !owner.is_ownerless()
            }
            Op::Inspect { .. } => true,
            Op::Acquire { mode, if_held, .. } => {
                let takes = matches!(if_held, Some(IfHeld::TakeFrom(_) | IfHeld::TakeOnly { .. }));
                *mode == LockMode::Exclusive && takes
            }
            _ => false,
        }
}

/// `shown` is what the server showed of the lock just now. `h` has a time that the node's clock has
/// reached. `None` if the op is no conditional write.
pub(crate) fn plan(h: &Header, op: &Op, shown: Option<Shown>) -> Option<Planned> {
    if !are_written(op) {
        return None;
    }
    let (is_shown, op) = (shown.is_some(), &with_proposal_in_range(h, op));
    let believed = shown.unwrap_or_else(|| Shown::held(op));
    let old = row(h, op, &believed);
    let Ruling { reply, mut rows, .. } = decide(h, op, vec![old.clone()]);
    let writes = !reply.is_grant() || believed.fence().is_some();
    let new = rows.pop().filter(|_| writes);
    let (mut ran, mut extent) = (reply.clone(), Extent::Fence);
    let (class, keys, steps): (_, &[Key], _) = match op {
        Op::Extend { meta, .. } => {
            let new = new.filter(|_| reply == Reply::Done);
            let steps = new.map(|new| extension(h, op, &believed, (&old, &new)));
            let keys: &[Key] = if meta.is_some() { &PUBLISHING } else { &PUBLISHING[..3] };
            (Class::Keep, keys, steps)
        }
        Op::Raise { token, owner, .. } => {
            extent = Extent::Reader(*owner);
            let steps = new.filter(|_| reply == Reply::Done).map(|new| {
                let number = Step::Number(token.get(), life(h, &new));
                let owned = compared_main(&believed.main, *owner);
                let most = Step::AtMost(token.get());
                [clock(h, op).as_slice(), &[owned, Step::On(Key::Fence), most, number]].concat()
            });
            (Class::Keep, &PUBLISHING[..2], steps)
        }
        Op::Release { owner, .. } => {
            let steps = if believed.main == Main::None {
                vec![Step::Absent, Step::Free(*owner)]
            } else {
                let own = Step::Is(owner.as_str().as_bytes().to_vec());
                let meta = [Step::On(Key::Meta), Step::DropMeta, Step::On(Key::Main)];
                [&[own][..], &meta, &[Step::Free(*owner)]].concat()
            };
            (ran, extent) = (Reply::Done, Extent::Value);
            (Class::Undo, &RELEASING, Some(steps))
        }
        Op::Acquire { .. } => {
            extent = if h.settling { Extent::Kept } else { Extent::Fence };
            let steps = new.filter(|_| is_shown);
            let steps = steps.map(|new| take_over(h, op, &believed, (&old, &new, &reply)));
            (Class::Grant, &PUBLISHING[..3], steps)
        }
        _ => {
            extent = Extent::All { kept: h.settling };
            (Class::Read, &PUBLISHING[..3], None)
        }
    };
    let write = Write { class, keys, steps: steps.unwrap_or_default(), look: Look::Lock(extent) };
    Some(Planned { op: op.clone(), reply: ran, write })
}

const PUBLISHING: [Key; 4] = [Key::Main, Key::Fence, Key::Meta, Key::Queue];
const RELEASING: [Key; 3] = [Key::Main, Key::Queue, Key::Meta];

fn extension(h: &Header, op: &Op, believed: &Shown, (old, new): (&Row, &Row)) -> Vec<Step> {
    let Op::Extend { owner, ttl, token, meta, .. } = op else { return Vec::new() };
    let (ttl, life, is_owned) = (millis(*ttl), life(h, new), old.is_owned_by(*owner));
    let mut steps = Vec::from_iter(clock(h, op));
    steps.extend([compared_main(&believed.main, *owner), Step::On(Key::Fence)]);
    steps.extend([compared(&believed.fence), Step::On(Key::Meta)]);
    steps.push(match meta {
        Some(meta) => Step::Publish(meta.to_vec(), ttl),
        None => Step::KeepMeta(ttl),
    });
    steps.push(Step::On(Key::Fence));
    steps.push(match new.fence {
        fence if fence != old.fence => Step::Number(fence, life),
        // (locks 5): nobody else can have a grant.
        fence if is_owned && fence == token.get() => Step::LiveFor(life),
        _ => Step::KeepFor(life),
    });
    steps.push(Step::On(Key::Main));
    steps.push(if is_owned {
        Step::LiveFor(ttl)
    } else {
        Step::Set(owner.as_str().as_bytes().to_vec().into(), Some(ttl))
    });
    steps
}

/// Of what the server has shown: who holds the lock is not known before. Or keeps the lock after a
/// handover.
fn take_over(
    h: &Header,
    op: &Op,
    shown: &Shown,
    (old, new, reply): (&Row, &Row, &Reply),
) -> Vec<Step> {
    let Op::Acquire { owner, ttl, proposal, .. } = op else { return Vec::new() };
    let main = compared_main(&shown.main, *owner);
    let mut steps = vec![main];
    match (reply, new.kept) {
        (Reply::Granted { fence }, _) => {
            steps.extend([Step::On(Key::Fence), compared(&shown.fence), Step::On(Key::Main)]);
            let until = proposal.saturating_add(h.clock_error());
            steps.push(Step::Clock(h.facts.node_micros, until));
            if old.held.is_some() {
                steps.push(Step::EndsWithin(millis(*ttl)));
                steps.extend([Step::On(Key::Meta), Step::DropMeta]);
            }
            steps.extend([Step::On(Key::Fence), Step::Number(*fence, life(h, new))]);
            let own = owner.as_str().as_bytes().to_vec();
            steps.extend([Step::On(Key::Main), Step::Set(own.into(), Some(millis(*ttl)))]);
        }
        (_, Some((end, till))) if new.kept != old.kept => {
            let till = till.div_ceil(1_000_000);
            let rest = till.saturating_sub(h.now / 1_000_000).max(1);
            let kept = OwnerToken::KEPT.as_str().as_bytes().to_vec();
            steps.extend([Step::Unsettled, Step::Settle(till, end)]);
            steps.push(Step::Set(kept.into(), Some(rest)));
        }
        _ => return Vec::new(),
    }
    steps
}

/// So the fence, which stands in the write, is right for some time after this clock.
fn with_proposal_in_range(h: &Header, op: &Op) -> Op {
    let mut op = op.clone();
    if let Op::Acquire { proposal, .. } = &mut op {
        *proposal = h.in_range_for_long(*proposal);
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

/// Also returns what the lock is now, for another plan. `h` has the time of the answer.
pub(crate) fn judge(h: &Header, planned: &Planned, answer: Answer) -> (Judged, Option<Shown>) {
    let Planned { op, reply, write } = planned;
    let shown = match answer {
        Answer::Late => return (Judged::Reply(Err(NodeError::past_deadline())), None),
        Answer::Full => return (Judged::Full, None),
        Answer::Deferred => return (Judged::Reply(Ok(Reply::Deferred)), None),
        Answer::Ran(_) => return (Judged::Reply(Ok(reply.clone())), None),
        Answer::Shown(shown) => shown,
        Answer::Not(_) | Answer::Foreign => return (Judged::Reply(Err(foreign(op))), None),
    };
    let mut row = row(h, op, &shown);
    let is_spoiled = shown.fence().is_none();
    let is_unwoken = shown.main == Main::None && !write.steps.starts_with(&[Step::Absent]);
    if let Op::Inspect { .. } = op {
        // It is shown as kept until it is over, though the node may have settled since.
        if let Some((owner @ OwnerToken::KEPT, till)) = row.reserved {
            let meta = shown.meta.as_deref().map(Arc::from);
            row.held = Some(Held { owner: Some(owner), till: Some(till), meta });
        }
    }
    let Ruling { mut reply, rows, .. } = decide(h, op, vec![row.clone()]);
    let is_open = match op {
        // What waits for a lock that is free has to be woken.
        Op::Release { .. } => reply == Reply::Done || is_unwoken,
        Op::Inspect { .. } => false,
        // A fence is kept longer than its lock, so without one another program has deleted it.
        _ if reply == (Reply::Granted { fence: 0 }) || reply.is_grant() && is_spoiled => {
            return (Judged::Reply(Err(foreign(op))), None);
        }
        _ => rows[0] != row,
    };
    if is_open {
        return (Judged::Again, Some(shown));
    }
    if let (Reply::Readers(readers), Main::Readers(count, _)) = (&mut reply, &shown.main)
        && readers.listed.len() == MAX_LISTED
    {
        readers.count = *count;
    }
    (Judged::Reply(Ok(reply)), None)
}

/// Of a release of these names, which found this.
pub(crate) fn released(h: &Header, op: &Op, found: Vec<Main>) -> Reply {
    let rows = found.into_iter().map(|main| Shown::of(main).row(h)).collect();
    decide(h, op, rows).reply
}

fn foreign(op: &Op) -> NodeError {
    NodeError::foreign(op.lock_keys().map_or("", |keys| keys.fence()))
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
    new.fence_till.saturating_sub(h.now).div_ceil(1_000_000).max(1)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}
