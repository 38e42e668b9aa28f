//! Tests of decoding the answers of the Lua script that nodes run for each batch.

use super::*;
use crate::env::SystemEnv;
use crate::name::LockKeys;
use crate::node::lineage::{Asked, Change, Losses, Marker, Note, ReplicationId};
use crate::op::{Holder, IfHeld, Loss, Remembered, Terms};

fn ops() -> Vec<Op> {
    let keys = LockKeys::new("k");
    let owner = OwnerToken::from_random(1);
    vec![
        Op::Acquire {
            mode: LockMode::Exclusive,
            keys: keys.clone(),
            owner,
            ttl: Duration::from_secs(1),
            proposal: 1,
            if_held: Some(IfHeld::Watch),
        },
        Op::Release { mode: LockMode::Exclusive, keys: keys.clone(), owner, meta: false },
        Op::Inspect { keys, wait: false },
    ]
}

/// Makes a connection that expects the marker of a history with the name 255, which began at 7 ms
/// with a quarantine of 1,063 ms.
pub(super) fn known(since: u64, quarantine: u64) -> (Judging, Arc<Seen>) {
    let born = Marker::born(0, 0, 255, ReplicationId::of(255));
    let losses = Losses::default().and(Loss::between(0, since));
    let marker = Marker { since, quarantine, losses, ..born };
    let asked = Asked {
        max_ttl: Duration::ZERO,
        clock_error: Duration::ZERO,
        window: Duration::ZERO,
        longest_window: Duration::ZERO,
        trust_fresh: false,
        allow_eviction: false,
        durable: false,
        disturbed: None,
        epoch: None,
        remembers: Remembered::default(),
        name: 1,
    };
    let change = Change { begun: true, ..Change::default() };
    let judging = Judging::new("run".into(), "at".into(), Arc::new(SystemEnv));
    (judging, Arc::new(Seen::new(&marker, change, asked, None)))
}

/// Makes the values with which an answer begins: the server's clock and the note.
pub(super) fn header(micros: u64) -> Vec<Value> {
    let note = Note { history: 255, generation: 1, seq: 3, micros };
    let text = format!("{note} {:013}", 0);
    vec![Value::Int(i64::try_from(micros).unwrap()), Value::BulkString(text.into())]
}

fn read(answer: Value, ops: &[Op]) -> Result<Replies, NodeError> {
    let (judging, seen) = known(0, 0);
    read_under((&judging, &seen), answer, ops)
}

/// Reads the answer as that to a client which believes nothing.
pub(super) fn read_under(
    (judging, seen): (&Judging, &Arc<Seen>),
    answer: Value,
    ops: &[Op],
) -> Result<Replies, NodeError> {
    let terms = Terms { max_ttl: Duration::from_secs(1), clock_error: Duration::ZERO };
    let remembers = Remembered::default();
    let batch = Batch { terms, not_after: None, remembers, ops: ops.to_vec() };
    let h = seen.header(seen.facts(9, Noted::default(), &judging.identity), terms.max_ttl);
    let plans = judging.beliefs.lock().plan_all(&h, ops);
    let again = NodeError::not_executed(NodeFault::Busy, "another plan");
    Ok(replies(answer, &batch, &plans, judging, seen)?.or_fail(&again).replies())
}

#[test]
fn a_batch_is_read_in_order() {
    let mut all = header(1_000_000);
    let text = |s: &str| Value::BulkString(s.into());
    all.extend([Value::Int(0), Value::Nil, Value::Int(-2), Value::Nil, Value::Nil]);
    all.extend([Value::Int(0), text("not ours"), Value::Int(-1), text("9"), text("me")]);
    let (judging, seen) = known(7, 1_063);
    let got = read_under((&judging, &seen), Value::Array(all), &ops()).unwrap();
    let facts = got.facts.unwrap();
    assert_eq!((facts.history_id, facts.new_history), (255, true));
    assert_eq!(facts.quarantine, Duration::from_millis(70));
    let items: Vec<Reply> = got.items.into_iter().map(Result::unwrap).collect();
    let holder = Holder { owner: None, fence: 9, remaining: None, meta: Some(b"me"[..].into()) };
    assert!(matches!(items[0], Reply::Quarantined { .. }), "{items:?}");
    assert_eq!(items[1..], [Reply::Absent, Reply::Holder(Some(holder))]);
}

