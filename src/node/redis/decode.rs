//! Decodes the script's answer into [`Replies`]. What cannot be decoded is never a panic, but an
//! error which states that the batch may have run.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::codes::{
    ABSENT, AS_ASKED, COMPLETED, DEFERRED, DONE, FOREIGN, FULL, HELD, IN_FLIGHT, LATE, MISMATCH,
    NO_PERMISSION, NOT_OWNER, PERMITS, QUARANTINED, READING, TOO_OLD, WRONG_TYPE,
};
use super::encode::runs;
use super::faults;
use super::judging::Judging;
use super::seen::{Noted, Seen};
use crate::error::{NodeError, NodeFault};
use crate::name::LockKeys;
use crate::op::{
    Facts, Holder, IfHeld, Listed, LockMode, MAX_LISTED, Op, QuarantineId, Queued, Readers,
    RecordState, Replies, Reply, SharedGrant, SlotGrant, Slots, StoredRecord, StoredSteps,
};
use crate::rules::lost_claims::{LostClaims, Unsure};
use crate::token::{FencingToken, OwnerToken};

/// The script counts in doubles, which represent every whole number only up to this.
const TOKEN_END: u64 = 1 << 53;

/// The script has executed `ops` under the marker `seen`.
pub(super) fn replies(
    answer: Value,
    ops: &[Op],
    judging: &Judging,
    seen: &Arc<Seen>,
) -> Result<Replies, NodeError> {
    let as_asked = || runs(ops).map(|_| Value::Int(AS_ASKED)).collect::<Vec<_>>().into_iter();
    let (items, node_micros, noted) = match answer {
        // Each op was executed as requested; the note was written or not.
        Value::Int(clock) => {
            let clock = u64::try_from(clock).map_err(|_| garbage("a clock before 1970"))?;
            (as_asked(), clock, None)
        }
        Value::BulkString(note) => {
            let (noted, clock) = noted(note)?;
            (as_asked(), clock, Some(noted))
        }
        Value::Array(items) => {
            let mut from = Reader { values: items.into_iter(), spoiled: None };
            let clock = from.number()?;
            let note = from.maybe_bytes()?.ok_or_else(|| garbage("no note"))?;
            if let Some(e) = from.spoiled.take() {
                return Err(e);
            }
            let text = String::from_utf8(note).map_err(|_| garbage("a note that is no text"))?;
            (from.values, clock, Some(Noted::read(&text)))
        }
        _ => return Err(garbage("neither a list nor what was expected")),
    };
    let mut from = Reader { values: items, spoiled: None };
    let noted = judging.heard(seen, node_micros, noted);
    let facts = seen.facts(node_micros, noted, &judging.identity);
    let now = facts.node_micros / 1_000;
    let lost_claims =
        LostClaims::new(Arc::clone(&facts.losses), facts.began, seen.clock_error(), now);
    let mut items = Vec::with_capacity(ops.len());
    for run in runs(ops) {
        let mut first = from.code()?;
        let as_asked = first == AS_ASKED;
        if as_asked && matches!(run[0], Op::Acquire { mode: LockMode::Shared, .. }) {
            first = from.code()?;
        }
        for (i, op) in run.iter().enumerate() {
            let mut code = if as_asked || i == 0 { first } else { from.code()? };
            if let (Op::Release { .. }, Some(names), false) = (op, op.several(), as_asked) {
                // Of several locks: `NotOwner` if another owner has one, else `Absent` if one is
                // free, else `Done` (multi_lock 5).
                let rank = |code: &i64| [DONE, ABSENT, NOT_OWNER].iter().position(|c| c == code);
                for _ in 1..names.all().count() {
                    let next = from.code()?;
                    code = std::cmp::max_by_key(code, next, |code| rank(code).unwrap_or(3));
                }
            }
            if code == AS_ASKED && !as_asked {
                return Err(garbage("the rest of a run as asked"));
            }
            match reply(&mut from, op, code, (&facts, &lost_claims)) {
                Ok(reply) => items.push(Ok(reply)),
                Err(Trouble::Op(e)) => items.push(Err(e)),
                Err(Trouble::Answer(e)) => return Err(e),
            }
        }
    }
    if from.values.next().is_some() {
        return Err(garbage("more answers than questions"));
    }
    Ok(Replies { facts: Some(facts), items })
}

fn noted(note: Vec<u8>) -> Result<(Noted, u64), NodeError> {
    let text = String::from_utf8(note).map_err(|_| garbage("a note that is no text"))?;
    let noted = Noted::read(&text);
    let note = noted.note.ok_or_else(|| garbage("a note of another form"))?;
    Ok((noted, note.micros))
}

