//! Property tests of decoding the script's answers. No answer of a script causes a panic. A
//! malformed answer is an error which states that the batch may have run, and never a grant.
//! Replies that were read from an answer and are written again give the same answer.

mod op;

use proptest::prelude::*;

use self::op::op;
use super::*;
use crate::fuzzing::{any_number, any_value, config, corpus, mutated, text, value};
use crate::name::LockKeys;
use crate::op::{Ballot, Began, Claim, ClaimEnd, Enlist, Place};
use crate::token::FencingToken;

/// Letters of the kinds of ops that the tests generate (see `op`). Neighbours of the kinds `a`,
/// `d` or `G` form a run (ops that are sent as one).
const KINDS: &str = "EaaaddGGPYFU";
/// Of ops that are conditional writes.
const WRITES: &str = "CrxcsuLRXDIAOSH";
const SECOND: Duration = Duration::from_secs(1);
/// Makes the values with which an answer begins. The quarantine has 70 ms left.
fn header() -> Vec<Value> {
    super::tests::header(9)
}

/// Returns the values with which the script answers this reply. This function follows the heads of
/// the Lua files and not the decoder, so that the tests can compare the two.
fn wire_values(reply: &Reply) -> Vec<Value> {
    let n = |n: u64| Value::Int(i64::try_from(n).unwrap());
    let ms = |d: Duration| Value::Int(i64::try_from(d.as_millis()).unwrap());
    let ttl = |d: Option<Duration>| d.map_or(Value::Int(-1), ms);
    let bytes = |b: &[u8]| Value::BulkString(b.to_vec());
    match reply {
        Reply::Granted { fence } => vec![Value::Int(1), text(&fence.to_string())],
        Reply::Permit { fence, slot } => vec![n(*fence), n((*slot).into())],
        Reply::Held { remaining, foreign } => {
            vec![Value::Int(if *foreign { -4 } else { -3 }), ttl(*remaining)]
        }
        Reply::Quarantined { .. } => vec![Value::Int(-2)],
        Reply::Done => vec![Value::Int(1)],
        Reply::NotOwner => vec![Value::Int(0)],
        Reply::Absent => vec![Value::Int(-1)],
        Reply::Candidates(listed) => {
            let mut all = vec![n(listed.len() as u64)];
            for l in listed {
                all.extend([text(l.owner.as_str()), ms(l.remaining), bytes(&l.entry)]);
            }
            all
        }
        Reply::Deferred => vec![Value::Int(-12)],
        other => unreachable!("a reply about a record: {other:?}"),
    }
}

fn candidates() -> BoxedStrategy<Reply> {
    let owner = any::<u128>().prop_map(OwnerToken::from_random);
    let span = (0_u64..1 << 40).prop_map(Duration::from_millis);
    let text = proptest::collection::vec(any::<u8>(), 0..9).prop_map(Arc::<[u8]>::from);
    let one = (owner, span, text).prop_map(|(owner, remaining, entry)| Listed {
        owner,
        remaining,
        entry,
    });
    proptest::collection::vec(one, 0..4).prop_map(Reply::Candidates).boxed()
}

fn any_reply(kind: char) -> BoxedStrategy<Reply> {
    let fence = || 1_u64..1 << 53;
    let span = || (0_u64..1 << 40).prop_map(Duration::from_millis);
    let option = proptest::option::of::<BoxedStrategy<Duration>>;
    let quarantined = || {
        let remaining = Duration::from_millis(70);
        let id = QuarantineId { history: 255, since: 5 };
        Just(Reply::Quarantined { remaining, id, began: Began::Known }).boxed()
    };
    let plain = |all: &'static [Reply]| proptest::sample::select(all).boxed();
    let verdict = || plain(&[Reply::Done, Reply::NotOwner]);
    match kind {
        // Three of four replies are those of a success as the client requested it. So often all
        // replies of a run (ops that are sent as one) are such replies.
        'a' => prop_oneof![3 => Just(1), 1 => fence()]
            .prop_map(|fence| Reply::Granted { fence })
            .boxed(),
        'P' => {
            let permit = (fence(), 0..Slots::MAX);
            let permit = permit.prop_map(|(fence, slot)| Reply::Permit { fence, slot });
            let held = option(span().boxed())
                .prop_map(|remaining| Reply::Held { remaining, foreign: false });
            prop_oneof![permit, held, quarantined()].boxed()
        }
        'Y' | 'U' => prop_oneof![verdict(), quarantined()].boxed(),
        'd' => plain(&[Reply::Done]),
        'G' => plain(&[Reply::Done, Reply::Absent]),
        'F' => plain(&[Reply::Done, Reply::NotOwner, Reply::Absent]),
        _ => prop_oneof![3 => candidates(), 1 => plain(&[Reply::Deferred])].boxed(),
    }
}

