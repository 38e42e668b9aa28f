//! Tests by text tables, one history of nodes' answers a line: `n=3 0:grant=7@1 1:held=500@2 t@50
//! -> outcome`: node 0 grants token 7 at 1 ms, node 1 answers at 2 ms that the lock is held for 500
//! ms, a timer fires at 50 ms.

use std::time::Duration;

use crate::error::{NodeError, NodeFault, NodeOutcome};
use crate::name::LockKeys;
use crate::op::{Ballot, Began, LockMode, Op, QuarantineId, Reply, Slots};
use crate::quorum::acquire::{Acquire, Loss, Outcome, Settled, settle};
use crate::quorum::extend::{Extend, Extension, Times};
use crate::quorum::grant::{Known, Quarantine};
use crate::quorum::release::{Found, Release};
use crate::quorum::slots::AcquireSlot;
use crate::quorum::{Machine, Progress};
use crate::time::Moment;
use crate::token::{FencingToken, OwnerToken};

struct Event {
    node: Option<usize>,
    at: Moment,
    reply: Result<Reply, NodeError>,
}

struct Case {
    n: usize,
    events: Vec<Event>,
    expect: String,
    line: String,
}

fn ms(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text}"))
}

fn reply(text: &str) -> Result<Reply, NodeError> {
    let (word, value) = text.split_once('=').unwrap_or((text, "0"));
    if let ("permit", Some((fence, slot))) = (word, value.split_once('/')) {
        return Ok(Reply::Permit { fence: ms(fence), slot: ms(slot) as u16 });
    }
    let span = Duration::from_millis(if value == "never" { 0 } else { ms(value) });
    match word {
        "grant" => Ok(Reply::Granted { fence: ms(value) }),
        "held" if value == "never" => Ok(Reply::Held { remaining: None, foreign: false }),
        "held" => Ok(Reply::Held { remaining: Some(span), foreign: false }),
        "foreign" => Ok(Reply::Held { remaining: None, foreign: true }),
        "quarantined" => {
            let id = QuarantineId { history: 1, since: 1 };
            Ok(Reply::Quarantined { remaining: span, id, began: Began::Known })
        }
        "done" => Ok(Reply::Done),
        "absent" => Ok(Reply::Absent),
        "other" => Ok(Reply::NotOwner),
        "fault" => Err(NodeError::maybe_executed(NodeFault::Timeout, "")),
        "late" => Err(NodeError::not_executed(NodeFault::PastDeadline, "")),
        _ => panic!("unknown reply {word}"),
    }
}

fn cases(table: &str) -> Vec<Case> {
    let lines = table.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#'));
    lines
        .map(|line| {
            let (history, expect) = line.split_once("->").expect("a line has an outcome");
            let mut words = history.split_whitespace();
            let n = ms(words.next().and_then(|w| w.strip_prefix("n=")).expect("n= first")) as usize;
            let events = words.map(|word| {
                let (what, at) = word.rsplit_once('@').expect("an event has a time");
                let at = Moment::from_nanos(ms(at) * 1_000_000);
                match what.split_once(':') {
                    Some((node, r)) => Event { node: Some(ms(node) as usize), at, reply: reply(r) },
                    None => Event { node: None, at, reply: Ok(Reply::Done) },
                }
            });
            Case { n, events: events.collect(), expect: expect.trim().into(), line: line.into() }
        })
        .collect()
}

fn at(millis: u64) -> Moment {
    Moment::from_nanos(millis * 1_000_000)
}

fn attempt(n: usize) -> Acquire {
    let (owner, token) = (OwnerToken::from_random(1), FencingToken::new(0));
    let raise = Op::Raise { keys: LockKeys::new("k"), owner, token, slot: None };
    Acquire::new(n, at(0), at(100), Duration::from_millis(60), raise)
}

fn shown(moment: Moment) -> u64 {
    moment.as_nanos() / 1_000_000
}

