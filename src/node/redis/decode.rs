//! Decodes the script's answer into [`Replies`]. What cannot be decoded is never a panic, but an
//! error which states that the batch may have run.

use std::cell::LazyCell;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::codes::{
    ABSENT, AS_ASKED, BEHIND, DEFERRED, DONE, FOREIGN, FULL, HELD, LATE, NOT_OWNER, NOT_RUN,
    QUARANTINED, RAN, REFUSED, WRONG_TYPE,
};
use super::encode::runs;
use super::faults;
use super::judging::Judging;
use super::seen::{Noted, Seen};
use crate::error::{NodeError, NodeFault};
use crate::name::LockKeys;
use crate::op::{
    Batch, Facts, Listed, LockMode, MAX_LISTED, Op, QuarantineId, Replies, Reply, Slots,
};
use crate::rules::header::Header;
use crate::store::lock::{Main, Shown, Text};
use crate::store::locks;
use crate::store::planned::{Judged, Planned, judge_one};
use crate::store::write::{Answer, Class, Extent, Look, Step, Write};
use crate::token::OwnerToken;

/// The script counts in doubles, which represent every whole number only up to this.
pub(super) const EXACT_END: u64 = 1 << 53;

/// Answers to a batch. `None` for an op that is to be sent again, some with another plan.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) facts: Facts,
    pub(super) items: Vec<Option<Result<Reply, NodeError>>>,
}

impl Decoded {
    /// `rest` answers the ops at these places, which were sent again.
    pub(super) fn take_rest(&mut self, rest: Self, places: impl Iterator<Item = usize>) {
        let first = std::mem::replace(&mut self.facts, rest.facts);
        self.facts.new_history |= first.new_history;
        self.facts.renamed |= first.renamed;
        self.facts.marker_missing |= first.marker_missing;
        self.facts.quarantine_raised |= first.quarantine_raised;
        for (at, item) in places.zip(rest.items) {
            self.items[at] = item;
        }
    }

    /// What has no answer yet gets this error.
    pub(super) fn or_fail(mut self, e: &NodeError) -> Self {
        for item in &mut self.items {
            item.get_or_insert_with(|| Err(e.clone()));
        }
        self
    }

    pub(super) fn is_whole(&self) -> bool {
        self.items.iter().all(Option::is_some)
    }

    pub(super) fn replies(self) -> Replies {
        Replies { facts: Some(self.facts), items: self.items.into_iter().flatten().collect() }
    }
}

/// The script has executed the batch as planned, under the marker `seen`.
pub(super) fn replies(
    answer: Value,
    batch: &Batch,
    plans: &[Option<Planned>],
    judging: &Judging,
    seen: &Arc<Seen>,
) -> Result<Decoded, NodeError> {
    let ops = &batch.ops[..];
    let as_asked = || {
        let all = runs(ops, plans).map(|_| Value::Int(AS_ASKED));
        all.collect::<Vec<_>>().into_iter()
    };
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
    if node_micros >= EXACT_END {
        return Err(garbage("a clock after 2255"));
    }
    let mut from = Reader { values: items, spoiled: None };
    let noted = judging.heard(seen, node_micros, noted);
    let facts = seen.facts(node_micros, noted, &judging.identity);
    let header = LazyCell::new(|| seen.header(facts.clone(), batch.terms.max_ttl));
    // (overview 2): the script has run no op on a key behind one that is to run yet.
    let mut again: Vec<&str> = Vec::new();
    let mut items = Vec::with_capacity(ops.len());
    for (run, planned) in runs(ops, plans) {
        if let Some(Value::Int(BEHIND)) = from.values.as_slice().first()
            && planned.is_none()
        {
            from.values.next();
            again.extend(run.iter().flat_map(main_keys));
            items.extend(run.iter().map(|_| None));
            continue;
        }
        let behind = run.iter().flat_map(main_keys).any(|key| again.contains(&key));
        let judged: Vec<Judged> = match (planned, &run[0]) {
            (Some(planned), _) => {
                let answer = from.answer(planned.write())?;
                let mut beliefs = judging.beliefs.lock();
                let judge =
                    |op| planned.judge((&header, op), (answer.clone(), behind), &mut beliefs);
                run.iter().map(judge).collect()
            }
            (None, Op::Acquire { mode: LockMode::Exclusive, .. }) => {
                let answers = from.granted(run)?;
                let mut beliefs = judging.beliefs.lock();
                let judge = |(op, answer)| judge_one(&header, op, answer, &mut beliefs);
                run.iter().zip(answers).map(judge).collect()
            }
            (None, Op::Release { mode, .. }) if mode.slots().is_none() => {
                from.released(&header, run)?.into_iter().map(|r| Judged::Reply(Ok(r))).collect()
            }
            (None, op) => {
                let code = from.code()?;
                let reply = match reply(&mut from, op, code, &facts) {
                    Ok(reply) => Ok(reply),
                    Err(Trouble::Op(e)) => Err(e),
                    Err(Trouble::Answer(e)) => return Err(e),
                };
                vec![Judged::Reply(reply)]
            }
        };
        for (op, judged) in run.iter().zip(judged) {
            items.push(match judged {
                Judged::Reply(reply) => Some(reply.and_then(in_range)),
                Judged::Full => Some(Err(faults::no_memory())),
                Judged::Again => {
                    again.extend(main_keys(op));
                    None
                }
            });
        }
    }
    if from.values.next().is_some() {
        return Err(garbage("more answers than questions"));
    }
    if !items.iter().flatten().flatten().any(Reply::shows_result) {
        // The script left a result out for the sake of one that no reply shows.
        for (item, _) in items.iter_mut().zip(ops).filter(|(_, op)| op.record_key().is_some()) {
            item.take_if(|item| *item == Ok(Reply::Deferred));
        }
    }
    Ok(Decoded { facts, items })
}

