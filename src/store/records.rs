//! Idempotency records as conditional writes. [`plan`] turns what the rule decides about a believed
//! record into a write; [`judge`] gives what the server shows to the same rule. A refusal is never
//! given out of a belief: such a plan only reads.

use super::planned::Judged;
use super::record::{
    HEAD, MILLIS, RESULT, STATE, Shown, TILL, WAITERS, head, push_till, through_till, value,
};
use super::write::{ALONE, AWAITED, Answer, Class, Key, Look, Stamped, Step, Write};
use crate::error::NodeError;
use crate::op::{Claim, Op, Reply};
use crate::rules::header::Header;
use crate::rules::records::{Row, Ruling, Waiters, decide, holds_until};

/// Bytes that are read without a look at the length: the head, and nearly all results.
const FIRST: usize = 4_096;

#[derive(Clone, Debug)]
pub(crate) struct Planned {
    /// As asked, but for a proposal out of the node's range.
    pub(crate) op: Op,
    pub(crate) believed: Option<Shown>,
    /// The rule writes the record, and does not only look or wait.
    decides: bool,
    pub(crate) write: Write,
    /// What the record becomes if the steps run.
    pub(crate) becomes: Option<Shown>,
}

/// The reply may have a result or steps.
fn is_shown(op: &Op) -> bool {
    matches!(op, Op::Claim(_) | Op::RaiseClaim { .. } | Op::ExtendClaim { .. } | Op::Lookup { .. })
}

/// `h` has a time that the node's clock has reached.
pub(crate) fn plan(h: &Header, op: &Op, believed: Option<Shown>) -> Planned {
    let op = with_proposal_in_range(h, op);
    let Ruling { reply, row, waiters } = decide(h, &op, believed.as_ref().map(|b| &b.row));
    let mut class = match op {
        Op::Claim(_) => Class::Grant,
        Op::Unclaim { .. } => Class::Undo,
        Op::Lookup { .. } => Class::Read,
        _ => Class::Keep,
    };
    let (mut steps, mut becomes, decides) = (Vec::new(), None, row.is_some());
    match (&believed, row) {
        (old, Some(new)) => {
            let clock = |until| Step::Clock(h.facts.node_micros, until);
            steps.extend(holds_until(h, &op).map(clock));
            let wakes = waiters == Waiters::Wake;
            match old {
                None => {
                    steps.push(Step::Absent);
                    steps.push(Step::Set(whole(h, &op, &new), Some(life(h, &new))));
                }
                Some(old) => {
                    // Who takes over relies on the end of the lease. Nobody else does, and the
                    // owner's own extension moves it.
                    let takes_over = matches!(op, Op::Claim(_) | Op::Unclaim { .. });
                    steps.push(Step::Begins(compared(&old.row, takes_over)));
                    steps.extend((reply.shows_result() && !old.is_whole).then_some(Step::Show));
                    steps.extend((new.expires > 0).then(|| Step::KeepFor(life(h, &new))));
                    steps.extend(wakes.then_some(Step::Wake(WAITERS)));
                    changes(h, &op, &old.row, &new, &mut steps);
                }
            }
            let brings = matches!(op, Op::Complete { .. } | Op::Steps { .. });
            let is_whole = brings || old.as_ref().is_none_or(|old| old.is_whole);
            let is_awaited = !wakes && old.as_ref().is_some_and(|old| old.is_awaited);
            becomes = Some(Shown { row: stored(h, &op, new), is_whole, is_awaited });
        }
        (Some(old), None) if reply.shows_result() && !old.is_whole => {
            steps.extend([Step::Begins(compared(&old.row, true)), Step::Show]);
        }
        (Some(old), None) if waiters == Waiters::Join && !old.is_awaited => {
            class = Class::Keep;
            if let Reply::InFlight { remaining } = reply {
                let rest = u64::try_from(remaining.as_micros()).unwrap_or(u64::MAX);
                let now = h.facts.node_micros;
                steps.push(Step::Clock(now, now.saturating_add(rest).saturating_sub(1)));
            }
            let joins = Step::Part(WAITERS, vec![AWAITED].into());
            steps.extend([Step::Begins(compared(&old.row, true)), joins]);
            becomes = Some(Shown { is_awaited: true, ..old.clone() });
        }
        (_, None) => {}
    }
    let look = if is_shown(&op) {
        Look::Record { first: FIRST, whole_if: Some((STATE, RESULT)) }
    } else {
        Look::Record { first: HEAD, whole_if: None }
    };
    let write = Write { class, keys: &[Key::Main], names: 1, steps, look, joins: None };
    Planned { op, believed, decides, write, becomes }
}

