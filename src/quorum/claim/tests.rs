//! Tests by `testdata/{record,complete,look}.txt`: on each line one history of nodes' answers, and
//! the machine's last step.

use std::sync::Arc;
use std::time::Duration;

use super::{Denied, Record, Refusal, Step};
use crate::error::{NodeError, NodeFault};
use crate::op::{Began, Loss, Op, QuarantineId, RecordState, Reply, StoredRecord, StoredSteps};
use crate::quorum::complete::{Complete, Found, Look};
use crate::quorum::tables::words;
use crate::quorum::{Machine, Progress};
use crate::time::Moment;
use crate::token::{FencingToken, OwnerToken};

fn num(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text}"))
}

fn ms(text: &str) -> Duration {
    Duration::from_millis(num(text))
}

/// `5a`: the value `a`, stored under ballot 5.
fn record(text: &str) -> StoredRecord {
    let (token, value) = text.split_at(text.len() - 1);
    StoredRecord { token: FencingToken::new(num(token)), value: Some(Arc::from(value.as_bytes())) }
}

/// `5ab`: the list `ab`, stored under ballot 5.
fn steps(text: &str) -> StoredSteps {
    let (token, list) = text.split_at(text.find(char::is_alphabetic).unwrap());
    StoredSteps { token: FencingToken::new(num(token)), list: Arc::from(list.as_bytes()) }
}

fn value(kept: Option<&[u8]>) -> String {
    kept.map_or("not kept".into(), |bytes| String::from_utf8_lossy(bytes).into_owned())
}

fn show(record: &StoredRecord) -> String {
    format!("{}{}", record.token, value(record.value.as_deref()))
}

fn reply(text: &str) -> Result<Reply, NodeError> {
    let (word, value) = text.split_once('=').unwrap_or((text, "0"));
    Ok(match word {
        "grant" | "forgot" | "forgot-long" | "fresh" => {
            let mut parts = value.split('/');
            let unsure = match word {
                "grant" => "0",
                "forgot" | "fresh" => "500",
                _ => "900",
            };
            let loss = (unsure != "0").then(|| Loss::between(0, num(unsure)));
            Reply::Claimed {
                fence: num(parts.next().unwrap()),
                attempt: num(parts.next().unwrap()) as u32,
                record: parts.next().filter(|part| *part != "-").map(record),
                steps: parts.next().map(steps),
                unsure: ms(unsure),
                losses: loss.into_iter().collect(),
                fresh: word == "fresh",
            }
        }
        "stored" => Reply::Completed(record(value)),
        "inflight" => Reply::InFlight { remaining: ms(value) },
        "quarantined" => {
            let id = QuarantineId { history: 1, since: 1 };
            Reply::Quarantined { remaining: ms(value), id, began: Began::Known }
        }
        "mismatch" => Reply::Mismatch,
        "old" => Reply::TooOld,
        "done" => Reply::Done,
        "other" => Reply::NotOwner,
        "fault" => return Err(NodeError::maybe_executed(NodeFault::Timeout, "")),
        _ => panic!("unknown reply {word}"),
    })
}

fn reported(step: Step) -> String {
    let decided = match step {
        Step::Wait(until) => return format!("wait {}", until.as_nanos() / 1_000_000),
        Step::Send(asks, until) => {
            let Op::RaiseClaim { token, .. } = asks[0].1 else { panic!("asks {asks:?}") };
            let until = until.as_nanos() / 1_000_000;
            return format!("raise {token} on {:?} until {until}", nodes(&asks));
        }
        Step::Decided(decided) => decided,
    };
    match decided {
        Ok(p) => {
            let adopt = p.adopt.map_or(String::new(), |r| format!(" adopt {}", show(&r)));
            let forgotten = p.forgotten.map_or(String::new(), |f| {
                let fresh = if f.fresh.is_empty() {
                    String::new()
                } else {
                    format!(" fresh {:?}", f.fresh)
                };
                let unheard = if f.unheard { " unheard" } else { "" };
                format!(" forgotten {}{fresh}{unheard}", f.remaining.as_millis())
            });
            let steps = p
                .steps
                .map_or(String::new(), |s| format!(" steps {}{}", s.token, value(Some(&s.list))));
            let past = format!("{adopt}{steps}{forgotten}");
            format!("promised {} attempt {}{past}", p.token, p.attempt)
        }
        Err(Denied::Replay(kept)) => format!("replay {}", value(kept.as_deref())),
        Err(Denied::Repair(seen)) => format!("repair {}", show(&seen)),
        Err(Denied::Refused(refusal)) => match refusal {
            Refusal::InFlight { retry_after } => format!("in flight {}", retry_after.as_millis()),
            Refusal::Contended { retry_after } => format!("contended {}", retry_after.as_millis()),
            Refusal::Mismatch => "mismatch".into(),
            Refusal::TooOld => "too old".into(),
            Refusal::NoQuorum(all) => format!("no quorum: {}", words(&all)),
        },
    }
}

