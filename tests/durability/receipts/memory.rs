//! The same on nodes in memory, where any history can be had at once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use palisade::Moment;
use palisade::error::NodeError;
use palisade::node::spi::BarrierPoint;
use palisade::node::spi::{Batch, Replies};
use palisade::node::{NodeEvent, spi::BoxFuture};
use palisade::{Durability, Fate, LockGuard, MemoryNode, Outcome, Redlock, node::spi::LockNode};
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep};

const TTL: Duration = Duration::from_secs(30);

fn three() -> (Vec<MemoryNode>, Redlock) {
    let nodes: Vec<_> = (0..3).map(|_| MemoryNode::new()).collect();
    let builder = nodes.iter().cloned().fold(Redlock::builder(), palisade::RedlockBuilder::node);
    (nodes, builder.ttl(TTL).max_ttl(TTL).build().unwrap())
}

fn fates(guard: &LockGuard) -> Vec<Fate> {
    guard.receipts().iter().map(|r| r.fate).collect()
}

#[tokio::test(start_paused = true)]
async fn each_node_has_a_fate_of_its_own() {
    let (nodes, redlock) = three();
    let before = nodes[1].snapshot();
    let guard = redlock.mutex("k").build().unwrap().acquire().await.unwrap();
    sleep(Duration::from_millis(10)).await;
    assert_eq!(fates(&guard), [Fate::Standing; 3]);
    let started = Instant::now();
    nodes[0].restart_keeping();
    nodes[1].restore(before);
    nodes[2].restart_empty();
    let mut got = Vec::new();
    for _ in 0..3 {
        let receipt = guard.failover().await.expect("held");
        got.push((receipt.node.to_string(), receipt.fate));
    }
    got.sort_by_key(|(node, _)| nodes.iter().position(|n| *n.name() == **node));
    let got: Vec<_> = got.into_iter().map(|(_, fate)| fate).collect();
    assert_eq!(got, [Fate::Survived, Fate::Unknown, Fate::Unknown]);
    sleep(Duration::from_millis(10)).await;
    assert!(started.elapsed() < TTL / 3, "no renewal was due");
    // The lost ones made it come: all three know it again.
    assert_eq!(fates(&guard), [Fate::Standing; 3]);
    assert!(nodes.iter().all(|n| !n.is_empty()));
    assert!(guard.release().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_lagging_copy_tells_lost_from_survived_by_the_offset() {
    let (nodes, redlock) = three();
    let early = redlock.mutex("early").auto_renew(false).build().unwrap().acquire().await.unwrap();
    sleep(Duration::from_millis(10)).await;
    let copies: Vec<_> = nodes.iter().map(MemoryNode::snapshot).collect();
    let late = redlock.mutex("late").auto_renew(false).build().unwrap().acquire().await.unwrap();
    sleep(Duration::from_millis(10)).await;
    for (node, copy) in nodes.iter().zip(&copies) {
        node.restore(copy.clone());
    }
    sleep(Duration::from_millis(10)).await;
    assert_eq!(fates(&early), [Fate::Survived; 3]);
    assert_eq!(fates(&late), [Fate::Lost; 3]);
    // A second switch, of a server that keeps all it has: what survived does so again.
    nodes.iter().for_each(MemoryNode::restart_keeping);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(fates(&early), [Fate::Survived; 3]);
    assert_eq!(fates(&late), [Fate::Lost; 3]);
    // And one that goes back to the first copy says nothing of what came between.
    for (node, copy) in nodes.iter().zip(copies) {
        node.restore(copy);
    }
    sleep(Duration::from_millis(10)).await;
    assert_eq!(fates(&early), [Fate::Survived; 3]);
    let mut got = Vec::new();
    while let Some(Some(next)) = futures_util::FutureExt::now_or_never(early.failover()) {
        got.push(next.fate);
    }
    assert_eq!(got, [Fate::Survived; 9], "three switches of three nodes, each reported once");
}

#[tokio::test(start_paused = true)]
async fn a_fate_waits_for_a_late_call_and_is_not_lost_with_a_dropped_future() {
    let (nodes, redlock) = three();
    let guard = redlock.mutex("k").build().unwrap().acquire().await.unwrap();
    sleep(Duration::from_millis(10)).await;
    let asking = tokio::time::timeout(Duration::from_millis(5), guard.failover()).await;
    assert!(asking.is_err(), "nothing to tell");
    nodes[0].restart_empty();
    sleep(Duration::from_millis(50)).await;
    assert_eq!(guard.failover().await.expect("held").fate, Fate::Unknown);
    nodes.iter().for_each(MemoryNode::restart_empty);
    redlock.mutex("other").build().unwrap().try_acquire().await.unwrap_err();
    assert!(guard.is_valid(), "a sitting holder puts it back");
}

#[tokio::test(start_paused = true)]
async fn leaders_and_running_handlers_are_reported_too() {
    let (nodes, redlock) = three();
    let election = redlock.election("boss").build().unwrap();
    let leader = election.campaign("me").await.unwrap();
    sleep(Duration::from_millis(10)).await;
    assert_eq!(leader.receipts().len(), 3);
    nodes[2].restart_keeping();
    assert_eq!(leader.failover().await.expect("leads").fate, Fate::Survived);
    leader.resign().await.unwrap();

    let jobs = redlock.idempotency("jobs").at_most_once().build().unwrap();
    let again = nodes[1].clone();
    let call = jobs.key("one").run(|cx| async move {
        again.restart_keeping();
        let got = cx.failover().await.expect("runs");
        // It survived; and it is renewed, so that the node's new data history takes the result.
        sleep(Duration::from_millis(10)).await;
        Ok::<_, String>((cx.receipts().len(), got.fate == Fate::Survived))
    });
    match call.await.unwrap() {
        Outcome::Executed { value: (receipts, survived), .. } => {
            assert!(receipts >= 2 && survived, "{receipts} receipts, survived: {survived}");
        }
        other => panic!("{other:?}"),
    }
}

/// A node whose address leads to another server while the replicas of the one before are waited
/// for; those confirm all the same.
struct Moved(MemoryNode);

impl LockNode for Moved {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        self.0.call(batch, deadline)
    }

    fn barrier(
        &self,
        _: BarrierPoint,
        _: Durability,
        _: Moment,
    ) -> BoxFuture<'_, Result<u32, NodeError>> {
        Box::pin(async {
            sleep(Duration::from_millis(100)).await;
            Ok(1)
        })
    }

    fn events(&self) -> broadcast::Receiver<NodeEvent> {
        self.0.events()
    }

    fn name(&self) -> Arc<str> {
        self.0.name()
    }
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_that_outlives_its_server_does_not_bring_it_back() {
    let node = MemoryNode::new();
    let builder = Redlock::builder().node(Moved(node.clone()));
    let redlock = builder.ttl(TTL).max_ttl(TTL).build().unwrap();
    let held = redlock.mutex("held").auto_renew(false).build().unwrap().acquire().await.unwrap();
    let mutex = redlock
        .mutex("late")
        .auto_renew(false)
        .durability(Durability::AllReplicas)
        .build()
        .unwrap();
    let late = tokio::spawn(async move { mutex.acquire().await });
    sleep(Duration::from_millis(50)).await;
    node.restart_empty();
    sleep(Duration::from_millis(10)).await;
    assert_eq!(fates(&held), [Fate::Unknown]);
    let late = late.await.unwrap().unwrap();
    sleep(Duration::from_millis(10)).await;
    // Nobody has asked the new server anything since.
    assert_eq!(fates(&held), [Fate::Unknown], "a lock that is gone");
    assert_eq!(fates(&late), [Fate::Unknown]);
    assert_eq!(late.failover().await.expect("held").fate, Fate::Unknown);
}

/// Confirmations of a new server come while its holders are still being judged, on another thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_renewal_swallows_a_verdict() {
    const HELD: usize = 1_000;
    const SWITCHES: usize = 20;
    let node = MemoryNode::new();
    let redlock = Redlock::builder().node(node.clone()).ttl(TTL).max_ttl(TTL).build().unwrap();
    let mut held = Vec::new();
    for i in 0..HELD {
        let mutex = redlock.mutex(format!("k{i}")).auto_renew(false).build().unwrap();
        held.push(Arc::new(mutex.acquire().await.unwrap()));
    }
    let mut renewing = tokio::task::JoinSet::new();
    for guard in held.iter().map(Arc::clone) {
        renewing.spawn(async move {
            loop {
                let _ = guard.extend().await;
            }
        });
    }
    let written = || held.iter().map(|guard| guard.receipts()[0].history_id);
    let mut life = 0;
    for turn in 0..=SWITCHES {
        // Each has a write of its own in this data history of the node.
        let before = life;
        while life == before || written().any(|history_id| history_id != life) {
            sleep(Duration::from_millis(2)).await;
            life = written().next().unwrap_or(before);
        }
        if turn < SWITCHES {
            node.restart_keeping();
        }
    }
    renewing.shutdown().await;
    // A write that the earlier server confirmed and that arrived late may be reported twice.
    let got = |guard: &LockGuard| {
        let next = || futures_util::FutureExt::now_or_never(guard.failover()).flatten();
        std::iter::from_fn(next).map(|got| got.history_id).collect::<BTreeSet<_>>().len()
    };
    let swallowed: usize = held.iter().map(|guard| SWITCHES - got(guard)).sum();
    assert_eq!(swallowed, 0, "of {}", HELD * SWITCHES);
}
