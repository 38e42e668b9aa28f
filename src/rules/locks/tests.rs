//! Tests of the rule of locks. Each line of `testdata/locks.txt` has what is under a name, an op,
//! the reply and what is there afterwards; the head of the table explains its words.

use std::fmt::Write as _;

use super::*;
use crate::name::LockKeys;
use crate::op::{Queued, Readers, Slots};
use crate::rules::tests::{NOW, header, ms, num, owner, text};

/// End of a fence that is used now, in ms; where a line does not say it, also that of a row.
const LIFE: &str = "2320";
/// End of the freshness of a place that is taken now, in ms.
const FRESH: &str = "4000";

fn at(text: &str) -> u64 {
    num(text) * 1_000_000
}

fn millis(nanos: u64) -> u64 {
    nanos / 1_000_000
}

fn small(text: &str) -> u16 {
    u16::try_from(num(text)).expect("a small number")
}

fn names() -> Vec<(String, OwnerToken)> {
    let (readers, kept) = (OwnerToken::READERS, OwnerToken::KEPT);
    let mut names = vec![("readers".to_owned(), readers), ("kept".to_owned(), kept)];
    names.extend(["a", "b", "c"].map(|text| (text.to_owned(), owner(text))));
    names.extend((1..=9).map(|n| (format!("w{n}"), OwnerToken::reserved_for(n))));
    names
}

fn named(text: &str) -> OwnerToken {
    let found = names().into_iter().find(|(name, _)| name == text);
    found.unwrap_or_else(|| panic!("no owner: {text}")).1
}

fn name(token: OwnerToken) -> String {
    names().into_iter().find(|(_, other)| *other == token).expect("an owner").0
}

fn timed(text: &str) -> (OwnerToken, u64) {
    let (owner, till) = text.split_once(':').expect("owner and end");
    (named(owner), at(till))
}

fn slot(text: &str) -> Slot {
    let (owner, rest) = text.split_once('@').expect("owner and fence");
    let (fence, till) = rest.split_once(':').unwrap_or((rest, "0"));
    let owner = (owner != "-").then(|| named(owner));
    Slot { owner, till: at(till), fence: num(fence) }
}

fn waiter(text: &str) -> Waiter {
    let parts: Vec<&str> = text.split(':').collect();
    let (mode, is_fair) = match parts[1] {
        "w" => (LockMode::Exclusive, false),
        "f" => (LockMode::Exclusive, true),
        "r" => (LockMode::Shared, false),
        permits => (LockMode::Slot(Slots::any(small(&permits[1..]))), false),
    };
    let since = num(parts[2]) * if is_fair { 1 } else { 1_000 };
    let fresh_till = at(parts.get(3).copied().unwrap_or(FRESH));
    Waiter { mode, place: place(num(parts[0]), Duration::ZERO), since, is_fair, fresh_till }
}

fn place(number: u64, waited: Duration) -> Place {
    Place { waiter: number, waited, needs: Duration::from_millis(20) }
}

fn row(h: &Header, words: &str) -> Row {
    let mut words = words.split_whitespace();
    let first = words.next().expect("a row");
    let Some((holder, fence)) = first.split_once('@') else {
        assert_eq!(first, "none");
        return Row::default();
    };
    let mut row = Row { fence: num(fence), fence_till: at(LIFE), ..Row::default() };
    row.held = match holder {
        "-" => None,
        "x" => Some(Held { owner: None, till: None, meta: None }),
        own => Some(Held { owner: Some(named(own)), till: None, meta: None }),
    };
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match (key, &mut row.held) {
            ("till", Some(held)) => held.till = Some(at(value)),
            ("meta", Some(held)) => held.meta = Some(Arc::from(value.as_bytes())),
            ("life", _) => row.fence_till = at(value),
            ("readers", _) => row.readers = value.split(',').map(timed).collect(),
            ("slots", _) => row.slots = value.split(',').map(slot).collect(),
            ("queue", _) => {
                row.queue = value.split(',').map(waiter).collect();
                row.queue_till = at(FRESH);
            }
            ("reserved", _) => row.reserved = Some(timed(value)),
            ("kept", _) => row.kept = Some((h.settles_till, at(value))),
            ("kept-before", _) => row.kept = Some((h.settles_till + 1, at(value))),
            ("watched", _) => row.watched_till = at(LIFE),
            _ => panic!("unknown word {word}"),
        }
    }
    row
}

