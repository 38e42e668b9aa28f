//! A planned handover (of a group to another master) and a planned restart (of a lone server). They
//! lose no lock and no key, and they take about a second. If a step fails, the result is an
//! ordinary failover.

use std::time::Instant;

use palisade::error::{AcquireError, NodeFault, NodeOutcome};
use palisade::{
    Failed, Idempotency, LockGuard, Outcome, RedisNode, Redlock, SentinelNode, TryAcquire,
};
use palisade_ops::{HandedOver, Handover, init, namespaces};

use super::support::group::cli;
use super::support::proxy::Proxy;
use super::*;

pub(super) const DURABLE: &[&str] = &["--appendonly", "yes"];

pub(super) fn on_group(groups: &Groups) -> Redlock {
    let node = SentinelNode::new(groups.name(0), groups.sentinels(0)).unwrap();
    Redlock::builder().node(node).build().unwrap()
}

pub(super) fn on(server: &Server) -> Redlock {
    Redlock::builder().node(RedisNode::new(server.url()).unwrap()).build().unwrap()
}

fn orders(redlock: &Redlock) -> Idempotency {
    redlock.idempotency("orders").at_most_once().build().unwrap()
}

fn is_waiting(outcome: &NodeOutcome) -> bool {
    matches!(outcome, NodeOutcome::Quarantined { .. })
}