/// Fails one op only, or the whole answer.
enum Trouble {
    Op(NodeError),
    Answer(NodeError),
}

impl From<NodeError> for Trouble {
    fn from(e: NodeError) -> Self {
        Self::Answer(e)
    }
}

fn reply(
    from: &mut Reader,
    op: &Op,
    code: i64,
    (facts, lost_claims): (&Facts, &LostClaims),
) -> Result<Reply, Trouble> {
    let reply = match (op, code) {
        (_, WRONG_TYPE) => return Err(Trouble::Op(wrong_type(op))),
        (_, NO_PERMISSION) => return Err(no_permission()),
        (_, FULL) => return Err(Trouble::Op(faults::no_memory())),
        (_, LATE) if !op.is_undo() => return Err(Trouble::Op(NodeError::past_deadline())),
        (
            Op::Acquire { .. }
            | Op::Raise { .. }
            | Op::Extend { .. }
            | Op::Claim(_)
            | Op::ExtendClaim { .. },
            QUARANTINED,
        ) => {
            let id = QuarantineId { history: facts.history_id, since: facts.since };
            let began = facts.began;
            Reply::Quarantined { remaining: facts.quarantine, id, began }
        }
        (Op::Acquire { mode, keys, if_held, .. }, HELD | FOREIGN) => {
            let (remaining, foreign) = (from.ttl()?, code == FOREIGN);
            let is_fair = matches!(if_held, Some(IfHeld::Fair { .. }));
            if is_fair && *mode == LockMode::Exclusive && !keys.is_many() {
                from.queued(remaining, foreign)?
            } else {
                Reply::Held { remaining, foreign }
            }
        }
        (_, MISMATCH) if has_fingerprint(op) => Reply::Mismatch,
        (Op::Claim(_), TOO_OLD) => Reply::TooOld,
        (_, DEFERRED) if op.shows_result() => Reply::Deferred,
        (Op::Claim(_), IN_FLIGHT) => {
            Reply::InFlight { remaining: Duration::from_millis(from.number()?) }
        }
        (Op::Claim(_) | Op::RaiseClaim { .. } | Op::ExtendClaim { .. }, COMPLETED) => {
            let rf = from.number()?;
            Reply::Completed(from.record(rf)?)
        }
        (Op::Acquire { mode: LockMode::Exclusive, proposal, .. }, AS_ASKED) => {
            Reply::Granted { fence: *proposal }
        }
        (Op::Acquire { mode: LockMode::Slot(_), .. }, 1..) => {
            Reply::Permit { fence: code.unsigned_abs(), slot: from.slot()? }
        }
        (Op::Acquire { .. }, 1..) => Reply::Granted { fence: code.unsigned_abs() },
        (Op::Claim(c), AS_ASKED | 1..) => {
            let (fence, attempt, record, steps) = match code {
                // The key had no record, so this is the first claim, and no values follow.
                AS_ASKED => (c.proposal, 1, None, None),
                fence => (
                    fence.unsigned_abs(),
                    from.attempt()?,
                    from.maybe_record()?,
                    from.maybe_steps()?,
                ),
            };
            let Unsure { remaining: unsure, losses, fresh } =
                lost_claims.unsure(c.born, c.retention, c.accepted);
            Reply::Claimed { fence, attempt, record, steps, unsure, losses, fresh }
        }
        (Op::Enlist(_), 0..) => Reply::Candidates(from.candidates(code.unsigned_abs())?),
        (Op::Inspect { .. }, ABSENT) => Reply::Holder(None),
        (Op::Inspect { .. }, READING) => Reply::Readers(from.readers()?),
        (Op::Inspect { .. }, PERMITS) => Reply::Permits(from.permits()?),
        (Op::Inspect { .. }, 0..) => Reply::Holder(Some(from.holder(code.unsigned_abs())?)),
        (Op::Lookup { retention, born, accepted, .. }, ABSENT | 0..) => {
            let fence = u64::try_from(code).ok();
            let state = fence.map(|fence| from.state(fence)).transpose()?;
            let Unsure { remaining: unsure, losses, .. } =
                lost_claims.unsure(*born, *retention, *accepted);
            Reply::Record { state, unsure, losses }
        }
        (Op::Release { .. } | Op::Unclaim { .. }, ABSENT) => Reply::Absent,
        (op, _) if shows(op) => return Err(garbage("an answer to another kind of question").into()),
        (
            Op::Release { .. }
            | Op::Extend { .. }
            | Op::ExtendClaim { .. }
            | Op::Complete { .. }
            | Op::Steps { .. },
            AS_ASKED,
        )
        | (_, DONE) => Reply::Done,
        (_, NOT_OWNER) => Reply::NotOwner,
        _ => return Err(garbage("an answer to another kind of question").into()),
    };
    if let Some(e) = from.spoiled.take() {
        return Err(Trouble::Op(e));
    }
    if largest_token(&reply) >= TOKEN_END {
        // From 2^53 on doubles do not represent every whole number, so the next holder's token
        // might not be larger.
        let detail = "this key holds a fencing token of 2^53 or more; delete it";
        return Err(Trouble::Op(NodeError::maybe_executed(NodeFault::Protocol, detail)));
    }
    Ok(reply)
}