fn get<'a>(words: &[&'a str], key: &str) -> Option<&'a str> {
    words.iter().copied().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn if_held(words: &[&str]) -> Option<IfHeld> {
    let waited = ms(get(words, "waited").unwrap_or("0"));
    if let Some(number) = get(words, "fair") {
        let ticket = get(words, "ticket").map(num);
        return Some(IfHeld::Fair { place: place(num(number), waited), ticket });
    }
    if let Some(number) = get(words, "queue") {
        return Some(IfHeld::Queue(place(num(number), waited)));
    }
    if let Some(from) = get(words, "take") {
        return Some(IfHeld::TakeFrom(named(from)));
    }
    if let Some((from, token)) = get(words, "only").and_then(|both| both.split_once('@')) {
        let (from, token) = (named(from), FencingToken::new(num(token)));
        return Some(IfHeld::TakeOnly { from, token });
    }
    words.contains(&"watch").then_some(IfHeld::Watch)
}

fn op(h: &Header, text: &str) -> Op {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (kind, mode) = words[0].split_once('-').unwrap_or((words[0], ""));
    let who = words.get(1).copied().filter(|_| kind != "inspect").unwrap_or("a");
    let (who, token) = who.split_once('@').unwrap_or((who, "0"));
    let (owner, token) = (named(who), FencingToken::new(num(token)));
    let slot = get(&words, "slot").map(small);
    let slots = Slots::any(get(&words, "of").map_or(2, small));
    let mode = match mode {
        "" => LockMode::Exclusive,
        "read" => LockMode::Shared,
        "permit" => LockMode::Slot(slot.map_or(slots, |slot| slots.exactly(slot))),
        _ => panic!("unknown mode {mode}"),
    };
    let (keys, ttl) = (LockKeys::new("name"), ms(get(&words, "ttl").unwrap_or("500")));
    match kind {
        "acquire" => {
            let proposal = get(&words, "proposal").map_or(NOW * 1_000, num);
            Op::Acquire { mode, keys, owner, ttl, proposal, if_held: if_held(&words) }
        }
        "raise" => Op::Raise { keys, owner, token, slot },
        "extend" => {
            let meta: Option<Arc<[u8]>> = get(&words, "meta").map(|meta| meta.as_bytes().into());
            let since = h.facts.since;
            let id = |history| QuarantineId { history: num(history), since };
            let reassert = get(&words, "names").map(id);
            Op::Extend { mode, keys, owner, ttl, token, meta, reassert }
        }
        "release" => Op::Release { mode, keys, owner, meta: words.contains(&"meta") },
        "inspect" => Op::Inspect { keys, wait: words.contains(&"wait") },
        _ => panic!("unknown op {kind}"),
    }
}

fn busy_shown(remaining: Option<Duration>, foreign: bool) -> String {
    let left = remaining.map_or("for-ever".to_owned(), |rest| rest.as_millis().to_string());
    left + if foreign { " foreign" } else { "" }
}

fn reply_shown(reply: &Reply) -> String {
    match reply {
        Reply::Granted { fence } => format!("granted {fence}"),
        Reply::Permit { fence, slot } => format!("permit {fence} slot={slot}"),
        Reply::Held { remaining, foreign } => format!("held {}", busy_shown(*remaining, *foreign)),
        Reply::Queued { remaining, foreign, queued: Queued { ticket, ahead } } => {
            let busy = busy_shown(*remaining, *foreign);
            format!("queued {busy} ticket={ticket} ahead={ahead}")
        }
        Reply::Quarantined { remaining, .. } => format!("quarantined {}", remaining.as_millis()),
        Reply::Holder(None) => "free".to_owned(),
        Reply::Holder(Some(Holder { owner, fence, remaining, meta })) => {
            let owner = owner.map_or("x".to_owned(), name);
            let meta = meta.as_ref().map(|meta| format!(" meta={}", text(meta)));
            let (left, meta) = (busy_shown(*remaining, false), meta.unwrap_or_default());
            format!("holder {owner}@{fence} {left}{meta}")
        }
        Reply::Readers(Readers { fence, count, listed }) => {
            let mut shown = format!("readers @{fence} n={count}");
            for reader in listed {
                let _ = write!(shown, " {}:{}", name(reader.owner), reader.remaining.as_millis());
            }
            shown
        }
        Reply::Permits(grants) => {
            let mut shown = "permits".to_owned();
            for grant in grants {
                let (slot, fence, left) = (grant.slot, grant.fence, grant.remaining.as_millis());
                let _ = write!(shown, " {slot}={}@{fence}:{left}", name(grant.owner));
            }
            shown
        }
        Reply::Done => "done".to_owned(),
        Reply::NotOwner => "not-owner".to_owned(),
        Reply::Absent => "absent".to_owned(),
        other => panic!("{other:?}"),
    }
}

fn wakes_shown(wakes: &[Wake]) -> String {
    let shown = |wake: &Wake| {
        let mut words: Vec<String> = wake.waiters.iter().map(|n| format!("wakes {n}")).collect();
        words.extend(wake.watchers.then(|| "tells".to_owned()));
        if words.is_empty() { "-".to_owned() } else { words.join(" ") }
    };
    if wakes.iter().all(|wake| !wake.watchers && wake.waiters.is_empty()) {
        return String::new();
    }
    let all: Vec<String> = wakes.iter().map(shown).collect();
    format!(", {}", all.join(" & "))
}

