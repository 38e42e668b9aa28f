//! Short descriptions of requests and replies for the trace.

use palisade::error::NodeError;
use palisade::node::spi::OwnerToken;
use palisade::node::spi::{IfHeld, Op, Reply};

use crate::dice::mix;
use crate::names::number_of;
use crate::trace::{Answer, Verb};

fn short(owner: &OwnerToken) -> u16 {
    owner.as_str().bytes().fold(0, |h: u64, b| mix(h ^ u64::from(b))) as u16
}

/// Returns the locks that the op granted, each with its fencing token. Returns an empty list if the
/// op failed or set no token.
pub(super) fn stands((op, reply): (&Op, &Result<Reply, NodeError>)) -> Vec<(u16, u64)> {
    let (keys, fence, slot) = match (op, reply) {
        (Op::Acquire { keys, .. }, Ok(Reply::Granted { fence })) => (keys, *fence, 0),
        (Op::Acquire { keys, .. }, Ok(Reply::Permit { fence, slot })) => (keys, *fence, *slot),
        (Op::Raise { keys, token, slot, .. }, Ok(Reply::Done)) => {
            (keys, token.get(), slot.unwrap_or(0))
        }
        _ => return Vec::new(),
    };
    keys.all().map(|keys| (number_of(keys.lock()) + slot, fence)).collect()
}

/// Returns true if the server's queue now has the place of a fair call with the ticket of the call.
/// Returns false if the place has no such ticket, or was removed. Returns `None` if the op changed
/// no place.
pub(super) fn places(op: &Op, reply: &Result<Reply, NodeError>) -> Option<bool> {
    match (op, reply) {
        (
            Op::Acquire { if_held: Some(IfHeld::Fair { ticket, .. }), .. },
            Ok(Reply::Queued { .. } | Reply::Granted { .. }),
        ) => Some(ticket.is_some()),
        (Op::Release { owner, meta: true, .. }, Ok(_)) if owner.as_str().starts_with("------") => {
            Some(false)
        }
        _ => None,
    }
}

pub(crate) fn describe(op: &Op) -> (Verb, u16, u16) {
    match op {
        Op::Acquire { keys, owner, .. } => (Verb::Acquire, number_of(keys.lock()), short(owner)),
        Op::Raise { keys, owner, .. } => (Verb::Raise, number_of(keys.lock()), short(owner)),
        Op::Extend { keys, owner, reassert, .. } => {
            let verb = if reassert.is_some() { Verb::Reassert } else { Verb::Extend };
            (verb, number_of(keys.lock()), short(owner))
        }
        Op::Release { keys, owner, .. } => (Verb::Release, number_of(keys.lock()), short(owner)),
        Op::Inspect { keys, .. } => (Verb::Inspect, number_of(keys.lock()), 0),
        Op::Enlist(e) => (Verb::Enlist, number_of(&e.key), short(&e.owner)),
        Op::Claim(c) => (Verb::Claim, number_of(&c.key), short(&c.owner)),
        Op::RaiseClaim { key, owner, .. } => (Verb::RaiseClaim, number_of(key), short(owner)),
        Op::ExtendClaim { ballot: b, .. } => {
            (Verb::ExtendClaim, number_of(&b.key), short(&b.owner))
        }
        Op::Complete { ballot: b, .. } => (Verb::Complete, number_of(&b.key), short(&b.owner)),
        Op::Steps { ballot: b, .. } => (Verb::Steps, number_of(&b.key), short(&b.owner)),
        Op::Unclaim { key, owner, .. } => (Verb::Unclaim, number_of(key), short(owner)),
        Op::Lookup { key, .. } => (Verb::Lookup, number_of(key), 0),
    }
}

pub(crate) fn answer(reply: &Reply) -> Answer {
    match reply {
        Reply::Granted { fence } | Reply::Permit { fence, .. } => Answer::Granted(*fence),
        Reply::Claimed { fence, unsure, .. } => Answer::Claimed(*fence, unsure.is_zero()),
        Reply::Held { .. } | Reply::Queued { .. } => Answer::Held,
        Reply::Quarantined { .. } => Answer::Quarantined,
        Reply::Done => Answer::Done,
        Reply::NotOwner => Answer::NotOwner,
        Reply::Absent => Answer::Absent,
        Reply::Holder(_)
        | Reply::Readers(_)
        | Reply::Permits(_)
        | Reply::Record { .. }
        | Reply::Candidates(_) => Answer::Seen,
        Reply::Completed(r) => Answer::Completed(r.token.get()),
        Reply::InFlight { .. } => Answer::InFlight,
        Reply::Mismatch => Answer::Mismatch,
        Reply::TooOld => Answer::TooOld,
        Reply::Deferred => Answer::Deferred,
    }
}
