//! What the script answers, as [`Replies`]. Anything that does not fit is a fault of its own and
//! never a panic: the batch may have run.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::encode::runs;
use crate::error::{NodeError, NodeFault};
use crate::node::recall::Recall;
use crate::op::{Facts, Holder, Op, QuarantineId, RecordState, Replies, Reply, StoredRecord};
use crate::token::{FencingToken, OwnerToken};

const DONE: i64 = 1;
const NOT_OWNER: i64 = 0;
const ABSENT: i64 = -1;
const QUARANTINED: i64 = -2;
const HELD: i64 = -3;
const FOREIGN: i64 = -4;
const WRONG_TYPE: i64 = -5;
const MISMATCH: i64 = -6;
const COMPLETED: i64 = -7;
const IN_FLIGHT: i64 = -8;
/// Each of a run did what it was asked for: the script then says so once.
const AS_ASKED: i64 = -9;
const LATE: i64 = -10;
const TOO_OLD: i64 = -11;
const DEFERRED: i64 = -12;

/// Tokens are smaller: up to here doubles hold every whole number.
const TOKEN_END: u64 = 1 << 53;

/// Decodes the answer to `ops`. `window` (L) and `clock_error` say what a server that lost data may
/// have forgotten.
pub(crate) fn replies(
    answer: Value,
    ops: &[Op],
    identity: &Arc<str>,
    (window, clock_error): (Duration, Duration),
) -> Result<Replies, NodeError> {
    let Value::Array(items) = answer else { return Err(garbage("not an array")) };
    let mut from = Reader(items.into_iter());
    let facts = facts(&mut from, identity)?;
    let recall = Recall::new(facts.since, window, clock_error, facts.node_micros / 1_000);
    let mut items = Vec::with_capacity(ops.len());
    for run in runs(ops) {
        let first = from.integer()?;
        for (i, op) in run.iter().enumerate() {
            let code = match first {
                _ if i == 0 => first,
                AS_ASKED => AS_ASKED,
                _ => from.integer()?,
            };
            if code == AS_ASKED && first != AS_ASKED {
                return Err(garbage("the rest of a run as asked"));
            }
            match reply(&mut from, op, code, (&facts, recall)) {
                Ok(reply) => items.push(Ok(reply)),
                Err(Trouble::Op(e)) => items.push(Err(e)),
                Err(Trouble::Answer(e)) => return Err(e),
            }
        }
    }
    if from.0.next().is_some() {
        return Err(garbage("more answers than questions"));
    }
    Ok(Replies { facts: Some(facts), items })
}

/// What an answer says of the server, apart from the facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// It keeps a backlog, that is, has or had replicas: without one no other server ever goes on
    /// from its history.
    pub(crate) backlog: bool,
    /// Somebody may wait for a hint there.
    pub(crate) awaited: bool,
}

pub(crate) fn standing(answer: &Value) -> Standing {
    let bits = match answer {
        Value::Array(items) => items.get(4),
        _ => None,
    };
    match bits {
        Some(Value::Int(bits)) => Standing { backlog: bits & 8 != 0, awaited: bits & 16 != 0 },
        _ => Standing::default(),
    }
}

/// The length of the data history, from the answer to `ROLE`; `None` if that is no master's.
pub(crate) fn offset(role: &Value) -> Option<u64> {
    let Value::Array(items) = role else { return None };
    let master = match items.first()? {
        Value::BulkString(word) => word == b"master",
        Value::SimpleString(word) => word == "master",
        _ => false,
    };
    match items.get(1)? {
        Value::Int(n) if master => u64::try_from(*n).ok(),
        _ => None,
    }
}

