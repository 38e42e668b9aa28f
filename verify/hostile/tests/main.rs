//! Tests of clients with bad servers and bad Sentinels, in each phase of a conversation. A bad
//! server may cost only its own vote. No client panics or hangs. Memory, sockets and log lines stay
//! bounded. No secret is shown.

mod doctor;
#[path = "../../../tests/support/fake.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with tests that use all of it")]
mod fake;
mod groups;
mod judge;
mod kinds;
mod nodes;
mod sentinel;
mod server;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use palisade::node::NodeEvent;
use palisade::{RedisNode, Redlock};
use tokio::task::JoinSet;

use judge::{AT_ONCE, JUDGE, elsewhere};
use kinds::{Action, Kind};
use server::{DataServer, Phase, Server};

/// Returns all pairs of a phase and a kind of misbehaviour, in an order in which expensive kinds
/// are not neighbours. Rare kinds occur only in the phases of `large`.
fn mixed(phases: &[Phase], large: &[Phase]) -> Vec<(Phase, Arc<Kind>)> {
    let mut all = Vec::new();
    for kind in kinds::all().into_iter().map(Arc::new) {
        let at = phases.iter().filter(|p| !kind.rare || large.contains(p));
        all.extend(at.map(|phase| (*phase, Arc::clone(&kind))));
    }
    let (count, stride) = (all.len(), 7_919);
    assert_ne!(count % stride, 0, "the stride meets all");
    (0..count).map(|i| all[i * stride % count].clone()).collect()
}

/// Runs `case` with every kind of misbehaviour of a server in every phase of its conversation with
/// a client.
async fn everything<F, R>(phases: &[Phase], large: &[Phase], case: F)
where
    F: Fn(Phase, Arc<Kind>) -> R,
    R: Future<Output = (usize, Vec<String>)> + Send + 'static,
{
    let judge = &*JUDGE;
    judge.starts();
    let mut cases = JoinSet::new();
    for (phase, kind) in mixed(phases, large) {
        // The future of a case (test of one fault) is created only after a permit for one more
        // running case is free. Otherwise, all waiting cases would already use memory.
        let place = judge.places.acquire().await.expect("it stays open");
        judge.begins();
        let run = case(phase, Arc::clone(&kind));
        cases.spawn(async move {
            let _place = place;
            (phase, kind, run.await)
        });
    }
    let mut struck: BTreeMap<Phase, usize> = BTreeMap::new();
    let mut again = Vec::new();
    while let Some(done) = cases.join_next().await {
        let (phase, kind, (times, found)) = done.expect("a case ends");
        *struck.entry(phase).or_default() += times;
        if !found.is_empty() {
            again.push((phase, kind));
        }
    }
    // A failed case runs again, because a pause of the machine may have caused the failure. Two
    // such pauses are unlikely.
    let mut wrong = Vec::new();
    for (phase, kind) in again {
        let _place = judge.places.acquire_many(AT_ONCE).await.expect("it stays open");
        wrong.extend(case(phase, kind).await.1);
    }
    let missed = phases.iter().filter(|p| struck.get(p).is_none_or(|n| *n == 0));
    wrong.extend(missed.map(|p| format!("{p:?} was never reached")));
    judge.verdict(&wrong).await;
}

/// Runs the cases that need much memory, one after another.
async fn largest() {
    let mut wrong = Vec::new();
    for phase in nodes::LARGE {
        for kind in kinds::largest() {
            wrong.extend(Box::pin(nodes::large(*phase, kind)).await);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_server_costs_its_own_vote() {
    if elsewhere("a_bad_server_costs_its_own_vote") {
        return;
    }
    Box::pin(largest()).await;
    Box::pin(everything(nodes::PHASES, nodes::LARGE, nodes::case)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_sentinel_of_three_decides_and_prevents_nothing() {
    if elsewhere("a_bad_sentinel_of_three_decides_and_prevents_nothing") {
        return;
    }
    everything(groups::PHASES, &[Phase::Master, Phase::Pushes], groups::case).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_ends_and_reports_whoever_is_bad() {
    if elsewhere("the_doctor_ends_and_reports_whoever_is_bad") {
        return;
    }
    everything(doctor::PHASES, &[Phase::Info], doctor::node).await;
    everything(doctor::SENTINEL_PHASES, &[Phase::Replicas], doctor::sentinel).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_falls_silent_while_nothing_is_asked_is_noticed() {
    if elsewhere("a_server_that_falls_silent_while_nothing_is_asked_is_noticed") {
        return;
    }
    let silence =
        Kind { name: "silence".to_owned(), action: Action::Silence, honest: false, rare: false };
    let bad = Server::start(DataServer::new(), Some((Phase::Idle, Arc::new(silence))));
    let node = RedisNode::builder(format!("redis://{}", bad.at)).trust_fresh(true).build().unwrap();
    let redlock = Redlock::builder().node(node).build().unwrap();
    let mut events = redlock.events();
    let held = redlock
        .mutex("m")
        .auto_renew(false)
        .build()
        .unwrap()
        .try_acquire()
        .await
        .unwrap()
        .acquired();
    let down = async {
        while !matches!(events.next().await, Some(named) if named.event == NodeEvent::Down) {}
    };
    tokio::time::timeout(Duration::from_secs(12), down).await.expect("a heartbeat has a deadline");
    drop(held);
}

/// A bad server sends endless replies at full speed. The test uses the kinds of replies that no
/// size limit of the client stops.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_at_full_speed_delays_no_other_node() {
    if elsewhere("a_flood_at_full_speed_delays_no_other_node") {
        return;
    }
    let judge = &*JUDGE;
    judge.starts();
    let mut wrong = Vec::new();
    for name in ["answers without end", "hints without end", "unknown pushes without end"] {
        let mut kind = kinds::all().into_iter().find(|k| k.name == name).expect("it is known");
        let Action::Flood { burst, .. } = &mut kind.action else { panic!("{name} is no flood") };
        *burst = usize::MAX;
        let kind = Arc::new(kind);
        for phase in [Phase::Idle, Phase::Hello] {
            let _place = judge.places.acquire().await.expect("it stays open");
            judge.begins();
            let (struck, found) = Box::pin(nodes::case(phase, Arc::clone(&kind))).await;
            assert!(struck > 0, "{name}, {phase:?}");
            wrong.extend(found);
        }
    }
    judge.verdict(&wrong).await;
}
