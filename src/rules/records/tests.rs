//! Tests of the rule of records. Each line of `testdata/records.txt` has a record, an op, the reply
//! and what the record becomes; the head of the table explains its words.

use std::fmt::Write as _;

use super::*;
use crate::op::Loss;
use crate::rules::tests::{NOW, header, ms, num, owner, text};

/// Time until which a record is kept, in ms, where a line does not say it.
const KEPT: u64 = 3_011;

fn owner_shown(own: Option<OwnerToken>) -> &'static str {
    let is = |name: &&str| own == Some(owner(name));
    if own.is_none() { "-" } else { ["a", "b", "c"].into_iter().find(is).expect("an owner") }
}

fn fingerprint(text: &str) -> FingerprintBytes {
    [text.as_bytes()[0]; 32]
}

fn two(text: &str) -> (FencingToken, Option<Arc<[u8]>>) {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (token, value) = text.split_at(digits);
    (FencingToken::new(num(token)), (!value.is_empty()).then(|| Arc::from(value.as_bytes())))
}

fn row(h: &Header, words: &str) -> Option<Row> {
    let mut words = words.split_whitespace();
    let (own, fence) = words.next().filter(|word| *word != "none")?.split_once('@').expect("@");
    let (own, fence) = ((own != "-").then(|| owner(own)), num(fence));
    let (promised_in, expires) = (Some(h.id()), KEPT * 1_000_000);
    let mut row = Row { own, fence, promised_in, expires, ..Row::default() };
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("till", at) => row.till = Some(num(at) * 1_000_000),
            ("n", count) => row.attempt = u32::try_from(num(count)).expect("a count"),
            ("fp", name) => row.fingerprint = Some(fingerprint(name)),
            ("result", both) => {
                let (token, value) = two(both);
                row.result = Some(StoredRecord { token, value });
            }
            ("steps", both) => {
                let (token, list) = two(both);
                row.steps = Some(StoredSteps { token, list: list.expect("a list") });
            }
            ("old", _) => row.promised_in = Some(QuarantineId { history: 1, since: 0 }),
            ("nowhere", _) => row.promised_in = None,
            ("kept", at) => row.expires = num(at) * 1_000_000,
            _ => panic!("unknown word {word}"),
        }
    }
    Some(row)
}

fn op(h: &Header, words: &str) -> Op {
    let mut words = words.split_whitespace();
    let kind = words.next().expect("an op");
    let mut c = Claim {
        key: "key".into(),
        owner: owner("a"),
        lease: Duration::from_millis(500),
        retention: Duration::from_secs(2),
        proposal: NOW * 1_000,
        fingerprint: None,
        force: false,
        born: None,
        accepted: Duration::ZERO,
        created: None,
        wait: false,
    };
    let (mut token, mut value, mut reassert, mut end) = (0, None, None, ClaimEnd::Lapsed);
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("lease", span) => c.lease = ms(span),
            ("retention", span) => c.retention = ms(span),
            ("proposal", token) => c.proposal = num(token),
            ("fp", name) => c.fingerprint = Some(fingerprint(name)),
            ("force", _) => c.force = true,
            ("born", at) => c.born = Some(num(at)),
            ("created", at) => c.created = Some(num(at)),
            ("accepts", span) => c.accepted = ms(span),
            ("waits", _) => c.wait = true,
            ("value" | "list", bytes) => value = Some(Arc::from(bytes.as_bytes())),
            ("names", history) => {
                reassert = Some(QuarantineId { history: num(history), since: h.facts.since });
            }
            ("undone", _) => end = ClaimEnd::Undone,
            ("repeatable", _) => end = ClaimEnd::Repeatable,
            ("lapsed", _) => end = ClaimEnd::Lapsed,
            _ => {
                let (own, ballot) = word.split_once('@').unwrap_or((word, "0"));
                (c.owner, token) = (owner(own), num(ballot));
            }
        }
    }
    let Claim { key, owner, lease, retention, fingerprint, born, accepted, .. } = c.clone();
    let token = FencingToken::new(token);
    let ballot = Ballot { key: Arc::clone(&key), owner, token, retention, fingerprint };
    match kind {
        "claim" => Op::Claim(c),
        "raise" => Op::RaiseClaim { key, owner, token },
        "extend" => Op::ExtendClaim { ballot, lease, reassert },
        "complete" => Op::Complete { ballot, value },
        "steps" => Op::Steps { ballot, list: value.expect("a list") },
        "unclaim" => Op::Unclaim { key, owner, end },
        "lookup" => Op::Lookup { key, retention, fingerprint, born, accepted },
        _ => panic!("unknown op {kind}"),
    }
}