fn facts(from: &mut Reader, identity: &Arc<str>) -> Result<Facts, NodeError> {
    let node_micros = from.number()?;
    let generation = from.bytes()?;
    // Exactly what the script cuts out: less would be another generation.
    let generation = std::str::from_utf8(&generation)
        .ok()
        .filter(|hex| hex.len() == 16 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
        .and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .ok_or_else(|| garbage("no generation"))?;
    let quarantine = Duration::from_millis(from.number()?);
    let quarantine_len = Duration::from_millis(from.number()?);
    let marker = from.number()?;
    if marker > 63 {
        return Err(garbage("no marker bits"));
    }
    let since = from.number()?;
    Ok(Facts {
        node_micros,
        generation,
        since,
        identity: Arc::clone(identity),
        quarantine,
        quarantine_len,
        // What was asked is not in the answer; who asked puts it in.
        quarantine_asked: quarantine_len,
        new_generation: marker & 1 != 0,
        marker_missing: marker & 2 != 0,
        began_empty: marker & 32 != 0,
        quarantine_raised: marker & 4 != 0,
        predecessor: None,
        offset: None,
    })
}

/// What is wrong: this op's key, or the whole answer.
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
    (facts, recall): (&Facts, Recall),
) -> Result<Reply, Trouble> {
    let reply = match (op, code) {
        (_, WRONG_TYPE) => {
            let detail = "WRONGTYPE: another program's value stands under a key of this op";
            return Err(Trouble::Op(NodeError::not_executed(NodeFault::Server, detail)));
        }
        (_, LATE) if !op.is_undo() => return Err(Trouble::Op(NodeError::past_deadline())),
        (
            Op::Acquire { .. }
            | Op::Raise { .. }
            | Op::Extend { .. }
            | Op::Claim(_)
            | Op::ExtendClaim { .. },
            QUARANTINED,
        ) => {
            let id = QuarantineId { history: facts.generation, since: facts.since };
            let began_empty = facts.began_empty;
            Reply::Quarantined { remaining: facts.quarantine, id, began_empty }
        }
        (Op::Acquire { .. }, HELD | FOREIGN) => {
            Reply::Held { remaining: from.ttl()?, foreign: code == FOREIGN }
        }
        (
            Op::Claim(_) | Op::ExtendClaim { .. } | Op::Complete { .. } | Op::Lookup { .. },
            MISMATCH,
        ) => Reply::Mismatch,
        (Op::Claim(_), TOO_OLD) => Reply::TooOld,
        (_, DEFERRED) if op.shows_result() => Reply::Deferred,
        (Op::Claim(_), IN_FLIGHT) => {
            Reply::InFlight { remaining: Duration::from_millis(from.number()?) }
        }
        (Op::Claim(_) | Op::RaiseClaim { .. } | Op::ExtendClaim { .. }, COMPLETED) => {
            let rf = from.number()?;
            Reply::Completed(from.record(rf)?)
        }
        (Op::Acquire { proposal, .. }, AS_ASKED) => Reply::Granted { fence: *proposal },
        (Op::Acquire { .. }, 1..) => Reply::Granted { fence: code.unsigned_abs() },
        (Op::Claim(c), 1..) => {
            from.claimed(code.unsigned_abs(), recall.unsure(c.born, c.retention))?
        }
        (Op::Inspect { .. }, ABSENT) => Reply::Holder(None),
        (Op::Inspect { .. }, 0..) => Reply::Holder(Some(from.holder(code.unsigned_abs())?)),
        (Op::Lookup { retention, born, .. }, ABSENT | 0..) => {
            let fence = u64::try_from(code).ok();
            let state = fence.map(|fence| from.state(fence)).transpose()?;
            Reply::Record { state, unsure: recall.unsure(*born, *retention) }
        }
        (Op::Release { .. } | Op::Unclaim { .. }, ABSENT) => Reply::Absent,
        (Op::Acquire { .. } | Op::Claim(_) | Op::Inspect { .. } | Op::Lookup { .. }, _) => {
            return Err(garbage("an answer to another kind of question").into());
        }
        (Op::Release { .. }, AS_ASKED) | (_, DONE) => Reply::Done,
        (_, NOT_OWNER) => Reply::NotOwner,
        _ => return Err(garbage("an answer to another kind of question").into()),
    };
    if largest_token(&reply) >= TOKEN_END {
        // The script counts in doubles: from here on the next holder's token would not be larger.
        let detail = "a fencing token of 2^53 or more stands under this key; delete it";
        return Err(Trouble::Op(NodeError::maybe_executed(NodeFault::Protocol, detail)));
    }
    Ok(reply)
}

/// The largest number in it that orders holders.
fn largest_token(reply: &Reply) -> u64 {
    let of = |record: &Option<StoredRecord>| record.as_ref().map_or(0, |r| r.token.get());
    match reply {
        Reply::Granted { fence } => *fence,
        Reply::Claimed { fence, record, .. } => of(record).max(*fence),
        Reply::Completed(record) => record.token.get(),
        Reply::Holder(Some(holder)) => holder.fence,
        Reply::Record { state: Some(state), .. } => of(&state.record).max(state.fence),
        _ => 0,
    }
}

struct Reader(std::vec::IntoIter<Value>);

impl Reader {
    /// A whole number, as an integer or in digits (the script passes a fence on as it came).
    fn integer(&mut self) -> Result<i64, NodeError> {
        match self.0.next() {
            Some(Value::Int(n)) => Ok(n),
            Some(Value::BulkString(digits)) => std::str::from_utf8(&digits)
                .ok()
                .and_then(|d| d.parse().ok())
                .ok_or_else(|| garbage("no number where one belongs")),
            _ => Err(garbage("no integer where one belongs")),
        }
    }