/// Text in the form of a record, with any number in each field.
fn record() -> impl Strategy<Value = Vec<u8>> {
    let number = |width: usize| {
        let most = 10_u64.pow(u32::try_from(width).unwrap()) - 1;
        let edges = [0, 1, 9, 71_915, 1_790_000_000_000, (1 << 53) - 1, 1 << 53, most];
        let edges = edges.map(|edge| edge.min(most)).to_vec();
        prop_oneof![proptest::sample::select(edges), 0..=most]
            .prop_map(move |n| format!("{n:0width$}"))
    };
    let own =
        prop_oneof![Just(".".repeat(22)), Just(OwnerToken::from_random(1).as_str().to_owned())];
    let history = prop_oneof![Just("-".repeat(29)), number(13).prop_map(|n| "f".repeat(16) + &n)];
    let state = proptest::sample::select(vec!["-", "s", "r", "n"]);
    let waiters = proptest::sample::select(vec!["-", "w"]);
    let numbers = (number(16), number(9), number(16), number(8), number(13));
    (own, history, state, waiters, numbers, any::<bool>()).prop_map(
        |(own, history, state, waiters, (fence, attempt, ballot, len, till), is_empty)| {
            let none = ("0".repeat(16), "0".repeat(8));
            let (ballot, len) = if is_empty { none } else { (ballot, len) };
            let print = "-".repeat(33);
            format!("p1{own}{fence}{history}{attempt}{print}{state}{ballot}{len}{till}{waiters}")
                .into_bytes()
        },
    )
}

/// Generates kinds of ops, each with a valid reply.
fn batch() -> impl Strategy<Value = (Vec<char>, Vec<Reply>)> {
    let kind = proptest::sample::select(KINDS.chars().collect::<Vec<_>>());
    let one = kind.prop_flat_map(|kind| (Just(kind), any_reply(kind)));
    proptest::collection::vec(one, 1..8).prop_map(|all| all.into_iter().unzip())
}

/// Returns the number of ops at the beginning that form one run (are sent to the script as one).
fn run(kinds: &[char]) -> usize {
    let alike = kinds.iter().take_while(|k| **k == kinds[0]).count();
    if matches!(kinds[0], 'a' | 'd' | 'G') { alike } else { 1 }
}

/// Returns true if the reply is what the op requested.
fn as_asked(kind: char, reply: &Reply) -> bool {
    match kind {
        'a' => *reply == Reply::Granted { fence: 1 },
        'd' | 'G' | 'F' | 'Y' => *reply == Reply::Done,
        _ => false,
    }
}

fn spoken(mut kinds: &[char], mut replies: &[Reply]) -> Value {
    let mut all = header();
    while !kinds.is_empty() {
        let n = run(kinds);
        if replies[..n].iter().all(|r| as_asked(kinds[0], r)) {
            all.push(Value::Int(-9));
        } else {
            all.extend(replies[..n].iter().flat_map(wire_values));
        }
        (kinds, replies) = (&kinds[n..], &replies[n..]);
    }
    Value::Array(all)
}

/// Returns true if the replies in `read` are exactly those that the values of the answer, in
/// `stood`, mean.
fn stood_there(mut kinds: &[char], mut read: &[Reply], mut stood: &[Value]) -> bool {
    while !kinds.is_empty() {
        let n = run(kinds);
        if stood.first().is_some_and(|first| same(&Value::Int(-9), first)) {
            stood = &stood[1..];
            if !read[..n].iter().all(|r| as_asked(kinds[0], r)) {
                return false;
            }
        } else if matches!(kinds[0], 'd' | 'G') {
            let found = stood.iter().take(n);
            if stood.len() < n || !read[..n].iter().zip(found).all(|(r, found)| freed(r, found)) {
                return false;
            }
            stood = &stood[n..];
        } else if kinds[0] == 'a' {
            for reply in &read[..n] {
                match taken(reply, stood) {
                    Some(rest) => stood = rest,
                    None => return false,
                }
            }
        } else {
            for value in read[..n].iter().flat_map(wire_values) {
                match stood.split_first() {
                    Some((first, rest)) if same(&value, first) => stood = rest,
                    _ => return false,
                }
            }
        }
        (kinds, read) = (&kinds[n..], &read[n..]);
    }
    stood.is_empty()
}