#[test]
fn a_strangers_key_spoils_its_own_op_only() {
    let mut all = header(1_000_000);
    let text = |s: &str| Value::BulkString(s.into());
    all.extend([Value::Int(0), Value::Nil, Value::Int(-2), text("no number"), Value::Int(1)]);
    let got = read(Value::Array(all), &ops()[..2]).unwrap();
    let e = got.items[0].as_ref().unwrap_err();
    assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::ForeignKey, false));
    assert!(e.to_string().contains("\"{k}:fence\""), "{e}");
    assert_eq!(got.items[1], Ok(Reply::Done));
}

#[test]
fn a_grant_without_memory_fails_alone() {
    let mut all = header(1_000_000);
    all.extend([Value::Int(-16), Value::Int(1)]);
    let got = read(Value::Array(all), &ops()[..2]).unwrap();
    let e = got.items[0].as_ref().unwrap_err();
    assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::Server, false));
    assert!(e.to_string().contains("raise maxmemory"), "{e}");
    assert_eq!(got.items[1], Ok(Reply::Done));
}

#[test]
fn a_run_that_went_as_asked_says_so_once() {
    let keys = LockKeys::new("k");
    let owner = OwnerToken::from_random(1);
    let acquire = |proposal| {
        let ttl = Duration::from_secs(1);
        Op::Acquire {
            mode: LockMode::Exclusive,
            keys: keys.clone(),
            owner,
            ttl,
            proposal,
            if_held: None,
        }
    };
    let release = Op::Release { mode: LockMode::Exclusive, keys: keys.clone(), owner, meta: false };
    let ops = [acquire(7), acquire(9), release.clone(), release, acquire(8)];
    let mut all = header(1_000_000);
    let text = |s: &str| Value::BulkString(s.into());
    all.extend([Value::Int(-9), Value::Int(1), Value::Nil, Value::Int(1), text("12")]);
    let got = read(Value::Array(all), &ops).unwrap();
    let granted = |fence| Ok(Reply::Granted { fence });
    let want = [granted(7), granted(9), Ok(Reply::Done), Ok(Reply::Absent), granted(12)];
    assert_eq!(got.items, want);
    // The code -9 (all was executed as requested) is an error in the middle of the answers to a run
    // (acquires that are sent as one), and as the answer to a read.
    let middle = [&header(1_000_000)[..], &[Value::Int(1), text("7"), Value::Int(-9)]].concat();
    assert!(read(Value::Array(middle), &ops[..2]).is_err());
    let inspect = [Op::Inspect { keys: keys.clone(), wait: false }];
    let other = [&header(1_000_000)[..], &[Value::Int(-9)]].concat();
    assert!(read(Value::Array(other), &inspect).is_err());
}