pub(super) fn words(outcomes: &[NodeOutcome]) -> String {
    let word = |outcome: &NodeOutcome| match outcome {
        NodeOutcome::Silent => "silent",
        NodeOutcome::Granted => "granted",
        NodeOutcome::Held(_) => "held",
        NodeOutcome::Quarantined { .. } => "quarantined",
        NodeOutcome::Refused => "refused",
        NodeOutcome::Failed(_) => "failed",
    };
    outcomes.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn check(table: &str, run: impl Fn(&Case) -> String) {
    let wrong: Vec<String> = cases(table)
        .iter()
        .map(|case| (case, run(case)))
        .filter(|(case, got)| *got != case.expect)
        .map(|(case, got)| format!("{}\n    got: {got}", case.line))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn run<M: Machine>(mut machine: M, case: &Case) -> Progress<M::Decision> {
    let mut last = machine.on_time(at(0));
    for e in &case.events {
        last = match e.node {
            Some(node) => machine.on_reply(e.at, node, &e.reply),
            None => machine.on_time(e.at),
        };
        if matches!(last, Progress::Decided(_)) {
            break;
        }
    }
    last
}

#[test]
fn acquire() {
    check(include_str!("testdata/acquire.txt"), |case| attempted(run(attempt(case.n), case)));
}

#[test]
fn acquire_awaiting_all() {
    let attempt = |n| attempt(n).awaiting_all(true);
    check(include_str!("testdata/await_all.txt"), |case| attempted(run(attempt(case.n), case)));
}

#[test]
fn acquire_taken_if_refused() {
    let attempt = |n| attempt(n).taken_if_refused(true);
    let table = include_str!("testdata/taken_if_refused.txt");
    check(table, |case| attempted(run(attempt(case.n), case)));
}

#[test]
fn acquire_slot() {
    let acquire = Op::Acquire {
        mode: LockMode::Slot(Slots::any(4)),
        keys: LockKeys::new("k"),
        owner: OwnerToken::from_random(1),
        ttl: Duration::from_millis(100),
        proposal: 1,
        if_held: None,
    };
    check(include_str!("testdata/slots.txt"), |case| {
        let machine = AcquireSlot::new(attempt(case.n), acquire.clone());
        match run(machine, case) {
            Progress::Decided(Ok((token, slot))) => format!("won slot {slot} with {token}"),
            Progress::Decided(Err(lost)) => attempted(Progress::Decided(Err(lost))),
            Progress::Wait(until) => format!("wait {}", shown(until)),
            Progress::Send(asks, until) => {
                let ask = |(node, op): &(usize, Op)| match op {
                    Op::Raise { token, slot: Some(slot), .. } => {
                        format!("raise {node} slot {slot} to {token}")
                    }
                    Op::Acquire { mode, .. } => {
                        let slot = mode.slots().and_then(Slots::slot).expect("a move has a slot");
                        format!("move {node} to {slot}")
                    }
                    op => panic!("asks {op:?}"),
                };
                let asks: Vec<_> = asks.iter().map(ask).collect();
                format!("{} until {}", asks.join(", "), shown(until))
            }
        }
    });
}

#[test]
fn a_node_that_has_not_answered_is_told_the_slot_if_it_may_choose_another() {
    for (of, strays) in [(1, vec![]), (2, vec![2])] {
        let acquire = Op::Acquire {
            mode: LockMode::Slot(Slots::any(of)),
            keys: LockKeys::new("k"),
            owner: OwnerToken::from_random(1),
            ttl: Duration::from_millis(100),
            proposal: 1,
            if_held: None,
        };
        let mut machine = AcquireSlot::new(attempt(3), acquire);
        let permit = Ok(Reply::Permit { fence: 7, slot: 0 });
        machine.on_reply(at(1), 0, &permit);
        let last = machine.on_reply(at(2), 1, &permit);
        assert!(matches!(last, Progress::Decided(Ok(_))), "{last:?}");
        assert_eq!(machine.strays().collect::<Vec<_>>(), strays, "{of} slots");
    }
}

fn attempted(step: Progress<Outcome>) -> String {
    match step {
        Progress::Wait(until) => format!("wait {}", shown(until)),
        Progress::Send(asks, until) => {
            let Op::Raise { token, .. } = asks[0].1 else { panic!("asks {asks:?}") };
            let nodes: Vec<_> = asks.iter().map(|(node, _)| *node).collect();
            format!("raise {token} on {nodes:?} until {}", shown(until))
        }
        Progress::Decided(Ok(t)) => format!("won {t}"),
        Progress::Decided(Err(Loss::NoQuorum(all))) => format!("no quorum: {}", words(&all)),
        Progress::Decided(Err(Loss::Taken(t))) => {
            let foreign = if t.foreign { ", foreign" } else { "" };
            match t.retry_after {
                Some(d) => format!("taken {}{foreign}", d.as_millis()),
                None => format!("taken for ever{foreign}"),
            }
        }
    }
}

#[test]
fn extend() {
    let (owner, token, ttl) =
        (OwnerToken::from_random(1), FencingToken::new(1), Duration::from_millis(100));
    let keys = LockKeys::new("k");
    let op = Op::Extend {
        mode: LockMode::Exclusive,
        keys,
        owner,
        ttl,
        token,
        meta: None,
        reassert: None,
    };
    // In ms: the old validity ends at 60, the new one would at 100; the machine waits until 40;
    // each node has confirmed until 70; no lease is longer than 100.
    let ms = Duration::from_millis;
    let times = Times { old: at(60), new: at(100), deadline: at(40), max_ttl: ms(100) };
    let known = |_| Known { until: at(60), confirmed_until: at(70), quarantine: None };
    check(include_str!("testdata/extend.txt"), |case| {
        match run(Extend::new(case.n, op.clone(), times, known), case) {
            Progress::Decided(Extension::Until(until)) => format!("until {}", shown(until)),
            Progress::Decided(Extension::Lost) => "lost".into(),
            Progress::Decided(Extension::Unknown(all)) => format!("unknown: {}", words(&all)),
            Progress::Wait(until) => format!("wait {}", shown(until)),
            Progress::Send(asks, _) => match &asks[..] {
                [(node, op)] if op.reasserts() => format!("reassert on {node}"),
                [(node, _)] => format!("again on {node}"),
                _ => panic!("asks {asks:?}"),
            },
        }
    });
}

#[test]
fn a_quarantine_that_is_known_is_named_by_the_first_request() {
    let key = std::sync::Arc::from("k");
    let (owner, token) = (OwnerToken::from_random(1), FencingToken::new(1));
    let (lease, retention) = (Duration::from_millis(100), Duration::from_secs(1));
    let op = Op::ExtendClaim {
        ballot: Ballot { key, owner, token, retention, fingerprint: None },
        lease,
        reassert: None,
    };
    let times = Times { old: at(60), new: at(100), deadline: at(40), max_ttl: lease };
    let id = QuarantineId { history: 1, since: 1 };
    let known = |node| Known {
        until: at(60),
        confirmed_until: at(if node == 1 { 10 } else { 70 }),
        quarantine: (node < 2).then_some(Quarantine { id, ends: at(150) }),
    };
    let asks = Extend::new(3, op, times, known).ask_all(at(1));
    assert_eq!(asks.iter().map(|(_, op)| op.reasserts()).collect::<Vec<_>>(), [true, false, false]);
}

#[test]
fn an_extension_is_over_with_the_new_validity_too() {
    let (owner, token, ttl) =
        (OwnerToken::from_random(1), FencingToken::new(1), Duration::from_millis(100));
    let op = Op::Extend {
        mode: LockMode::Exclusive,
        keys: LockKeys::new("k"),
        owner,
        ttl,
        token,
        meta: None,
        reassert: None,
    };
    let times = Times { old: at(100), new: at(60), deadline: at(90), max_ttl: ttl };
    let mut machine = Extend::new(1, op, times, |_| Known::default());
    assert_eq!(machine.on_reply(at(59), 0, &reply("done")), {
        Progress::Decided(Extension::Until(at(60)))
    });
    let late = machine.on_reply(at(60), 0, &reply("done"));
    assert!(matches!(late, Progress::Decided(Extension::Unknown(_))), "{late:?}");
}

#[test]
fn a_node_that_never_granted_is_not_waited_for() {
    let mut machine = Release::new(3, at(100));
    machine.never_granted(0);
    assert_eq!(machine.on_time(at(1)), Progress::Wait(at(100)));
    assert_eq!(machine.on_reply(at(2), 1, &reply("absent")), Progress::Decided(Found::Gone));
}

#[test]
fn the_largest_fence_that_was_granted_is_known() {
    let mut machine = attempt(3);
    assert_eq!(machine.largest(), None);
    for (node, answer, largest) in [(0, "grant=9", 9), (1, "grant=7", 9), (2, "held=5", 9)] {
        machine.on_reply(at(1), node, &reply(answer));
        assert_eq!(machine.largest(), Some(largest));
    }
}

#[test]
fn release() {
    check(include_str!("testdata/release.txt"), |case| {
        match run(Release::new(case.n, at(100)), case) {
            Progress::Decided(Found::Released) => "released".into(),
            Progress::Decided(Found::Gone) => "gone".into(),
            Progress::Decided(Found::Other) => "other".into(),
            Progress::Decided(Found::Unknown(all)) => format!("unknown: {}", words(&all)),
            Progress::Wait(until) => format!("pending {}", shown(until)),
            Progress::Send(..) => "asks".into(),
        }
    });
}

#[test]
fn fence() {
    for line in include_str!("testdata/fence.txt").lines().filter(|l| !l.starts_with('#')) {
        let (left, expect) = line.split_once("->").expect("a line has an outcome");
        let mut words = left.split_whitespace();
        let n = ms(words.next().and_then(|w| w.strip_prefix("n=")).expect("n= first")) as usize;
        let outcome = match settle(n, words.map(ms)) {
            Settled::Agreed(t) => format!("agreed {t}"),
            Settled::Raise(t) => format!("raise {t}"),
        };
        assert_eq!(outcome, expect.trim(), "{line}");
    }
}

/// In any order of the replies.
#[test]
fn acquire_wins_only_with_a_majority_at_the_token() {
    use proptest::prelude::*;
    let vote = prop_oneof![
        4 => (1_u64..4).prop_map(|f| Ok(Reply::Granted { fence: f })),
        1 => Just(Ok(Reply::Held { remaining: None, foreign: false })),
        1 => Just(Err(NodeError::maybe_executed(NodeFault::Timeout, ""))),
    ];
    let history = (1_usize..6).prop_flat_map(move |n| {
        (Just(n), proptest::collection::vec((0..n, 0_u64..130, vote.clone()), 0..12))
    });
    proptest!(|((n, events) in history)| {
        let mut m = attempt(n);
        let mut fences = vec![None; n];
        let mut seen = vec![false; n];
        let mut now = 0;
        for (node, dt, r) in events {
            now = (now + dt / 8).min(130);
            if !seen[node] {
                seen[node] = true;
                if let Ok(Reply::Granted { fence }) = &r { fences[node] = Some(*fence); }
            }
            match m.on_reply(at(now), node, &r) {
                Progress::Decided(Ok(t)) => {
                    prop_assert!(now < 100);
                    let holders = fences.iter().flatten().filter(|f| **f <= t.get()).count();
                    prop_assert!(holders > n / 2);
                    break;
                }
                Progress::Send(asks, _) => {
                    for (i, op) in asks {
                        let Op::Raise { token, .. } = op else { panic!("asks {op:?}") };
                        prop_assert!(fences[i].is_some_and(|f| f < token.get()));
                    }
                    break;
                }
                Progress::Decided(Err(_)) => break,
                Progress::Wait(_) => {}
            }
        }
    });
}