/// Returns the values behind those of this reply to an acquire; `None` if they do not mean it. What
/// is shown of a lock in quarantine is refused, or the lock is the owner's.
fn taken<'v>(reply: &Reply, stood: &'v [Value]) -> Option<&'v [Value]> {
    let number = |v: &Value| match v {
        Value::Int(n) => Some(*n),
        Value::BulkString(b) => std::str::from_utf8(b).ok()?.parse().ok(),
        _ => None,
    };
    let (code, rest) = stood.split_first()?;
    match number(code)? {
        1 => {
            let Reply::Granted { fence } = reply else { return None };
            let told = number(rest.first()?).and_then(|n| u64::try_from(n).ok());
            (told == Some(*fence)).then(|| &rest[1..])
        }
        0 | 2 => {
            let values = match rest.first()? {
                Value::Int(count @ 0..) => 4 + 2 * (*count).min(64),
                _ => 3,
            };
            let is_refused = matches!(reply, Reply::Quarantined { .. } | Reply::Held { .. });
            rest.get(usize::try_from(values).ok()?..).filter(|_| is_refused)
        }
        _ => None,
    }
}

/// Returns true if a release has this reply that found this value.
fn freed(reply: &Reply, found: &Value) -> bool {
    let of_owner = |text: &[u8]| match OwnerToken::parse(text) {
        Some(owner) if owner == OwnerToken::from_random(1) => Reply::Done,
        Some(owner) if owner.is_ownerless() => Reply::Absent,
        _ => Reply::NotOwner,
    };
    match found {
        Value::Int(1) => *reply == Reply::Done,
        Value::Int(-5) => *reply == Reply::NotOwner,
        Value::Int(-1) | Value::Nil => *reply == Reply::Absent,
        Value::BulkString(text) => *reply == of_owner(text),
        _ => false,
    }
}

fn read(kinds: &[char], answer: Value) -> Result<Replies, NodeError> {
    let ops: Vec<Op> = kinds.iter().copied().map(op).collect();
    let (judging, seen) = super::tests::known(5, 65);
    super::tests::read_under((&judging, &seen), answer, &ops)
}

/// Returns true if two values mean the same. Digits mean a number, -2 (an expired key) means no
/// time left, and another program's value under a lock means no owner.
fn same(read: &Value, stood: &Value) -> bool {
    let number = |v: &Value| match v {
        Value::Int(n) => Some(*n),
        Value::BulkString(b) => std::str::from_utf8(b).ok()?.parse().ok(),
        _ => None,
    };
    let stranger = |v: &Value| matches!(v, Value::BulkString(b) if OwnerToken::parse(b).is_none());
    let gone = *read == Value::Int(0) && number(stood) == Some(-2);
    let nobody = *read == Value::Nil && (stranger(stood) || *stood == Value::Boolean(false));
    let digits = matches!(read, Value::Int(_)) && number(read) == number(stood);
    read == stood || gone || nobody || digits
}

fn check(kinds: &[char], answer: Value) -> Result<(), TestCaseError> {
    match read(kinds, answer.clone()) {
        Err(e) => {
            prop_assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::Protocol, true));
        }
        Ok(got) => {
            prop_assert_eq!(got.items.len(), kinds.len());
            let Ok(good) = got.items.into_iter().collect::<Result<Vec<_>, _>>() else {
                return Ok(());
            };
            let Value::Array(stood) = answer else {
                // The clock or the note alone: all was executed as requested.
                prop_assert!(kinds.iter().zip(&good).all(|(kind, reply)| as_asked(*kind, reply)));
                return Ok(());
            };
            prop_assert!(stood_there(kinds, &good, &stood[2..]), "{good:?} out of {stood:?}");
            prop_assert!(good.iter().all(|r| largest_token(r) < 1 << 53));
        }
    }
    Ok(())
}