fn main_keys(op: &Op) -> impl Iterator<Item = &str> {
    let locks = op.lock_keys().into_iter().flat_map(LockKeys::all);
    op.own_key().into_iter().chain(locks.map(LockKeys::lock))
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

fn reply(from: &mut Reader, op: &Op, code: i64, facts: &Facts) -> Result<Reply, Trouble> {
    let reply = match (op, code) {
        (_, WRONG_TYPE) => return Err(Trouble::Op(wrong_type(op))),
        (_, FULL) => return Err(Trouble::Op(faults::no_memory())),
        (_, LATE) if !op.is_undo() => return Err(Trouble::Op(NodeError::past_deadline())),
        (Op::Acquire { .. } | Op::Raise { .. } | Op::Extend { .. }, QUARANTINED) => {
            let id = QuarantineId { history: facts.history_id, since: facts.since };
            let began = facts.began;
            Reply::Quarantined { remaining: facts.quarantine, id, began }
        }
        (Op::Acquire { .. }, HELD | FOREIGN) => {
            Reply::Held { remaining: from.ttl()?, foreign: code == FOREIGN }
        }
        (_, DEFERRED) if op.shows_result() => Reply::Deferred,
        (Op::Acquire { mode: LockMode::Slot(_), .. }, 1..) => {
            Reply::Permit { fence: code.unsigned_abs(), slot: from.slot()? }
        }
        (Op::Enlist(_), 0..) => Reply::Candidates(from.candidates(code.unsigned_abs())?),
        (Op::Release { .. }, ABSENT) => Reply::Absent,
        (op, _) if shows(op) => return Err(garbage("an answer to another kind of question").into()),
        (Op::Release { .. } | Op::Extend { .. }, AS_ASKED) | (_, DONE) => Reply::Done,
        (_, NOT_OWNER) => Reply::NotOwner,
        _ => return Err(garbage("an answer to another kind of question").into()),
    };
    if let Some(e) = from.spoiled.take() {
        return Err(Trouble::Op(e));
    }
    in_range(reply).map_err(Trouble::Op)
}

fn in_range(reply: Reply) -> Result<Reply, NodeError> {
    if largest_token(&reply) >= EXACT_END {
        // From 2^53 on doubles do not represent every whole number, so the next holder's token
        // might not be larger.
        let detail = "this key holds a fencing token of 2^53 or more; delete it";
        return Err(NodeError::maybe_executed(NodeFault::Protocol, detail));
    }
    Ok(reply)
}

/// A fencing token or a list, and never `DONE` or `NOT_OWNER`.
fn shows(op: &Op) -> bool {
    matches!(op, Op::Acquire { .. } | Op::Enlist(_))
}

fn wrong_type(op: &Op) -> NodeError {
    NodeError::foreign(op.own_key().or(op.lock_keys().map(LockKeys::lock)).unwrap_or_default())
}

/// 0 if there is none. Those of a stored result are in range.
fn largest_token(reply: &Reply) -> u64 {
    match reply {
        Reply::Granted { fence } | Reply::Permit { fence, .. } | Reply::Claimed { fence, .. } => {
            *fence
        }
        Reply::Permits(all) => all.iter().map(|permit| permit.fence).max().unwrap_or(0),
        Reply::Holder(Some(holder)) => holder.fence,
        Reply::Readers(readers) => readers.fence,
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

    /// To a conditional write.
    fn answer(&mut self, write: &Write) -> Result<Answer, NodeError> {
        let Write { class, names, steps, look, .. } = write;
        let told = |step: &Step| matches!(step, Step::Take(_) | Step::Keep { .. });
        let (shows, tells) = (steps.contains(&Step::Show), steps.iter().any(told));
        Ok(match (self.code()?, look) {
            (AS_ASKED, _) if !steps.is_empty() && !shows => Answer::Ran(None),
            (RAN, _) if shows || tells => Answer::Ran(Some(self.bytes()?)),
            (NOT_RUN, Look::Record { .. }) => Answer::Not(self.maybe_bytes()?),
            (NOT_RUN, Look::Lock(extent)) => Answer::Shown(self.locks(*names, *extent)?),
            (REFUSED, Look::Lock(extent)) => Answer::Refused(self.locks(*names, *extent)?),
            (DEFERRED, Look::Lock(Extent { all: true, .. })) => Answer::Deferred,
            (WRONG_TYPE, Look::Record { .. }) => Answer::Foreign,
            (LATE, _) if *class != Class::Undo => Answer::Late,
            (FULL, _) if *class == Class::Grant => Answer::Full,
            _ => return Err(garbage("an answer to another kind of question")),
        })
    }

    /// To a run of acquires.
    fn granted(&mut self, run: &[Op]) -> Result<Vec<Answer>, NodeError> {
        if let Some(Value::Int(code @ (AS_ASKED | LATE))) = self.values.as_slice().first() {
            let all = if *code == LATE { Answer::Late } else { Answer::Ran(None) };
            self.values.next();
            return Ok(vec![all; run.len()]);
        }
        let extent = Extent { fence: true, ..Extent::default() };
        let one = |_| {
            Ok(match self.code()? {
                RAN => Answer::Ran(Some(self.bytes()?)),
                NOT_RUN => Answer::Shown(self.locks(1, extent)?),
                REFUSED => Answer::Refused(self.locks(1, extent)?),
                _ => return Err(garbage("an answer to another kind of question")),
            })
        };
        run.iter().map(one).collect()
    }

    /// To a run of releases, of which one may not have found what its owner had.
    fn released(&mut self, h: &Header, run: &[Op]) -> Result<Vec<Reply>, NodeError> {
        if let Some(Value::Int(AS_ASKED)) = self.values.as_slice().first() {
            self.values.next();
            return Ok(vec![Reply::Done; run.len()]);
        }
        let one = |op: &Op| {
            let (names, owner) = (op.lock_keys().into_iter().flat_map(LockKeys::all), op.owner());
            let own = || Main::Text(owner.map_or("", OwnerToken::as_str).into());
            let found = names.map(|_| match self.values.next() {
                Some(Value::Int(DONE)) => Ok(own()),
                Some(Value::Int(ABSENT)) => {
                    let another = OwnerToken::READERS;
                    Ok(Main::Readers(1, vec![(another, u64::MAX)]))
                }
                found => main(found),
            });
            Ok(locks::released(h, op, found.collect::<Result<_, _>>()?))
        };
        run.iter().map(one).collect()
    }

    fn locks(&mut self, names: usize, extent: Extent) -> Result<Vec<Shown>, NodeError> {
        (0..names).map(|_| self.lock(extent)).collect()
    }

    fn lock(&mut self, extent: Extent) -> Result<Shown, NodeError> {
        let main = match self.values.next() {
            Some(Value::Int(count @ 0..)) => {
                let all = self.number()?;
                let all = self.fitting(u32::try_from(all).ok(), "no number of readers");
                Main::Readers(all, self.grants(count)?)
            }
            found => main(found)?,
        };
        let left = self.integer()?;
        let fence = match self.values.next() {
            Some(Value::Nil) => Text::None,
            Some(Value::BulkString(text)) => Text::Is(text),
            Some(Value::Int(WRONG_TYPE)) => Text::Other,
            _ => return Err(garbage("no fence where it belongs")),
        };
        let meta = if extent.all { self.maybe_bytes()? } else { None };
        let kept = if extent.kept { self.maybe_bytes()? } else { None };
        let kept = kept.and_then(|digits| String::from_utf8(digits).ok()?.parse().ok());
        let queue = if extent.queue { self.bytes()? } else { Vec::new() };
        // Members or ends that none of ours has.
        let main = if self.spoiled.take().is_some() { Main::Other } else { main };
        Ok(Shown { main, left, fence, meta, kept, queue })
    }

    /// Readers, each with the end of its grant in ms.
    fn grants(&mut self, count: i64) -> Result<Vec<(OwnerToken, u64)>, NodeError> {
        let mut all = Vec::new();
        for _ in 0..count.min(i64::try_from(MAX_LISTED).unwrap_or(i64::MAX)) {
            all.push((self.owner()?, self.number()?));
        }
        Ok(all)
    }

    fn slot(&mut self) -> Result<u16, NodeError> {
        let n = self.integer()?;
        let slot = u16::try_from(n).ok().filter(|slot| *slot < Slots::MAX);
        Ok(self.fitting(slot, "no slot where one belongs"))
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
}

fn main(found: Option<Value>) -> Result<Main, NodeError> {
    Ok(match found {
        Some(Value::Nil) => Main::None,
        Some(Value::BulkString(text)) => Main::Text(text),
        Some(Value::Int(WRONG_TYPE)) => Main::Other,
        _ => return Err(garbage("no lock where it belongs")),
    })
}

pub(super) fn garbage(what: &str) -> NodeError {
    NodeError::maybe_executed(NodeFault::Protocol, format!("script answer: {what}"))
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests;