/// Acquires a lock with a new name. Tries until the lock is granted. There must be no quarantine.
pub(super) async fn fresh(redlock: &Redlock, what: &str) -> LockGuard {
    let begun = Instant::now();
    for n in 0.. {
        let mutex = redlock.mutex(format!("fresh-{what}-{n}")).build().unwrap();
        match mutex.try_acquire().await {
            Ok(TryAcquire::Acquired(guard)) => return guard,
            Err(AcquireError::NoQuorum(no)) if is_waiting(&no.nodes[0].1) => panic!("{what}: {no}"),
            other => assert!(begun.elapsed() < SOON, "{what}: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    unreachable!()
}

async fn run(orders: &Idempotency, key: &str) -> Outcome<u32> {
    let begun = Instant::now();
    loop {
        match orders.key(key).run(|_| async { Ok::<_, Failed>(42) }).await {
            Ok(outcome) => return outcome,
            Err(e) => assert!(begun.elapsed() < SOON, "{e}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Asserts that earlier locks and results are still there after the handover, and that new locks
/// are granted and new keys run at once.
async fn nothing_is_lost(
    redlock: &Redlock,
    turn: &str,
    hand_over: impl AsyncFnOnce() -> HandedOver,
) {
    let (before, after) = (format!("before-{turn}"), format!("after-{turn}"));
    let held = redlock.mutex("held").build().unwrap().acquire().await.unwrap();
    let token = held.fencing_token();
    let orders = orders(redlock);
    assert!(run(&orders, &before).await.is_executed());
    let done = hand_over().await;
    assert!(matches!(done, HandedOver::Done { .. }), "{done}");
    let soon = fresh(redlock, &after).await;
    assert!(soon.fencing_token() > token);
    assert!(matches!(run(&orders, &before).await, Outcome::Replayed(42)));
    // The server has a complete record of all keys, so the new key runs without a birth.
    let new = run(&orders, &after).await;
    assert!(matches!(new, Outcome::Executed { value: 42, .. }), "{new:?}");
    held.extend().await.expect("the holder goes on");
    assert!(held.is_valid());
    assert!(held.release().await.is_ok());
    let next = redlock
        .mutex("held")
        .acquire_timeout(SOON)
        .build()
        .unwrap()
        .acquire()
        .await
        .expect("free soon");
    assert!(next.fencing_token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_handed_over_twice_and_nothing_is_lost() {
    let groups = Groups::up_with(1, 5_000, 2, &[]);
    let redlock = on_group(&groups);
    let mut masters = Vec::new();
    for turn in ["first", "second"] {
        nothing_is_lost(&redlock, turn, async || {
            let begun = Instant::now();
            let done = loop {
                let done = Handover::new(group(&groups)).group(|_| ()).await.unwrap();
                if !done.to_string().contains("still settling after another handover") {
                    break done;
                }
                assert!(begun.elapsed() < 4 * SOON, "{done}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            };
            if let HandedOver::Done { at, closed } = &done {
                masters.push(at.clone());
                assert!(*closed < SOON, "closed for {closed:?}");
            }
            done
        })
        .await;
    }
    assert_ne!(masters[0], masters[1]);
    assert_ne!(masters[0], groups.servers(0)[0]);
    // The start of the data history in the marker is 0: nothing was ever lost.
    let mark = cli(&masters[1], &["GET", "palisade:generation"]);
    assert!(mark.contains(" 0000000000000 "), "{mark}");
    // Operators read the keys of the new master.
    let (found, unread) = namespaces(&group(&groups), "").await.unwrap();
    assert!(found.contains("orders") && unread.is_empty(), "{found:?} {unread:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_restarted_as_planned_and_nothing_is_lost() {
    let mut server = Server::start(DURABLE);
    assert!(init(&lone(&server), "").await.unwrap().is_done());
    let redlock = on(&server);
    nothing_is_lost(&redlock, "only", async || {
        let handover = Handover::new(lone(&server));
        let restart = async {
            server.restart();
            Ok(())
        };
        handover.lone(restart, |_| ()).await.unwrap()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_settles_is_not_closed_again_and_goes_on_settling() {
    let mut server = Server::start(DURABLE);
    assert!(init(&lone(&server), "").await.unwrap().is_done());
    let redlock = on(&server);
    let held = redlock
        .mutex("held")
        .ttl(Duration::from_secs(14))
        .build()
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let handover = Handover::new(lone(&server));
    let restart = async {
        server.restart();
        Ok(())
    };
    let done = handover.lone(restart, |_| ()).await.unwrap();
    assert!(matches!(done, HandedOver::Done { .. }), "{done}");
    let out = palisade(&["handover", "--node", &server.url(), "--", "false"]);
    assert_eq!(out.status.code(), Some(2), "{}", words(&out));
    assert!(words(&out).contains("still settling after another handover"), "{}", words(&out));
    assert!(server.cli(&["GET", "palisade:generation"]).contains(" s"), "it still settles");
    // The test deletes the lock on the server. The same happens if the new server's clock is ahead
    // of the old server's clock: the lock's key expires before the lease ends.
    server.cli(&["DEL", "held"]);
    let got = on(&server).mutex("held").build().unwrap().try_acquire().await;
    let kept = matches!(got, Ok(TryAcquire::Taken(_)));
    assert!(kept && held.is_valid(), "a second holder: {got:?}");
}

#[test]
fn the_program_restarts_a_server_by_the_command_it_is_given() {
    let server = Server::start(DURABLE);
    assert_eq!(palisade(&["init", "--new", "--node", &server.url()]).status.code(), Some(0));
    let out = palisade(&["handover", "--node", &server.url(), "--", "false"]);
    assert_eq!(out.status.code(), Some(2), "{}", words(&out));
    assert!(words(&out).contains("is open again"), "{}", words(&out));
    assert!(!server.cli(&["GET", "palisade:generation"]).contains(" n c"), "open");
    let out = palisade(&["handover", "--node", &server.url(), "--closed-for", "3"]);
    assert_eq!(out.status.code(), Some(64), "{}", words(&out));
    assert!(words(&out).contains("more than 2·clock_error + 2 s"), "{}", words(&out));
}

/// Returns the outcome of the only node when a lock is requested.
async fn said(redlock: &Redlock) -> NodeOutcome {
    match redlock.mutex("any").build().unwrap().try_acquire().await {
        Err(AcquireError::NoQuorum(no)) => no.nodes[0].1.clone(),
        other => panic!("{other:?}"),
    }
}

/// Waits until the only node is in quarantine. Until then it must not grant.
async fn is_quarantined(redlock: &Redlock) {
    let begun = Instant::now();
    loop {
        match said(redlock).await {
            NodeOutcome::Quarantined { .. } => return,
            other => assert!(begun.elapsed() < SOON, "{other}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_the_closing_begins_with_a_quarantine() {
    let mut server = Server::start(DURABLE);
    assert!(init(&lone(&server), "").await.unwrap().is_done());
    let redlock = on(&server);
    drop(fresh(&redlock, "before").await);
    let handover = Handover::new(lone(&server));
    let restart = async {
        server.restart_empty();
        Ok(())
    };
    let done = handover.lone(restart, |_| ()).await.unwrap();
    assert_eq!(done.exit_code(), 2);
    let HandedOver::FellBack(why) = done else { panic!("{done}") };
    assert!(why.contains("do not hold the closing"), "{why}");
    is_quarantined(&redlock).await;
}

/// Hands over a server behind a proxy that [`loses`] this reply. Calls `then` with the server's
/// address.
async fn handed_over_without(
    reply: usize,
    then_all: bool,
    then: impl Fn(&str) + Send + 'static,
) -> (Server, HandedOver) {
    let mut server = Server::start(DURABLE);
    assert!(init(&lone(&server), "").await.unwrap().is_done());
    drop(fresh(&on(&server), "before").await);
    let (addr, proxy) = (server.addr(), Proxy::to(&server.addr()));
    proxy.edit(loses(reply, then_all, move || then(&addr)));
    let through = Deployment::new().node(format!("redis://{}", proxy.addr()));
    let handover = Handover::new(through.timeout(Duration::from_secs(2)))
        .clock_error(Duration::from_millis(50))
        .closed_for(Duration::from_secs(8));
    let restart = async {
        server.restart();
        Ok(())
    };
    let done = handover.lone(restart, |_| ()).await.unwrap();
    (server, done)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handover_whose_last_answer_is_lost_is_said_to_be_done() {
    let (server, done) = handed_over_without(GOES_ON, false, |_| ()).await;
    assert!(server.cli(&["GET", "palisade:generation"]).contains(" s"), "it goes on");
    assert!(matches!(done, HandedOver::Done { .. }), "{done}");
    assert_eq!(done.exit_code(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handover_that_gets_no_answer_any_more_is_not_said_to_have_failed() {
    let (server, done) = handed_over_without(GOES_ON, true, |_| ()).await;
    assert!(server.cli(&["GET", "palisade:generation"]).contains(" s"), "it goes on");
    assert_eq!(done.exit_code(), 69, "{done}");
    let said = done.to_string();
    assert!(said.starts_with("the result of the handover is unknown"), "{said}");
    assert!(said.contains("or begins with a quarantine"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handover_that_was_done_before_another_failover_is_not_said_to_have_failed() {
    // This is the effect of another Sentinel's decision: the server becomes a replica of a server
    // that does not exist.
    let demoted = |addr: &str| assert_eq!(cli(addr, &["REPLICAOF", "127.0.0.1", "1"]), "OK");
    let (_server, done) = handed_over_without(GOES_ON, false, demoted).await;
    assert_eq!(done.exit_code(), 69, "{done}");
    let said = done.to_string();
    assert!(said.starts_with("the result of the handover is unknown"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closing_whose_answer_is_lost_is_not_said_to_have_changed_nothing() {
    let (server, done) = handed_over_without(CLOSED, false, |_| ()).await;
    assert!(server.cli(&["GET", "palisade:generation"]).contains(" n c"), "it is closed");
    assert!(matches!(done, HandedOver::Refused(_)), "{done}");
    let said = done.to_string();
    assert!(said.contains("if it is closed, it opens by itself within 8s"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_keeps_nothing_is_not_closed() {
    let server = Server::start(&["--save", ""]);
    assert!(init(&lone(&server), "").await.unwrap().is_done());
    let restart = async { panic!("it would be emptied") };
    let done = Handover::new(lone(&server)).lone(restart, |_| ()).await.unwrap();
    assert!(matches!(done, HandedOver::Refused(_)), "{done}");
    assert!(done.to_string().contains("keeps nothing on disk"), "{done}");
    assert!(!server.cli(&["GET", "palisade:generation"]).contains(" n c"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_restarts_and_fails_is_not_said_to_have_changed_nothing() {
    let mut server = Server::start(DURABLE);
    assert!(init(&lone(&server), "").await.unwrap().is_done());
    let redlock = on(&server);
    drop(fresh(&redlock, "before").await);
    let handover = Handover::new(lone(&server));
    let restart = async {
        server.restart();
        Err("exit 1".to_owned())
    };
    let done = handover.lone(restart, |_| ()).await.unwrap();
    let HandedOver::FellBack(why) = done else { panic!("{done}") };
    assert!(why.contains("exit 1") && why.contains("was restarted nevertheless"), "{why}");
    is_quarantined(&redlock).await;
}

#[test]
fn the_program_opens_what_it_closed_when_it_is_stopped() {
    let server = Server::start(DURABLE);
    assert_eq!(palisade(&["init", "--new", "--node", &server.url()]).status.code(), Some(0));
    let mut tool = Command::new(env!("CARGO_BIN_EXE_palisade"))
        .args(["handover", "--node", &server.url()])
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let is_closed = || server.cli(&["GET", "palisade:generation"]).contains(" n c");
    while !is_closed() {
        assert!(begun.elapsed() < SOON, "it is closed");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(200));
    let kill = Command::new("kill").args(["-TERM", &tool.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert_eq!(tool.wait().unwrap().code(), Some(2));
    assert!(!is_closed(), "it is open again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_promoted_in_vain_begins_its_quarantine_at_once() {
    let groups = Groups::up_with(1, 5_000, 2, &[]);
    let redlock = on_group(&groups);
    drop(fresh(&redlock, "before").await);
    let stop_the_old = |step: &str| {
        if step.contains("is promoted") {
            groups.break_("freeze", 0, &["--server", "a1"]);
        }
    };
    let done = Handover::new(group(&groups)).group(stop_the_old).await.unwrap();
    let HandedOver::FellBack(why) = done else { panic!("{done}") };
    assert!(why.contains("it is open again"), "{why}");
    let closed = |server: &String| cli(server, &["GET", "palisade:generation"]).contains(" n c");
    let new = groups.servers(0).into_iter().skip(1);
    let new = new.filter(|s| cli(s, &["ROLE"]).starts_with("master")).collect::<Vec<_>>();
    assert!(new.len() == 1 && !closed(&new[0]), "{new:?}");
    groups.break_("resume", 0, &["--server", "a1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_are_looked_at_before_anything_is_closed() {
    let groups = Groups::up_with(1, 5_000, 2, &["--acl"]);
    for server in groups.servers(0) {
        assert_eq!(groups.cli(&server, &["ACL", "SETUSER", "operator", "-replicaof"]), "OK");
    }
    let done = Handover::new(group(&groups)).group(|step| panic!("{step}")).await.unwrap();
    let HandedOver::Refused(why) = done else { panic!("{done}") };
    assert!(why.contains("operator may not send REPLICAOF"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_throws_transactions_away_is_not_taken_for_whole() {
    // Redis loads its append-only file with the rights of the user `default`. This user may not
    // write here, so Redis skips the transactions in the file.
    let acl = "user default off\nuser operator on >secret ~* &* +@all\n";
    let mut server = Server::start_with_users(acl, DURABLE, ("operator", "secret"));
    let url = server.url().replace("redis://", "redis://operator:secret@");
    let deployment = Deployment::new().node(url.as_str());
    assert!(init(&deployment, "").await.unwrap().is_done());
    let redlock = Redlock::builder().node(RedisNode::new(url).unwrap()).build().unwrap();
    drop(fresh(&redlock, "before").await);
    let two = "redis.call('SET', 'a', '1') return redis.call('SET', 'b', '1')";
    assert_eq!(server.cli(&["EVAL", two, "0"]), "OK");
    let restart = async {
        // The server is shut down cleanly, so its file is complete. Data are lost only when Redis
        // loads the file.
        server.cli(&["SHUTDOWN"]);
        server.restart();
        Ok(())
    };
    let done = Handover::new(deployment).lone(restart, |_| ()).await.unwrap();
    // The library's keys may be back: whoever holds a lock extends it on an emptied server, too.
    if server.cli(&["EXISTS", "a"]) == "1" {
        // This version of Redis loads all transactions from its file, so no data were lost.
        assert!(matches!(done, HandedOver::Done { .. }), "{done}");
        return;
    }
    assert_eq!(done.exit_code(), 2, "its transactions are gone: {done}");
    is_quarantined(&redlock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_nobody_lets_go_on_stays_closed_and_begins_with_a_quarantine() {
    let mut server = Server::start(DURABLE);
    assert!(init(&lone(&server), "").await.unwrap().is_done());
    let redlock = on(&server);
    drop(fresh(&redlock, "before").await);
    let brief = Handover::new(lone(&server))
        .clock_error(Duration::from_millis(50))
        .closed_for(Duration::from_secs(7));
    let restart = async {
        server.restart();
        // The handover waits here for ever, as if the operator's machine had failed.
        std::future::pending().await
    };
    let gone = tokio::time::timeout(Duration::from_secs(2), brief.lone(restart, |_| ())).await;
    assert!(gone.is_err(), "{gone:?}");
    let begun = Instant::now();
    let mut closed = false;
    loop {
        match said(&redlock).await {
            NodeOutcome::Failed(e) if e.fault() == NodeFault::HandingOver => closed = true,
            NodeOutcome::Failed(_) => {}
            NodeOutcome::Quarantined { .. } => break,
            other => panic!("{other}"),
        }
        assert!(begun.elapsed() < SOON, "it opens by itself");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(closed, "until then it answers no client");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_ready_is_left_as_it_is() {
    let groups = Groups::up_with(1, 5_000, 2, &[]);
    let redlock = on_group(&groups);
    let master = groups.servers(0)[0].clone();
    let refused = async |what: &str| {
        let done = Handover::new(group(&groups)).group(|_| ()).await.unwrap();
        assert_eq!(done.exit_code(), 2, "{done}");
        let HandedOver::Refused(why) = done else { panic!("{what}: {done}") };
        assert!(why.contains(what), "{why}");
        let mark = cli(&master, &["GET", "palisade:generation"]);
        assert!(!mark.contains(" n c"), "{what}: still closed: {mark}");
        assert!(fresh(&redlock, what).await.release().await.is_ok());
    };
    // No replica may be promoted.
    for server in &groups.servers(0)[1..] {
        assert_eq!(cli(server, &["CONFIG", "SET", "replica-priority", "0"]), "OK");
    }
    let replicas = || {
        let words = ["SENTINEL", "REPLICAS", &groups.name(0)];
        groups.sentinels(0).iter().map(|s| cli(s, &words)).collect::<Vec<_>>()
    };
    let begun = Instant::now();
    while replicas().iter().any(|r| r.contains("slave-priority\n100")) {
        assert!(begun.elapsed() < 2 * SOON, "the Sentinels hear of it");
        std::thread::sleep(Duration::from_millis(100));
    }
    refused("no Sentinel begins a failover").await;
    // One replica is frozen. It is connected and confirms nothing.
    groups.break_("freeze", 0, &["--server", "a3"]);
    let done = Handover::new(group(&groups)).group(|_| ()).await.unwrap();
    assert!(done.to_string().contains("replicas of"), "{done}");
    groups.break_("resume", 0, &["--server", "a3"]);
    drop(fresh(&redlock, "resumed").await);
    // After a restart the master's data history is new, and the master grants nothing for one
    // quarantine.
    groups.break_("restart", 0, &["--server", "a1"]);
    let begun = Instant::now();
    loop {
        let done = Handover::new(group(&groups)).group(|_| ()).await.unwrap();
        let why = done.to_string();
        if why.contains("belongs to an earlier data history") || why.contains("in quarantine") {
            break;
        }
        assert!(begun.elapsed() < SOON, "{why}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