    fn number(&mut self) -> Result<u64, NodeError> {
        u64::try_from(self.integer()?).map_err(|_| garbage("a negative number"))
    }

    /// PTTL: -1 without expiry; -2 (gone this moment) counts as zero.
    fn ttl(&mut self) -> Result<Option<Duration>, NodeError> {
        Ok(match self.integer()? {
            -1 => None,
            -2 => Some(Duration::ZERO),
            ms => Some(Duration::from_millis(u64::try_from(ms).map_err(|_| garbage("no time"))?)),
        })
    }

    fn maybe_bytes(&mut self) -> Result<Option<Vec<u8>>, NodeError> {
        match self.0.next() {
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
        match self.number()? {
            0 => Ok(None),
            rf => self.record(rf).map(Some),
        }
    }

    fn attempt(&mut self) -> Result<u32, NodeError> {
        u32::try_from(self.integer()?).map_err(|_| garbage("no attempt number"))
    }

    fn holder(&mut self, fence: u64) -> Result<Holder, NodeError> {
        let owner = self.maybe_bytes()?.and_then(|v| OwnerToken::parse(&v));
        let remaining = self.ttl()?;
        let meta = self.maybe_bytes()?.map(Into::into);
        Ok(Holder { owner, fence, remaining, meta })
    }

    fn state(&mut self, fence: u64) -> Result<RecordState, NodeError> {
        let attempt = self.attempt()?;
        let lease = self.ttl()?;
        Ok(RecordState { fence, attempt, lease, record: self.maybe_record()? })
    }

    fn claimed(&mut self, fence: u64, unsure: Duration) -> Result<Reply, NodeError> {
        let attempt = self.attempt()?;
        Ok(Reply::Claimed { fence, attempt, record: self.maybe_record()?, unsure })
    }
}

fn garbage(what: &str) -> NodeError {
    NodeError::maybe_executed(NodeFault::Protocol, format!("script answer: {what}"))
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::name::LockKeys;

    fn ops() -> Vec<Op> {
        let keys = LockKeys::new("k");
        let owner = OwnerToken::from_random(1);
        let key: Arc<str> = "r".into();
        let token = FencingToken::new(5);
        vec![
            Op::Acquire {
                keys: keys.clone(),
                owner,
                ttl: Duration::from_secs(1),
                proposal: 1,
                wait: true,
            },
            Op::Release { keys: keys.clone(), owner, words: true },
            Op::Inspect { keys, wait: false },
            Op::RaiseClaim { key: Arc::clone(&key), owner, token },
            Op::Lookup { key, retention: Duration::from_secs(1), fingerprint: None, born: Some(8) },
        ]
    }

    /// No window, and clocks that are right.
    const EXACT: (Duration, Duration) = (Duration::ZERO, Duration::ZERO);

    fn header() -> Vec<Value> {
        vec![
            Value::Int(1_000_000),
            Value::BulkString(b"00000000000000ff".to_vec()),
            Value::Int(70),
            Value::Int(30_000),
            Value::Int(1),
            Value::Int(7),
        ]
    }

    #[test]
    fn a_batch_is_read_in_order() {
        let mut all = header();
        let text = |s: &str| Value::BulkString(s.into());
        all.extend([Value::Int(41), Value::Int(-1)]);
        all.extend([Value::Int(9), Value::Nil, Value::Int(-1), text("me")]);
        all.extend([Value::Int(-7), Value::Int(4), text("result")]);
        all.extend([Value::Int(4), Value::Int(2), Value::Int(-1), Value::Int(0)]);
        let got = replies(Value::Array(all), &ops(), &"run".into(), EXACT).unwrap();
        let facts = got.facts.unwrap();
        assert_eq!((facts.generation, facts.new_generation), (255, true));
        assert_eq!(facts.quarantine, Duration::from_millis(70));
        let items: Vec<Reply> = got.items.into_iter().map(Result::unwrap).collect();
        let record =
            StoredRecord { token: FencingToken::new(4), value: Some(b"result"[..].into()) };
        let holder =
            Holder { owner: None, fence: 9, remaining: None, meta: Some(b"me"[..].into()) };
        let state = RecordState { fence: 4, attempt: 2, lease: None, record: None };
        let want = vec![
            Reply::Granted { fence: 41 },
            Reply::Absent,
            Reply::Holder(Some(holder)),
            Reply::Completed(record),
            // Born after 7 ms, when the history began.
            Reply::Record { state: Some(state), unsure: Duration::ZERO },
        ];
        assert_eq!(items, want);
    }

    #[test]
    fn a_strangers_key_spoils_its_own_op_only() {
        let mut all = header();
        all.extend([Value::Int(-5), Value::Int(1)]);
        let got = replies(Value::Array(all), &ops()[..2], &"run".into(), EXACT).unwrap();
        let e = got.items[0].as_ref().unwrap_err();
        assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::Server, false));
        assert_eq!(got.items[1], Ok(Reply::Done));
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            (-10_i64..10).prop_map(Value::Int),
            any::<i64>().prop_map(Value::Int),
            proptest::collection::vec(any::<u8>(), 0..24).prop_map(Value::BulkString),
            Just(Value::Okay),
            Just(Value::Boolean(false)),
        ];
        leaf.prop_recursive(2, 16, 8, |inner| {
            proptest::collection::vec(inner, 0..8).prop_map(Value::Array)
        })
    }

    proptest! {
        #[test]
        fn garbage_is_a_fault_that_may_have_run(
            tail in proptest::collection::vec(any_value(), 0..20),
            with_header in any::<bool>(),
        ) {
            let mut all = if with_header { header() } else { Vec::new() };
            all.extend(tail);
            match replies(Value::Array(all), &ops(), &"run".into(), EXACT) {
                Ok(r) => prop_assert_eq!(r.items.len(), 5),
                Err(e) => {
                    prop_assert!(e.is_ambiguous());
                    prop_assert_eq!(e.fault(), NodeFault::Protocol);
                }
            }
        }
    }

    #[test]
    fn a_run_that_went_as_asked_says_so_once() {
        let keys = LockKeys::new("k");
        let owner = OwnerToken::from_random(1);
        let acquire = |proposal| {
            let ttl = Duration::from_secs(1);
            Op::Acquire { keys: keys.clone(), owner, ttl, proposal, wait: false }
        };
        let release = Op::Release { keys: keys.clone(), owner, words: false };
        let ops = [acquire(7), acquire(9), release.clone(), release, acquire(8)];
        let mut all = header();
        all.extend([Value::Int(-9), Value::Int(1), Value::Int(-1), Value::Int(12)]);
        let got = replies(Value::Array(all), &ops, &"run".into(), EXACT).unwrap();
        let granted = |fence| Ok(Reply::Granted { fence });
        let want = [granted(7), granted(9), Ok(Reply::Done), Ok(Reply::Absent), granted(12)];
        assert_eq!(got.items, want);
        // In the middle of a run it is no answer, and to other kinds neither.
        let middle = [&header()[..], &[Value::Int(7), Value::Int(-9)]].concat();
        assert!(replies(Value::Array(middle), &ops[..2], &"run".into(), EXACT).is_err());
        let inspect = [Op::Inspect { keys: keys.clone(), wait: false }];
        let other = [&header()[..], &[Value::Int(-9)]].concat();
        assert!(replies(Value::Array(other), &inspect, &"run".into(), EXACT).is_err());
    }

    #[test]
    fn how_the_server_stands_is_told_by_two_bits() {
        let with = |bits| {
            let mut all = header();
            all[4] = Value::Int(bits);
            standing(&Value::Array(all))
        };
        assert_eq!(with(7), Standing::default());
        assert_eq!(with(8), Standing { backlog: true, awaited: false });
        assert_eq!(with(17), Standing { backlog: false, awaited: true });
        assert_eq!(standing(&Value::Okay), Standing::default());
    }

    #[test]
    fn only_a_masters_role_tells_an_offset() {
        let role = |word: &str, n| Value::Array(vec![Value::BulkString(word.into()), n]);
        assert_eq!(offset(&role("master", Value::Int(41))), Some(41));
        assert_eq!(offset(&role("slave", Value::Int(41))), None);
        assert_eq!(offset(&role("master", Value::Int(-1))), None);
        assert_eq!(offset(&role("master", Value::Nil)), None);
        assert_eq!(offset(&Value::Array(Vec::new())), None);
        assert_eq!(offset(&Value::Okay), None);
    }

    #[test]
    fn too_many_answers_are_garbage_too() {
        let mut all = header();
        all.extend([Value::Int(-1), Value::Int(1)]);
        let ops = &ops()[1..2];
        assert!(replies(Value::Array(all), ops, &"run".into(), EXACT).is_err());
        assert!(replies(Value::Okay, ops, &"run".into(), EXACT).is_err());
    }
}