fn timed_shown((owner, till): &(OwnerToken, u64)) -> String {
    format!("{}:{}", name(*owner), millis(*till))
}

fn slot_shown(slot: &Slot) -> String {
    match slot.owner {
        Some(owner) => format!("{}@{}:{}", name(owner), slot.fence, millis(slot.till)),
        None => format!("-@{}", slot.fence),
    }
}

fn waiter_shown(waiter: &Waiter) -> String {
    let kind = match waiter.mode {
        LockMode::Exclusive if waiter.is_fair => "f".to_owned(),
        LockMode::Exclusive => "w".to_owned(),
        LockMode::Shared => "r".to_owned(),
        LockMode::Slot(slots) => format!("p{}", slots.of),
    };
    let since = waiter.since / if waiter.is_fair { 1 } else { 1_000 };
    let is_fresh = waiter.fresh_till == at(FRESH);
    let fresh = if is_fresh { String::new() } else { format!(":{}", millis(waiter.fresh_till)) };
    format!("{}:{kind}:{since}{fresh}", waiter.number())
}

fn list_shown<T>(word: &str, all: &[T], shown: fn(&T) -> String) -> String {
    let all: Vec<String> = all.iter().map(shown).collect();
    if all.is_empty() { String::new() } else { format!(" {word}={}", all.join(",")) }
}

fn row_shown(h: &Header, row: &Row) -> String {
    if !row.clone().expire(h.now) {
        return "none".to_owned();
    }
    let holder = match &row.held {
        None => "-".to_owned(),
        Some(held) => held.owner.map_or("x".to_owned(), name),
    };
    let mut shown = format!("{holder}@{}", row.fence);
    if let Some(held) = &row.held {
        let till = held.till.map(|till| format!(" till={}", millis(till)));
        let meta = held.meta.as_ref().map(|meta| format!(" meta={}", text(meta)));
        shown.extend(till.into_iter().chain(meta));
    }
    if row.fence_till != at(LIFE) {
        let _ = write!(shown, " life={}", millis(row.fence_till));
    }
    shown += &list_shown("readers", &row.readers, timed_shown);
    shown += &list_shown("slots", &row.slots, slot_shown);
    shown += &list_shown("queue", &row.queue, waiter_shown);
    shown += &list_shown("reserved", row.reserved.as_slice(), timed_shown);
    if let Some((handover, till)) = row.kept {
        let word = if handover == h.settles_till { "kept" } else { "kept-before" };
        let _ = write!(shown, " {word}={}", millis(till));
    }
    shown.extend((row.watched_till > h.now).then_some(" watched"));
    shown
}

fn rows_shown(h: &Header, rows: &[Row]) -> String {
    let rows: Vec<String> = rows.iter().map(|row| row_shown(h, row)).collect();
    rows.join(" & ")
}

struct Case {
    line: &'static str,
    h: Header,
    rows: Vec<Row>,
    op: Op,
    expect: &'static str,
}

fn cases() -> impl Iterator<Item = Case> {
    let lines = include_str!("../testdata/locks.txt").lines();
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| {
        let (before, expect) = line.split_once(" -> ").expect("a line has an outcome");
        let (before, op_words) = before.split_once(" | ").expect("a row and an op");
        let (node, rows) = before.split_once(": ").unwrap_or(("", before));
        let h = header(node);
        let rows: Vec<Row> = rows.split(" & ").map(|words| row(&h, words)).collect();
        let op = op(&h, op_words);
        Case { line, h, rows, op, expect }
    })
}

#[test]
fn what_an_op_makes_of_a_lock() {
    let wrong = cases().filter_map(|Case { line, h, rows, op, expect }| {
        let before = rows_shown(&h, &rows);
        let Ruling { reply, rows, wakes } = decide(&h, &op, rows);
        let mut got = reply_shown(&reply) + &wakes_shown(&wakes);
        let after = rows_shown(&h, &rows);
        if after != before {
            let _ = write!(got, " | {after}");
        }
        (got != expect).then(|| format!("{line}\n    got: {got}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A take-over that arrives twice takes a new token, and a release of permits passes each free slot
/// on.
#[test]
fn a_request_that_arrives_twice_changes_nothing_more() {
    for Case { line, h, rows, op, .. } in cases() {
        let takes = ["take=", "only=", "release-permit"].iter().any(|word| line.contains(word));
        let first = decide(&h, &op, rows);
        let is_done =
            matches!(first.reply, Reply::Granted { .. } | Reply::Permit { .. } | Reply::Done);
        if is_done && !takes {
            let again = decide(&h, &op, first.rows.clone());
            assert_eq!(again.rows, first.rows, "{line}");
        }
    }
}