/// Also returns what the record is now, as far as the answer shows it. `h` has the time of the
/// answer.
pub(crate) fn judge(h: &Header, planned: &Planned, answer: Answer) -> (Judged, Option<Shown>) {
    let Planned { op, believed, decides, becomes, .. } = planned;
    let (text, ran) = match answer {
        Answer::Late => return (Judged::Reply(Err(NodeError::past_deadline())), None),
        Answer::Full => return (Judged::Full, None),
        Answer::Foreign | Answer::Shown(_) | Answer::Refused(_) | Answer::Deferred => {
            return (foreign(op), None);
        }
        Answer::Ran(text) => (text, true),
        Answer::Not(text) => (text, false),
    };
    let shown = match text.as_deref().map(Shown::parse) {
        Some(None) => return (foreign(op), None),
        Some(shown) => shown,
        None if ran && !decides => becomes.clone(),
        None if ran => believed.clone(),
        None => None,
    };
    let Ruling { reply, row, waiters } = decide(h, op, shown.as_ref().map(|shown| &shown.row));
    if ran && *decides {
        let now = row.zip(becomes.as_ref());
        let now = now.map(|(row, new)| Shown {
            row: stored(h, op, row),
            is_whole: new.is_whole || text.is_some(),
            is_awaited: new.is_awaited,
        });
        return (Judged::Reply(Ok(reply)), now);
    }
    let is_cut = reply.shows_result() && shown.as_ref().is_some_and(|shown| !shown.is_whole);
    let joins = waiters == Waiters::Join && shown.as_ref().is_some_and(|shown| !shown.is_awaited);
    let had_no_room = !ran && planned.write.steps.contains(&Step::Show);
    let judged = if is_cut && had_no_room {
        Judged::Reply(Ok(Reply::Deferred))
    } else if row.is_some() || joins {
        Judged::Again
    } else if is_cut && shown.as_ref().is_some_and(|shown| shown.row.result.is_some()) {
        Judged::Reply(Ok(Reply::Deferred))
    } else if is_cut {
        Judged::Again
    } else {
        Judged::Reply(Ok(reply))
    };
    (judged, shown)
}

fn foreign(op: &Op) -> Judged {
    Judged::Reply(Err(NodeError::foreign(op.own_key().unwrap_or_default())))
}

/// So the ballot, which stands in the write, is right for some time after this clock.
fn with_proposal_in_range(h: &Header, op: &Op) -> Op {
    match op {
        Op::Claim(c) => Op::Claim(Claim { proposal: h.in_range_for_long(c.proposal), ..c.clone() }),
        op => op.clone(),
    }
}

fn compared(row: &Row, with_till: bool) -> Vec<u8> {
    if with_till { through_till(row) } else { head(row) }
}

fn whole(h: &Header, op: &Op, new: &Row) -> Stamped {
    let lease = lease(h, op, new);
    if lease.is_some() {
        return Stamped { before: head(new), lease, after: vec![ALONE] };
    }
    let mut text = through_till(new);
    text.push(ALONE);
    text.extend_from_slice(value(new));
    text.into()
}

fn changes(h: &Header, op: &Op, old: &Row, new: &Row, steps: &mut Vec<Step>) {
    if new.result != old.result {
        return steps.push(Step::Set(whole(h, op, new), None));
    }
    let (mut text, same) = match head(new) {
        text if text == head(old) => (Vec::new(), true),
        text => (text, false),
    };
    let lease = lease(h, op, new);
    if lease.is_none() && old.till != new.till {
        push_till(&mut text, new);
    }
    if lease.is_some() || !text.is_empty() {
        let at = if same { TILL } else { 0 };
        steps.push(Step::Part(at, Stamped { before: text, lease, after: Vec::new() }));
    }
    if new.steps != old.steps {
        steps.push(Step::Part(HEAD, value(new).to_vec().into()));
    }
}

/// In ms; `None` if the op gives no lease.
fn lease(h: &Header, op: &Op, new: &Row) -> Option<u64> {
    let gives = matches!(op, Op::Claim(_) | Op::ExtendClaim { .. });
    let span = new.till.filter(|_| gives)?.saturating_sub(h.now);
    Some(span.div_ceil(MILLIS))
}

/// In ms.
fn life(h: &Header, new: &Row) -> u64 {
    new.expires.saturating_sub(h.now).div_ceil(MILLIS).max(1)
}

/// The row as the server stores it: the script counts a lease from the clock's whole ms.
fn stored(h: &Header, op: &Op, row: Row) -> Row {
    let stamp = lease(h, op, &row).map(|lease| (h.facts.node_micros / 1_000 + lease) * MILLIS);
    Row { till: stamp.or(row.till), expires: 0, ..row }
}