fn nodes(asks: &[(usize, Op)]) -> Vec<usize> {
    asks.iter().map(|(node, _)| *node).collect()
}

fn raise() -> Op {
    let (owner, token) = (OwnerToken::from_random(1), FencingToken::new(0));
    Op::RaiseClaim { key: "k".into(), owner, token }
}

fn claims(n: usize, events: &str) -> String {
    let at = |text: &str| Moment::from_nanos(num(text) * 1_000_000);
    let mut machine = Record::new(n, at("0"), at("100"), ms("60"), raise());
    let mut step = machine.on_time(at("0"));
    for event in events.split_whitespace() {
        assert!(!matches!(step, Step::Decided(_)), "before {event}: {step:?} in {events}");
        let (what, when) = event.rsplit_once('@').expect("an event has a time");
        step = match what.split_once(':') {
            Some((node, answer)) => machine.on_reply(at(when), num(node) as usize, &reply(answer)),
            None => machine.on_time(at(when)),
        };
    }
    reported(step)
}

/// Must end by 100 ms. `again=[1]`: after a pause the machine asks node 1 again. `renewed=[1]`: the
/// caller renewed the claim, and the machine asks node 1 again.
fn completes(n: usize, events: &str) -> String {
    let end = Moment::default() + ms("100");
    let mut machine = Complete::new(n, raise(), end);
    let mut now = Moment::default();
    let mut step = machine.on_time(now);
    for event in events.split_whitespace() {
        if let Some((node, answer)) = event.split_once(':') {
            step = machine.on_reply(now, num(node) as usize, &reply(answer));
            continue;
        }
        if event == "end" {
            step = machine.on_time(end);
            continue;
        }
        if matches!(step, Progress::Decided(_)) {
            assert!(machine.take_refusal(), "decided before {event} in {events}");
            if event.starts_with("renewed") {
                machine.renewed(now);
            }
            step = machine.on_time(now);
        }
        if let Progress::Wait(at) = step {
            now = at;
            step = machine.on_time(now);
        }
        if let Progress::Send(asks, _) = &step {
            let nodes = format!("{:?}", nodes(asks)).replace(' ', "");
            assert_eq!(Some(&*nodes), event.split_once('=').map(|(_, nodes)| nodes), "{events}");
        }
    }
    match step {
        Progress::Wait(at) if at < end => "pause",
        Progress::Wait(_) | Progress::Send(..) => "wait",
        Progress::Decided(Ok(())) => "stored",
        Progress::Decided(Err(why)) if why.overtaken => "overtaken",
        Progress::Decided(Err(why)) => return format!("unknown: {}", words(&why.nodes)),
    }
    .into()
}

fn seen(text: &str) -> Result<Reply, NodeError> {
    let (word, value) = text.split_once('=').unwrap_or((text, "0"));
    let state = |attempt, lease, record| RecordState { fence: 5, attempt, lease, record };
    let (state, unsure) = match word {
        "none" => (None, "0"),
        "lost" => (None, value),
        "held" => {
            let (attempt, lease) = value.split_once('/').unwrap();
            let lease = (lease != "-").then(|| ms(lease));
            (Some(state(num(attempt) as u32, lease, None)), "0")
        }
        "stored" => (Some(state(1, None, Some(record(value)))), "0"),
        _ => return reply(text),
    };
    Ok(Reply::Record { state, unsure: ms(unsure), losses: Vec::new() })
}

