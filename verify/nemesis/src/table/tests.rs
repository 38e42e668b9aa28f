//! Tests of the check of a row of the failover table. Each test changes or adds events in a good
//! log.
//!
//! Times are in milliseconds. Server `m1` is the master until 5 000, and then `m2`. Server `m2` is
//! in quarantine from 6 000 until 8 000. The failover window L, in which a replaced master may
//! still grant, is 1 s. Client 1 holds the lock `sit-1-0` all the time. Locks with new names are
//! granted until 5 000 and from 8 010 on.

use std::sync::Arc;

use super::verdict::{Case, Row, judge};
use crate::event::{Event, EventKind, Nanos, TaskId, WriteReply};

const MS: Nanos = 1_000_000;

fn case() -> Case {
    Case {
        fault: "a fault",
        struck: 5_000 * MS,
        healed: None,
        quiet: false,
        window: 1_000 * MS,
        far: Vec::new(),
        all_replicas: false,
        writes_to_old_master: Some(0),
    }
}

fn on(client: u8, at: Nanos, kind: EventKind) -> Event {
    Event { at: at * MS, who: TaskId { client, life: 1, task: 0 }, kind }
}

fn held(client: u8, at: Nanos, name: &str, token: u64, until: Nanos) -> Event {
    let (since, until) = ((at - 1) * MS, until * MS);
    on(client, at, EventKind::Held { name: name.into(), token, since, until })
}

fn valid(client: u8, at: Nanos, name: &str, token: u64, until: Nanos) -> Event {
    on(client, at, EventKind::Valid { name: name.into(), token, until: until * MS })
}

fn vote(client: u8, at: Nanos, name: &str, token: u64, server: &str, grant: bool) -> Event {
    let (since, server) = ((at - 2) * MS, server.into());
    on(client, at, EventKind::Vote { name: name.into(), token, since, server, grant })
}

fn answers(at: Nanos, server: &str, to_write: WriteReply) -> Event {
    on(0, at, EventKind::Answers { server: server.into(), to_write })
}

fn good() -> Vec<Event> {
    let server = |s: &str| Arc::<str>::from(s);
    let mut log = vec![
        on(0, 1, EventKind::Process { server: server("m1"), run_id: server("r1") }),
        on(0, 6_002, EventKind::Process { server: server("m2"), run_id: server("r2") }),
        answers(1, "m1", WriteReply::Yes),
        answers(1, "m2", WriteReply::Replica),
        answers(5_000, "m1", WriteReply::No),
        answers(6_001, "m2", WriteReply::Yes),
        on(
            0,
            6_003,
            EventKind::Quarantine { server: server("m2"), from: 6_000 * MS, ends: 8_000 * MS },
        ),
    ];
    for sentinel in 1..=3 {
        log.push(on(0, 1, EventKind::Named { sentinel, master: server("m1") }));
        let at = 5_900 + u64::from(sentinel) * 10;
        log.push(on(0, at, EventKind::Named { sentinel, master: server("m2") }));
    }
    let fresh = (1..=80).map(|n| n * 60).chain((1..=80).map(|n| 8_000 + n * 10));
    for (n, at) in fresh.enumerate() {
        let (name, token) = (format!("fresh-1-{n}"), n as u64 + 1);
        let run_id = if at < 5_000 { "r1" } else { "r2" };
        log.push(vote(1, at, &name, token, run_id, true));
        log.push(held(1, at, &name, token, at + 5));
    }
    for n in 0..8_u64 {
        let (name, token) = (format!("sit-1-{n}"), 1_000 + n);
        log.push(held(1, 50, &name, token, 9_000));
        log.push(vote(1, 49, &name, token, "r1", true));
        for step in 0..50 {
            log.push(vote(1, 100 + 90 * step, &name, token, "r1", false));
        }
        log.push(vote(1, 6_020 + n, &name, token, "r2", false));
        log.push(valid(1, 6_030 + n, &name, token, 15_000));
    }
    log
}

fn with(more: Vec<Event>) -> Row {
    let mut log = good();
    log.extend(more);
    log.sort_by_key(|e| e.at);
    judge(&case(), &log)
}

