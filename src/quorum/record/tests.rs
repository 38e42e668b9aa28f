//! Runs `testdata/{record,complete,look}.txt`: one history a line, the last step is the outcome.

use std::sync::Arc;
use std::time::Duration;

use super::{Record, Refusal, Step};
use crate::error::{NodeError, NodeFault};
use crate::op::{QuarantineId, RecordState, Reply, StoredRecord};
use crate::quorum::complete::{self, Complete, Found, Look};
use crate::time::Moment;
use crate::token::FencingToken;

fn num(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("not a number: {text}"))
}

fn ms(text: &str) -> Duration {
    Duration::from_millis(num(text))
}

/// `5a`: value a under ballot 5.
fn record(text: &str) -> StoredRecord {
    let (token, value) = text.split_at(text.len() - 1);
    StoredRecord { token: FencingToken::new(num(token)), value: Some(Arc::from(value.as_bytes())) }
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
        "grant" | "forgot" | "forgot-long" => {
            let mut parts = value.split('/');
            Reply::Claimed {
                fence: num(parts.next().unwrap()),
                attempt: num(parts.next().unwrap()) as u32,
                record: parts.next().map(record),
                unsure: ms(match word {
                    "grant" => "0",
                    "forgot" => "500",
                    _ => "900",
                }),
            }
        }
        "stored" => Reply::Completed(record(value)),
        "inflight" => Reply::InFlight { remaining: ms(value) },
        "quarantined" => {
            let id = QuarantineId { history: 1, since: 1 };
            Reply::Quarantined { remaining: ms(value), id, began_empty: false }
        }
        "mismatch" => Reply::Mismatch,
        "old" => Reply::TooOld,
        "done" => Reply::Done,
        "other" => Reply::NotOwner,
        "fault" => return Err(NodeError::maybe_executed(NodeFault::Timeout, "")),
        _ => panic!("unknown reply {word}"),
    })
}

fn told(step: Step) -> String {
    match step {
        Step::Wait(_) => "wait".into(),
        Step::Raise { token, nodes } => format!("raise {token} on {nodes:?}"),
        Step::Promised(p) => {
            let adopt = p.adopt.map_or(String::new(), |r| format!(" adopt {}", show(&r)));
            let forgotten =
                p.forgotten.map_or(String::new(), |d| format!(" forgotten {}", d.as_millis()));
            format!("promised {} attempt {}{adopt}{forgotten}", p.token, p.attempt)
        }
        Step::Replay(kept) => format!("replay {}", value(kept.as_deref())),
        Step::Repair(seen) => format!("repair {}", show(&seen)),
        Step::Refused(Refusal::InFlight { retry_after }) => {
            format!("in flight {}", retry_after.as_millis())
        }
        Step::Refused(Refusal::Contended { retry_after }) => {
            format!("contended {}", retry_after.as_millis())
        }
        Step::Refused(Refusal::Mismatch) => "mismatch".into(),
        Step::Refused(Refusal::TooOld) => "too old".into(),
        Step::Refused(Refusal::NoQuorum(_)) => "no quorum".into(),
    }
}

fn claims(n: usize, events: &str) -> String {
    let at = |text: &str| Moment::from_nanos(num(text) * 1_000_000);
    let mut machine = Record::new(n, at("0"), at("100"), ms("60"));
    let mut step = Step::Wait(at("100"));
    for event in events.split_whitespace() {
        let open = matches!(step, Step::Wait(_) | Step::Raise { .. });
        assert!(open, "decided before {event}: {step:?} in {events}");
        let (what, when) = event.rsplit_once('@').expect("an event has a time");
        step = match what.split_once(':') {
            Some((node, said)) => machine.on_reply(at(when), num(node) as usize, &reply(said)),
            None => machine.on_time(at(when)),
        };
    }
    told(step)
}

fn completes(n: usize, events: &str) -> String {
    let mut machine = Complete::new(n);
    let mut step = complete::Step::Wait;
    for event in events.split_whitespace() {
        step = if let Some((node, said)) = event.split_once(':') {
            machine.on_reply(num(node) as usize, &reply(said))
        } else {
            let nodes = format!("again={:?}", machine.again()).replace(' ', "");
            assert_eq!(nodes, event);
            complete::Step::Wait
        };
    }
    match step {
        complete::Step::Wait => "wait",
        complete::Step::Stored => "stored",
        complete::Step::Overtaken(_) => "overtaken",
        complete::Step::Unknown(_) => "unknown",
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
    Ok(Reply::Record { state, unsure: ms(unsure) })
}

fn looks(n: usize, events: &str) -> String {
    let mut machine = Look::new(n);
    let mut found = Found::Wait;
    for event in events.split_whitespace() {
        assert_eq!(found, Found::Wait, "decided before {event} in {events}");
        let (node, said) = event.split_once(':').expect("a node and what it says");
        found = machine.on_reply(num(node) as usize, &seen(said));
    }
    match found {
        Found::Wait => "wait".into(),
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
        Found::NoQuorum(_) => "no quorum".into(),
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