/// A fencing token, a holder, a record or a list, and never `DONE` or `NOT_OWNER`.
fn shows(op: &Op) -> bool {
    matches!(
        op,
        Op::Acquire { .. } | Op::Claim(_) | Op::Inspect { .. } | Op::Lookup { .. } | Op::Enlist(_)
    )
}

fn has_fingerprint(op: &Op) -> bool {
    matches!(
        op,
        Op::Claim(_)
            | Op::ExtendClaim { .. }
            | Op::Complete { .. }
            | Op::Steps { .. }
            | Op::Lookup { .. }
    )
}

fn wrong_type(op: &Op) -> NodeError {
    let locks = op.lock_keys().into_iter().flat_map(LockKeys::all);
    let keys: Vec<&str> = op.own_key().into_iter().chain(locks.map(LockKeys::fence)).collect();
    NodeError::foreign(&keys.join(" or "))
}

fn no_permission() -> Trouble {
    let detail = "NOPERM: allow this user +zadd +zrem +zrange +zcard +zscore +zremrangebyscore \
                  +pexpireat";
    Trouble::Op(NodeError::not_executed(NodeFault::NoPermission, detail))
}

/// Of tokens and ballots; 0 if there is none.
fn largest_token(reply: &Reply) -> u64 {
    let of = |record: &Option<StoredRecord>| record.as_ref().map_or(0, |r| r.token.get());
    match reply {
        Reply::Granted { fence } | Reply::Permit { fence, .. } => *fence,
        Reply::Permits(all) => all.iter().map(|permit| permit.fence).max().unwrap_or(0),
        Reply::Claimed { fence, record, steps, .. } => {
            of(record).max(*fence).max(steps.as_ref().map_or(0, |s| s.token.get()))
        }
        Reply::Completed(record) => record.token.get(),
        Reply::Holder(Some(holder)) => holder.fence,
        Reply::Readers(readers) => readers.fence,
        Reply::Record { state: Some(state), .. } => of(&state.record).max(state.fence),
        _ => 0,
    }
}

/// A value that is missing or of another type fails the whole answer: it is unknown which values
/// belong to which op. A number out of range fails only its op: `spoiled` keeps the error, and the
/// number is read as zero, so that the op's other values are read as well.
struct Reader {
    values: std::vec::IntoIter<Value>,
    spoiled: Option<NodeError>,
}

impl Reader {
    /// A whole number that decides which values follow: an integer, or a text of digits, because a
    /// fence is returned as it is stored.
    fn code(&mut self) -> Result<i64, NodeError> {
        self.maybe_integer()?.ok_or_else(|| garbage("no number where one belongs"))
    }

    fn maybe_integer(&mut self) -> Result<Option<i64>, NodeError> {
        match self.values.next() {
            Some(Value::Int(n)) => Ok(Some(n)),
            Some(Value::BulkString(digits)) => {
                Ok(std::str::from_utf8(&digits).ok().and_then(|d| d.parse().ok()))
            }
            _ => Err(garbage("no integer where one belongs")),
        }
    }

    fn fitting<T: Default>(&mut self, value: Option<T>, what: &str) -> T {
        if value.is_none() {
            self.spoiled.get_or_insert_with(|| garbage(what));
        }
        value.unwrap_or_default()
    }

    fn integer(&mut self) -> Result<i64, NodeError> {
        let value = self.maybe_integer()?;
        Ok(self.fitting(value, "no number where one belongs"))
    }

    fn unsigned(&mut self, n: i64) -> u64 {
        self.fitting(u64::try_from(n).ok(), "a negative number")
    }

    fn number(&mut self) -> Result<u64, NodeError> {
        let n = self.integer()?;
        Ok(self.unsigned(n))
    }

    /// In ms: `None` for -1 (no expiry), and zero for -2 (just expired).
    fn ttl(&mut self) -> Result<Option<Duration>, NodeError> {
        Ok(match self.integer()? {
            -1 => None,
            -2 => Some(Duration::ZERO),
            ms => Some(Duration::from_millis(self.unsigned(ms))),
        })
    }