fn looks(n: usize, events: &str) -> String {
    let mut machine = Look::new(n, Moment::default() + ms("100"));
    let mut found = machine.on_time(Moment::default());
    for event in events.split_whitespace() {
        assert!(!matches!(found, Progress::Decided(_)), "decided before {event} in {events}");
        let (node, answer) = event.split_once(':').unwrap_or((event, ""));
        found = match event {
            "end" => machine.on_time(Moment::default() + ms("100")),
            _ => machine.on_reply(Moment::default(), num(node) as usize, &seen(answer)),
        };
    }
    let found = match found {
        Progress::Decided(found) => found,
        Progress::Wait(until) => return format!("wait {}", until.as_nanos() / 1_000_000),
        Progress::Send(..) => return "asks".into(),
    };
    match found {
        Found::Stored(r) => format!("stored {}", value(r.value.as_deref())),
        Found::Open { attempt, lease: Some(left), .. } => {
            format!("running {attempt} {}", left.as_millis())
        }
        Found::Open { partial: true, .. } => "unsettled".into(),
        Found::Open { attempt: 0, forgotten: Some(left), .. } => {
            format!("forgotten {}", left.as_millis())
        }
        Found::Open { attempt: 0, .. } => "absent".into(),
        Found::Open { attempt, .. } => format!("lapsed {attempt}"),
        Found::Mismatch => "mismatch".into(),
        Found::NoQuorum(all) => format!("no quorum: {}", words(&all)),
    }
}

fn check(table: &str, run: impl Fn(usize, &str) -> String) {
    let lines = table.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#'));
    let wrong: Vec<String> = lines
        .filter_map(|line| {
            let (history, want) = line.split_once(" -> ").expect("a line has an outcome");
            let (n, events) = history.split_once(' ').expect("n= and events");
            let got = run(num(n.trim_start_matches("n=")) as usize, events);
            (got != want).then(|| format!("{line}\n    got: {got}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn claims_decide_as_the_table_says() {
    check(include_str!("../testdata/record.txt"), claims);
}

#[test]
fn completions_decide_as_the_table_says() {
    check(include_str!("../testdata/complete.txt"), completes);
}

#[test]
fn looks_find_what_the_table_says() {
    check(include_str!("../testdata/look.txt"), looks);
}

#[test]
fn the_losses_of_all_nodes_that_do_not_remember_are_named() {
    let named = |replies: [Result<Reply, NodeError>; 3]| {
        let at = |text: &str| Moment::from_nanos(num(text) * 1_000_000);
        let mut machine = Record::new(3, at("0"), at("100"), ms("60"), raise());
        let mut step = machine.on_time(at("0"));
        for (node, reply) in replies.iter().enumerate() {
            step = machine.on_reply(at("1"), node, reply);
        }
        let Step::Decided(Ok(promise)) = step else { panic!("{step:?}") };
        promise.forgotten.map(|f| f.losses.iter().map(|loss| loss.to).collect::<Vec<_>>())
    };
    let with = |losses: &[u64]| {
        let mut answer = reply("forgot=7/1");
        if let Ok(Reply::Claimed { losses: named, .. }) = &mut answer {
            *named = losses.iter().map(|to| Loss::between(1, *to)).collect();
        }
        answer
    };
    let knows = || reply("grant=7/1");
    assert_eq!(named([with(&[5, 6]), with(&[6, 9]), knows()]), Some(vec![5, 6, 9]));
    assert_eq!(named([with(&[5]), knows(), knows()]), None, "a majority remembers");
    assert_eq!(named([with(&[5]), with(&[6]), with(&[7])]), Some(vec![5, 6, 7]));
    assert_eq!(named([with(&[5]), with(&[]), with(&[7])]), Some(vec![]), "one does not say which");
}

#[test]
fn the_largest_fence_that_was_granted_is_known() {
    let (start, end) = (Moment::default(), Moment::default() + ms("100"));
    let mut machine = Record::new(3, start, end, ms("60"), raise());
    assert_eq!(machine.largest(), None);
    for (node, answer) in ["grant=9/1", "forgot=7/1", "inflight=50"].into_iter().enumerate() {
        machine.on_reply(start, node, &reply(answer));
        assert_eq!(machine.largest(), Some(9));
    }
}

#[test]
fn a_refusal_of_a_result_is_looked_into_once() {
    let refusals = |words: &[&str]| {
        let mut machine = Complete::new(3, raise(), Moment::default() + ms("100"));
        for (node, answer) in words.iter().enumerate() {
            machine.on_reply(Moment::default(), node, &reply(answer));
        }
        [machine.take_refusal(), machine.take_refusal()]
    };
    assert_eq!(refusals(&["done", "fault"]), [false, false]);
    assert_eq!(refusals(&["done", "other"]), [true, false]);
}
