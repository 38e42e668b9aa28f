//! A server that lost its last writes reports the longest time whose writes may be missing (the
//! loss). A namespace that accepts a loss of this length still runs new keys. The test keeps a list
//! of all keys with the times of their runs, to compare.

use std::time::Duration;

use palisade::idempotency::{Parked, ParkedReason};
use palisade::node::spi::{Env as _, SystemEnv};
use palisade::{Idempotency, Outcome, RedisNode, Redlock};
use palisade_ops::Deployment;
use tokio::time::{Instant, sleep};

use crate::support::server::Server;

/// Longest lease. A promotion causes a loss (a time whose writes may be missing), which ends at
/// most one longest lease after the promotion.
pub(crate) const TTL: Duration = Duration::from_secs(2);
pub(crate) const ERROR: Duration = Duration::from_millis(50);
/// Time limit that is longer than any restart or promotion in these tests.
pub(crate) const LONG: Duration = Duration::from_secs(120);
/// Each server stores its clock's time in a marker (the note). This is the maximum age of the note
/// when a record is written, in milliseconds. The server and these tests read the same clock.
pub(crate) const NOTED: u64 = 1_001;

pub(crate) fn now() -> u64 {
    SystemEnv.wall_micros() / 1_000
}

struct Orders {
    accepting: Idempotency,
    strict: Idempotency,
}

/// Returns the namespaces (of idempotency keys) of a new `Redlock` handle. The server was
/// initialised before.
fn orders(server: &Server) -> Orders {
    let node = RedisNode::builder(server.url()).trust_fresh(true).build().unwrap();
    let redlock =
        Redlock::builder().node(node).ttl(TTL).max_ttl(TTL).clock_error(ERROR).build().unwrap();
    let namespace = |name| redlock.idempotency(name).at_most_once();
    Orders {
        accepting: namespace("accepting").accept_loss(LONG).build().unwrap(),
        strict: namespace("strict").build().unwrap(),
    }
}