#[test]
fn readers_of_a_run_have_one_fence() {
    let (keys, owner) = (LockKeys::new("k"), OwnerToken::from_random(1));
    let (mode, ttl) = (LockMode::Shared, Duration::from_secs(1));
    let acquire = Op::Acquire { mode, keys: keys.clone(), owner, ttl, proposal: 7, if_held: None };
    let release = Op::Release { mode, keys, owner, meta: false };
    let ops = [acquire.clone(), acquire, release.clone(), release];
    let of = |values: &[Value]| read(Value::Array([&header(1_000_000), values].concat()), &ops);
    let (int, text) = (Value::Int, |s: &str| Value::BulkString(s.into()));
    let granted = |fence| Ok(Reply::Granted { fence });
    let got = of(&[int(1), text("5"), int(-9)]).unwrap();
    assert_eq!(got.items, [granted(5), granted(5), Ok(Reply::Done), Ok(Reply::Done)]);
    let got = of(&[int(-9), int(1), int(-1)]).unwrap();
    assert_eq!(got.items, [granted(7), granted(7), Ok(Reply::Done), Ok(Reply::Absent)]);
    let other = OwnerToken::from_random(2);
    let held = [int(2), text(other.as_str()), int(9), Value::Nil, text("")];
    let got = of(&[&held[..], &[int(-9)]].concat()).unwrap();
    let remaining = Some(Duration::from_millis(9));
    let held = Ok(Reply::Held { remaining, foreign: false });
    assert_eq!(got.items, [held.clone(), held, Ok(Reply::Done), Ok(Reply::Done)]);
    let wrong = [
        vec![int(-9), int(-9), int(-9)],
        vec![int(-9), int(5)],
        vec![int(1), int(-9)],
        vec![int(-9), int(1), int(-9)],
        vec![int(-9), int(5), int(-9)],
    ];
    for wrong in wrong {
        assert!(of(&wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn the_release_of_several_locks_has_one_reply() {
    let (names, owner) = (["a", "b", "c"].map(LockKeys::new), OwnerToken::from_random(1));
    let (mode, keys) = (LockMode::Exclusive, LockKeys::many(names.to_vec()));
    let ops = [Op::Release { mode, keys, owner, meta: false }];
    // 0 stands for a name without a key.
    let of = |values: &[i64]| {
        let value = |n: &i64| if *n == 0 { Value::Nil } else { Value::Int(*n) };
        let values: Vec<_> = values.iter().map(value).collect();
        Some(
            read(Value::Array([header(1_000_000), values].concat()), &ops)
                .ok()?
                .items
                .remove(0)
                .unwrap(),
        )
    };
    assert_eq!(of(&[-9]), Some(Reply::Done));
    assert_eq!(of(&[1, 1, 1]), Some(Reply::Done));
    assert_eq!(of(&[1, 0, 1]), Some(Reply::Absent));
    assert_eq!(of(&[0, -5, 1]), Some(Reply::NotOwner));
    for wrong in [&[1, 1][..], &[1, 1, 1, 1], &[1, -9, 1], &[1, 7, 0], &[-9, -9]] {
        assert_eq!(of(wrong), None, "{wrong:?}");
    }
}

#[test]
fn the_clock_or_the_note_alone_says_that_all_is_as_expected() {
    let keys = LockKeys::new("k");
    let (owner, ttl) = (OwnerToken::from_random(1), Duration::from_secs(1));
    let release = Op::Release { mode: LockMode::Exclusive, keys: keys.clone(), owner, meta: false };
    let if_held = Some(IfHeld::Watch);
    let acquire = Op::Acquire {
        mode: LockMode::Exclusive,
        keys: keys.clone(),
        owner,
        ttl,
        proposal: 7,
        if_held,
    };
    let ops = [release.clone(), release, acquire];
    let note = header(2_000_000).remove(1);
    for (answer, seq) in [(note, 3), (Value::Int(2_000_000), 0)] {
        let got = read(answer, &ops).unwrap();
        assert_eq!(got.items, [Ok(Reply::Done), Ok(Reply::Done), Ok(Reply::Granted { fence: 7 })]);
        let facts = got.facts.unwrap();
        assert_eq!((facts.node_micros, facts.history_id, facts.since), (2_000_000, 255, 0));
        assert_eq!((facts.quarantine, facts.lineage.seq), (Duration::ZERO, seq));
    }
    // Neither answers a read.
    assert!(read(Value::Int(2_000_000), &[Op::Inspect { keys, wait: false }]).is_err());
    for wrong in ["", "x", &"0".repeat(67)] {
        assert!(read(Value::BulkString(wrong.into()), &ops).is_err(), "{wrong}");
    }
}

#[test]
fn too_many_answers_are_garbage_too() {
    let mut all = header(1_000_000);
    all.extend([Value::Nil, Value::Int(1)]);
    let ops = &ops()[1..2];
    assert!(read(Value::Array(all), ops).is_err());
    assert!(read(Value::Okay, ops).is_err());
}