#[test]
fn fuzz_corpus_is_never_an_answer() {
    for (line, json) in corpus(include_str!("../../../../tests/corpus/script.txt")) {
        let kind = json[0].as_str().and_then(|k| k.chars().next()).unwrap();
        let Value::Array(tail) = value(&json[1]) else { panic!("script.txt:{line}: no list") };
        let answer = Value::Array(header().into_iter().chain(tail).collect());
        let refused = match read(&[kind], answer) {
            Err(e) => e.is_ambiguous(),
            Ok(got) => got.items[0].as_ref().is_err_and(NodeError::is_ambiguous),
        };
        assert!(refused, "script.txt:{line}");
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn fuzz_valid_answers_are_read_as_they_were_meant((kinds, replies) in batch()) {
        let got = read(&kinds, spoken(&kinds, &replies)).unwrap();
        let got: Vec<Reply> = got.items.into_iter().map(Result::unwrap).collect();
        prop_assert_eq!(got, replies);
    }

    #[test]
    fn fuzz_hurt_answers_are_faults_or_mean_what_they_say(
        (kinds, answer) in batch().prop_flat_map(|(kinds, replies)| {
            let answer = spoken(&kinds, &replies);
            (Just(kinds), mutated(Just(answer)))
        }),
    ) {
        check(&kinds, answer)?;
    }

    #[test]
    fn fuzz_any_answer_is_a_fault_or_means_what_it_says(
        kinds in proptest::collection::vec(
            proptest::sample::select(KINDS.chars().collect::<Vec<_>>()), 1..4),
        (any, tail) in (any_value(), proptest::collection::vec(any_value(), 0..8)),
        with_header in any::<bool>(),
    ) {
        let answer = if with_header {
            Value::Array(header().into_iter().chain(tail).collect())
        } else {
            any
        };
        check(&kinds, answer)?;
    }

    #[test]
    fn fuzz_any_answer_to_a_conditional_write_is_a_fault_or_what_the_rule_says(
        kinds in proptest::collection::vec(
            proptest::sample::select(WRITES.chars().collect::<Vec<_>>()), 1..4),
        answers in proptest::collection::vec(
            (proptest::sample::select(vec![-16, -10, -9, -5, 0, 0, 0, 1, 2]), any_value()), 4),
        texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 4),
        records in proptest::collection::vec(record(), 4),
        kind in 0..3,
        clock in any_number(),
    ) {
        let text = |at: usize| Value::BulkString(texts[at].clone());
        let shown = |at: usize| Value::BulkString(records[at].clone());
        let values = kinds.iter().enumerate().flat_map(|(at, op)| {
            let (code, value) = &answers[at];
            let behind = match kind {
                0 => text(at),
                1 => value.clone(),
                _ => shown(at),
            };
            let behind = match op {
                'R' | 'X' | 'A' | 'H' => vec![behind, Value::Int(5), text(at)],
                'O' | 'S' | 'I' => vec![behind, Value::Int(5), text(at), text(at)],
                'D' => vec![behind, Value::Int(5), Value::Nil],
                _ => vec![behind],
            };
            [vec![Value::Int(*code)], if matches!(*code, 0 | 2) { behind } else { vec![] }].concat()
        });
        let mut values: Vec<_> = header().into_iter().chain(values).collect();
        let mut ran = header();
        if kind == 2 {
            values[0] = Value::Int(clock);
            ran[0] = Value::Int(clock);
        }
        ran.resize(ran.len() + kinds.len(), Value::Int(AS_ASKED));
        let ran = Value::Array(ran);
        // The second batch is planned on what the first answer showed.
        let (judging, seen) = super::tests::known(0, 0);
        let ops: Vec<_> = kinds.iter().copied().map(op).collect();
        for answer in [Value::Array(values), ran] {
            match super::tests::read_under((&judging, &seen), answer, &ops) {
                Err(e) => {
                    prop_assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::Protocol, true));
                }
                Ok(got) => prop_assert_eq!(got.items.len(), kinds.len()),
            }
        }
    }
}

/// Checks that a number out of range is an error of its op only, for each kind of op whose answer
/// contains numbers.
#[test]
fn a_number_out_of_range_spoils_its_own_op_only() {
    let bad = [
        ("P", vec![Value::Int(-3), Value::Int(-7)]),
        ("P", vec![Value::Int(-4), text("1e300")]),
        ("a", vec![Value::Int(1), text("9007199254740992")]),
    ];
    for (kind, values) in bad {
        let kinds: Vec<char> = format!("d{kind}E").chars().collect();
        let all = [header(), vec![Value::Nil], values.clone(), vec![Value::Int(0)]].concat();
        let got = read(&kinds, Value::Array(all)).unwrap_or_else(|e| panic!("{values:?}: {e}"));
        assert_eq!(got.items[0], Ok(Reply::Absent), "{values:?}");
        let e = got.items[1].as_ref().expect_err("it cannot be right");
        assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::Protocol, true), "{values:?}");
        assert_eq!(got.items[2], Ok(Reply::Candidates(Vec::new())), "{values:?}");
    }
}