    /// The ticket, zero without a place, and the number of places ahead.
    fn queued(&mut self, remaining: Option<Duration>, foreign: bool) -> Result<Reply, NodeError> {
        let (ticket, ahead) = (self.number()?, self.number()?);
        let ahead = self.fitting(u16::try_from(ahead).ok(), "too many places ahead");
        Ok(match ticket {
            0 => Reply::Held { remaining, foreign },
            ticket => Reply::Queued { remaining, foreign, queued: Queued { ahead, ticket } },
        })
    }

    fn maybe_bytes(&mut self) -> Result<Option<Vec<u8>>, NodeError> {
        match self.values.next() {
            Some(Value::BulkString(b)) => Ok(Some(b)),
            Some(Value::Nil) => Ok(None),
            _ => Err(garbage("no text where it belongs")),
        }
    }

    fn bytes(&mut self) -> Result<Vec<u8>, NodeError> {
        self.maybe_bytes()?.ok_or_else(|| garbage("nothing where text belongs"))
    }

    fn record(&mut self, rf: u64) -> Result<StoredRecord, NodeError> {
        Ok(StoredRecord {
            token: FencingToken::new(rf),
            value: self.maybe_bytes()?.map(Into::into),
        })
    }

    fn maybe_record(&mut self) -> Result<Option<StoredRecord>, NodeError> {
        // The token of the claim whose result follows; 0 without a result.
        match self.code()? {
            0 => Ok(None),
            rf => {
                let rf = self.unsigned(rf);
                self.record(rf).map(Some)
            }
        }
    }

    fn maybe_steps(&mut self) -> Result<Option<StoredSteps>, NodeError> {
        match self.code()? {
            0 => Ok(None),
            token => {
                let token = FencingToken::new(self.unsigned(token));
                Ok(Some(StoredSteps { token, list: self.bytes()?.into() }))
            }
        }
    }

    fn attempt(&mut self) -> Result<u32, NodeError> {
        let n = self.integer()?;
        Ok(self.fitting(u32::try_from(n).ok(), "no attempt number"))
    }

    fn holder(&mut self, fence: u64) -> Result<Holder, NodeError> {
        let owner = self.maybe_bytes()?.and_then(|v| OwnerToken::parse(&v));
        let remaining = self.ttl()?;
        let meta = self.maybe_bytes()?.map(Into::into);
        Ok(Holder { owner, fence, remaining, meta })
    }

    fn readers(&mut self) -> Result<Readers, NodeError> {
        let fence = self.number()?;
        let count = self.number()?;
        let count = self.fitting(u32::try_from(count).ok(), "no number of readers");
        let mut listed = Vec::new();
        for _ in 0..(count as usize).min(MAX_LISTED) {
            let owner = self.owner()?;
            listed.push(SharedGrant { owner, remaining: Duration::from_millis(self.number()?) });
        }
        Ok(Readers { fence, count, listed })
    }

    fn slot(&mut self) -> Result<u16, NodeError> {
        let n = self.integer()?;
        let slot = u16::try_from(n).ok().filter(|slot| *slot < Slots::MAX);
        Ok(self.fitting(slot, "no slot where one belongs"))
    }

    fn permits(&mut self) -> Result<Vec<SlotGrant>, NodeError> {
        let mut all = Vec::new();
        for _ in 0..self.number()? {
            let (slot, owner, fence) = (self.slot()?, self.owner()?, self.number()?);
            let remaining = Duration::from_millis(self.number()?);
            all.push(SlotGrant { slot, owner, fence, remaining });
        }
        Ok(all)
    }

    fn owner(&mut self) -> Result<OwnerToken, NodeError> {
        let owner = OwnerToken::parse(&self.bytes()?);
        Ok(owner.unwrap_or_else(|| {
            self.fitting::<u64>(None, "no owner where one belongs");
            OwnerToken::from_random(0)
        }))
    }

    fn candidates(&mut self, n: u64) -> Result<Vec<Listed>, NodeError> {
        let mut all = Vec::new();
        for _ in 0..n {
            let owner = self.owner()?;
            let ms = self.number()?;
            let (remaining, entry) = (Duration::from_millis(ms), self.bytes()?.into());
            all.push(Listed { owner, remaining, entry });
        }
        Ok(all)
    }

    fn state(&mut self, fence: u64) -> Result<RecordState, NodeError> {
        let attempt = self.attempt()?;
        let lease = self.ttl()?;
        Ok(RecordState { fence, attempt, lease, record: self.maybe_record()? })
    }
}

pub(super) fn garbage(what: &str) -> NodeError {
    NodeError::maybe_executed(NodeFault::Protocol, format!("script answer: {what}"))
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests;