/// Runs the key. Repeats the call as long as there is no server, or the server is in quarantine (it
/// grants nothing after a loss of data).
pub(crate) async fn run(of: &Idempotency, key: &str) -> Outcome<u32> {
    let end = Instant::now() + LONG;
    loop {
        match of.key(key).run(|_| async { Ok::<_, String>(1) }).await {
            Ok(outcome) => return outcome,
            Err(e) => assert!(Instant::now() < end, "{e}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn is_forgotten(outcome: &Outcome<u32>) -> bool {
    matches!(outcome, Outcome::Parked(Parked { reason: ParkedReason::Forgotten, .. }))
}

/// Asserts that the reported loss does not begin too early: at most one second (`NOTED`) before
/// each key that the restarted server still has.
fn begins_late(from: u64, kept: &[(String, u64, u64)], what: &str) {
    for (key, begun, stored) in kept {
        assert!(from + NOTED >= *begun, "{what}: {key} {begun} {stored} came back: {from}");
    }
}

/// Returns the beginning and the end of the last loss (a time in which writes may be lost) in the
/// server's marker, in milliseconds since 1970.
fn loss(server: &Server) -> (u64, u64) {
    let marker = server.cli(&["GET", "palisade:generation"]);
    let mut last = marker.trim().rsplit(' ').next().unwrap().split('-');
    let mut next = || last.next().unwrap().parse().unwrap();
    let (from, _began) = (next(), next());
    (from, next())
}

/// Makes calls with new keys for the time `span`. Returns each key with the times before and after
/// its call.
async fn ledger(orders: &Orders, keys: &str, span: Duration) -> Vec<(String, u64, u64)> {
    let (mut all, end) = (Vec::new(), Instant::now() + span);
    while Instant::now() < end {
        let (key, begun) = (format!("{keys}-{}", all.len()), now());
        let outcome = run(&orders.accepting, &key).await;
        assert!(outcome.is_executed(), "{key}: {outcome:?}");
        all.push((key, begun, now()));
    }
    all
}

async fn restarted(args: &[&str]) {
    let mut server = Server::start(args);
    let orders = orders(&server);
    let ran = ledger(&orders, "k", Duration::from_secs(4)).await;
    let killed = now();
    server.restart();
    let key = "after the restart";
    assert!(run(&orders.accepting, key).await.is_executed(), "{args:?}");
    assert!(is_forgotten(&run(&orders.strict, key).await), "{args:?}: nothing is accepted unasked");
    let (from, to) = loss(&server);
    let is_there = |key: &str| server.cli(&["EXISTS", &format!("idem:accepting:{key}")]) == "1";
    let (kept, lost): (Vec<_>, Vec<_>) = ran.into_iter().partition(|(key, ..)| is_there(key));
    for (key, begun, stored) in &lost {
        assert!(from <= *stored && *begun <= to, "{args:?}: {key} {begun} {stored}: {from} {to}");
    }
    begins_late(from, &kept, &format!("{args:?}"));
    assert!(lost.is_empty() || !args.contains(&"always"), "{args:?}: {lost:?} was confirmed");
    assert!(from <= to && killed <= to && to <= now(), "{args:?}: {killed}, {to}");
    // The health report shows the same loss of data as the marker, unless the namespace accepts a
    // loss of this length.
    let health = orders.strict.health().await;
    let shown = health.nodes[0].losses.iter().map(|loss| (loss.from, loss.to));
    assert_eq!(shown.collect::<Vec<_>>(), [(from, to)]);
    assert!(health.to_string().contains("lost at most "), "{health}");
    let health = orders.accepting.health().await;
    assert!(health.new_keys().is_now() && !health.to_string().contains("lost"), "{health}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_proves_how_much_it_lost() {
    tokio::join!(
        restarted(&["--appendonly", "yes", "--appendfsync", "everysec"]),
        restarted(&["--appendonly", "yes", "--appendfsync", "always"]),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_from_a_backup_proves_its_age() {
    let mut server = Server::start(&[]);
    let orders = orders(&server);
    let before = ledger(&orders, "old", Duration::from_millis(1_500)).await;
    assert_eq!(server.cli(&["SAVE"]), "OK");
    let saved = now();
    let after = ledger(&orders, "new", Duration::from_secs(3)).await;
    server.restart();
    assert!(run(&orders.accepting, "later").await.is_executed(), "shorter than accepted");
    let (from, to) = loss(&server);
    assert!(from <= saved, "{from}, saved at {saved}");
    begins_late(from, &before, "a backup");
    assert!(to - from >= 3_000, "{from} to {to}");
    for (key, ..) in &after {
        let key = format!("idem:accepting:{key}");
        assert_eq!(server.cli(&["EXISTS", &key]), "0", "the backup is older");
    }
    assert!(after.first().expect("many").2 >= from);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lost_everything_is_never_accepted() {
    let mut server = Server::start(&["--appendonly", "yes"]);
    let node = RedisNode::builder(server.url()).build().unwrap();
    let redlock =
        Redlock::builder().node(node).ttl(TTL).max_ttl(TTL).clock_error(ERROR).build().unwrap();
    let day = Duration::from_secs(86_400);
    let accepting = redlock.idempotency("accepting").at_most_once().accept_loss(day / 2);
    let accepting = accepting.build().unwrap();
    let done = palisade_ops::init(&Deployment::new().node(server.url()), "").await.unwrap();
    assert!(done.is_done(), "{done}");
    assert!(run(&accepting, "first").await.is_executed());
    server.restart_empty();
    assert!(is_forgotten(&run(&accepting, "second").await));
    let (from, to) = loss(&server);
    assert!(from == 0 && to <= now(), "{from} {to}");
    let all = redlock.idempotency("all").at_most_once().accept_loss(day).build().unwrap_err();
    assert!(all.to_string().contains("less than the retention"), "{all}");
}