#[test]
fn a_good_row_has_its_figures() {
    let row = with(Vec::new());
    assert!(row.is_good(), "{row:?}");
    assert_eq!((row.wrong_votes, row.held_twice), (0, 0));
    assert!((row.seconds_without_grants - 3.21).abs() < 0.001, "{row:?}");
    // The new master is reported at 5 920 and accepts writes from 6 001 on. The last of eight
    // holders renews its lock at 6 037.
    assert_eq!((row.sitting, row.ran_out), (8, 0));
    assert_eq!(row.reassert_ms, Some(36.0));
    assert_eq!(row.first_grant_ms, Some(10.0));
    assert_eq!(row.quarantine_ms, Some(1_999.0));
    assert!(row.two_masters_ms < 0.001, "{row:?}");
}

#[test]
fn a_second_holder_is_held_twice_and_the_vote_for_it_is_wrong() {
    let row = with(vec![
        vote(2, 8_500, "sit-1-0", 5_000, "r2", true),
        held(2, 8_500, "sit-1-0", 5_000, 8_600),
    ]);
    assert_eq!((row.held_twice, row.wrong_votes), (1, 1), "{row:?}");
    assert!(!row.is_good());
    // Client 1 holds this lock, so the vote for client 2 is wrong, even if it is a renewal that
    // client 2 does not use.
    let row = with(vec![vote(2, 8_500, "sit-1-0", 5_000, "r2", false)]);
    assert_eq!((row.held_twice, row.wrong_votes), (0, 1), "{row:?}");
}

#[test]
fn a_grant_in_quarantine_is_wrong_and_a_renewal_is_not() {
    let row = with(vec![vote(2, 7_000, "other", 5_000, "r2", true)]);
    assert_eq!(row.wrong_votes, 1, "{row:?}");
    let row = with(vec![vote(2, 7_000, "other", 5_000, "r2", false)]);
    assert!(row.is_good(), "{row:?}");
}

#[test]
fn an_old_master_has_no_vote_later_than_the_window() {
    // The new master accepted its first write at 6 001. So the old master may vote until 7 001, for
    // the failover window of 1 s.
    let row = with(vec![vote(2, 7_000, "other", 5_000, "r1", false)]);
    assert!(row.is_good(), "{row:?}");
    let row = with(vec![vote(2, 7_010, "other", 5_000, "r1", false)]);
    assert_eq!(row.wrong_votes, 1, "{row:?}");
    // A request that was sent before the failover may wait for the new master. So the new master's
    // vote on this request is no violation.
    let row = with(vec![vote(2, 6_002, "other", 5_000, "r2", false)]);
    assert!(row.is_good(), "{row:?}");
    // The rule that a replaced master accepts nothing after the window also applies to plain
    // writes without the library.
    let row = with(vec![
        answers(7_100, "m1", WriteReply::Yes),
        answers(7_200, "m1", WriteReply::Replica),
    ]);
    assert_eq!(row.wrong_votes, 1, "{row:?}");
    assert!((row.two_masters_ms - 100.0).abs() < 0.001, "{row:?}");
}

#[test]
fn an_unknown_server_has_no_vote() {
    let row = with(vec![vote(2, 3_000, "other", 5_000, "r9", true)]);
    assert_eq!(row.wrong_votes, 1, "{row:?}");
}

#[test]
fn a_token_that_does_not_grow_is_a_wrong_vote() {
    let row = with(vec![held(2, 9_500, "lock", 70, 9_600), held(2, 9_700, "lock", 70, 9_800)]);
    assert!(row.wrong_votes > 0, "{row:?}");
    assert_eq!(row.held_twice, 0);
}

#[test]
fn a_holder_that_learned_nothing_counts_until_its_deadline() {
    let mut log = good();
    log.retain(|e| !matches!(&e.kind, EventKind::Valid { name, .. } if **name == *"sit-1-3"));
    log.sort_by_key(|e| e.at);
    let row = judge(&case(), &log);
    assert_eq!((row.reassert_ms, row.ran_out), (Some(2_999.0), 1));
}

#[test]
fn a_write_to_the_old_master_fails_the_row() {
    let mut late = case();
    late.writes_to_old_master = Some(1);
    let mut log = good();
    log.sort_by_key(|e| e.at);
    assert!(!judge(&late, &log).is_good());
}

#[test]
fn seeing_nothing_is_no_proof() {
    assert!(!judge(&case(), &[]).is_good());
    let mut log = good();
    log.retain(|e| !matches!(e.kind, EventKind::Vote { .. }));
    log.sort_by_key(|e| e.at);
    assert!(!judge(&case(), &log).doubts.is_empty());
    let mut log = good();
    log.retain(|e| !matches!(e.kind, EventKind::Named { .. }));
    log.sort_by_key(|e| e.at);
    assert!(!judge(&case(), &log).doubts.is_empty());
}
