//! What the script says is read as it is meant.

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
    let record = StoredRecord { token: FencingToken::new(4), value: Some(b"result"[..].into()) };
    let holder = Holder { owner: None, fence: 9, remaining: None, meta: Some(b"me"[..].into()) };
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