fn stored(result: Option<&StoredRecord>, steps: Option<&StoredSteps>) -> String {
    let mut shown = String::new();
    if let Some(StoredRecord { token, value }) = result {
        let _ = write!(shown, " result={token}{}", value.as_deref().map(text).unwrap_or_default());
    }
    if let Some(StoredSteps { token, list }) = steps {
        let _ = write!(shown, " steps={token}{}", text(list));
    }
    shown
}

fn doubts(unsure: Duration, losses: &[Loss]) -> String {
    assert_eq!(unsure.is_zero(), losses.is_empty());
    if losses.is_empty() { String::new() } else { format!(" unsure={}", unsure.as_millis()) }
}

fn reply_shown(reply: &Reply) -> String {
    match reply {
        Reply::Claimed { fence, attempt, record, steps, unsure, losses, fresh } => {
            let fresh = if *fresh { " fresh" } else { "" };
            let stored = stored(record.as_ref(), steps.as_ref());
            format!("claimed {fence} n={attempt}{stored}{}{fresh}", doubts(*unsure, losses))
        }
        Reply::Completed(result) => format!("completed{}", stored(Some(result), None)),
        Reply::InFlight { remaining } => format!("in-flight {}", remaining.as_millis()),
        Reply::Quarantined { remaining, .. } => format!("quarantined {}", remaining.as_millis()),
        Reply::Record { state, unsure, losses } => {
            let state = state.as_ref().map_or("none".to_owned(), |s| {
                let lease = s.lease.map(|lease| format!(" lease={}", lease.as_millis()));
                let (lease, result) = (lease.unwrap_or_default(), stored(s.record.as_ref(), None));
                format!("{} n={}{lease}{result}", s.fence, s.attempt)
            });
            format!("record {state}{}", doubts(*unsure, losses))
        }
        Reply::Done => "done".to_owned(),
        Reply::NotOwner => "not-owner".to_owned(),
        Reply::Absent => "absent".to_owned(),
        Reply::Mismatch => "mismatch".to_owned(),
        Reply::TooOld => "too-old".to_owned(),
        other => panic!("{other:?}"),
    }
}

fn row_shown(h: &Header, row: &Row) -> String {
    let mut shown = format!("{}@{}", owner_shown(row.own), row.fence);
    let mut say = |applies: bool, word: String| shown.extend(applies.then_some(word));
    let millis = |nanos: u64| nanos / 1_000_000;
    say(row.till.is_some(), format!(" till={}", millis(row.till.unwrap_or(0))));
    say(true, format!(" n={}", row.attempt));
    let name = row.fingerprint.map(|fp| text(&fp[..1])).unwrap_or_default();
    say(row.fingerprint.is_some(), format!(" fp={name}"));
    say(true, stored(row.result.as_ref(), row.steps.as_ref()));
    say(row.promised_in.is_none(), " nowhere".to_owned());
    say(row.promised_in.is_some_and(|id| id != h.id()), " old".to_owned());
    say(row.expires != KEPT * 1_000_000, format!(" kept={}", millis(row.expires)));
    shown
}

struct Case {
    line: &'static str,
    h: Header,
    row: Option<Row>,
    op: Op,
    expect: &'static str,
}

fn cases() -> impl Iterator<Item = Case> {
    let lines = include_str!("../testdata/records.txt").lines();
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| {
        let (before, expect) = line.split_once(" -> ").expect("a line has an outcome");
        let (before, op_words) = before.split_once(" | ").expect("a record and an op");
        let (node, row_words) = before.split_once(": ").unwrap_or(("", before));
        let h = header(node);
        let (row, op) = (row(&h, row_words), op(&h, op_words));
        Case { line, h, row, op, expect }
    })
}

#[test]
fn what_an_op_makes_of_a_record() {
    let wrong = cases().filter_map(|Case { line, h, row, op, expect }| {
        let ruling = decide(&h, &op, row.as_ref());
        let mut got = reply_shown(&ruling.reply);
        match ruling.waiters {
            Waiters::Stay => {}
            Waiters::Join => got += ", waits",
            Waiters::Wake => got += ", wakes",
        }
        if let Some(row) = &ruling.row {
            let _ = write!(got, " | {}", row_shown(&h, row));
        }
        (got != expect).then(|| format!("{line}\n    got: {got}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_request_that_arrives_twice_changes_nothing_more() {
    for Case { line, h, row, op, .. } in cases() {
        let Some(first) = decide(&h, &op, row.as_ref()).row else { continue };
        let again = decide(&h, &op, Some(&first)).row;
        assert_eq!(again.unwrap_or_else(|| first.clone()), first, "{line}");
    }
}
