//! Renewal after a failover, with memory nodes. A memory node can begin another data history (the
//! sequence of writes that its data come from) at once, without a restart of a process.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use palisade::error::NodeFault;
use palisade::node::spi::{LockNode as _, Op};
use palisade::{Durability, Failover, MemoryNode, Outcome, Redlock, RedlockBuilder};
use tokio::time::{Instant, sleep};

use crate::support::memory::Timed;
use crate::support::wrap::{Wrap, refused};

const TTL: Duration = Duration::from_secs(30);

/// Returns memory nodes, and the builder of a `Redlock` handle that has no nodes yet. All use
/// tokio's clock.
fn world<const N: usize>() -> ([MemoryNode; N], RedlockBuilder) {
    let world = Timed::new(N);
    let builder = world.settings().ttl(TTL).max_ttl(TTL);
    (world.nodes.try_into().expect("N nodes"), builder)
}

fn three() -> ([MemoryNode; 3], Redlock) {
    let (nodes, builder) = world();
    let builder = nodes.iter().cloned().fold(builder, RedlockBuilder::node);
    (nodes, builder.build().unwrap())
}

/// Waits until the replies of earlier requests have arrived. No renewal is due in this short time.
async fn settle() {
    sleep(Duration::from_millis(10)).await;
}

#[tokio::test(start_paused = true)]
async fn whatever_the_nodes_lost_the_lock_is_back_on_all_of_them_at_once() {
    let (nodes, redlock) = three();
    let before = nodes[1].snapshot();
    let guard = redlock.mutex("k").build().unwrap().acquire().await.unwrap();
    settle().await;
    let started = Instant::now();
    nodes[0].restart_keeping();
    nodes[1].restore(before);
    nodes[2].restart_empty();
    assert_eq!(guard.failover().await, Failover::Kept);
    settle().await;
    assert!(started.elapsed() < TTL / 4, "no renewal was due");
    assert!(nodes.iter().all(|n| !n.is_empty()));
    let rival = redlock.mutex("k").build().unwrap();
    assert!(rival.try_acquire().await.is_err(), "all of them are in quarantine");
    assert!(guard.release().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_lost_its_data_and_not_its_history_is_renewed_once_it_answers() {
    let (nodes, redlock) = three();
    let guard = redlock.mutex("k").build().unwrap().acquire().await.unwrap();
    settle().await;
    let started = Instant::now();
    nodes[0].flush_all();
    // The connection did not break. So the client notices the loss of data only by the next reply
    // to a request, here one about another lock.
    redlock.mutex("other").build().unwrap().acquire().await.unwrap().release().await.unwrap();
    assert_eq!(guard.failover().await, Failover::Kept);
    settle().await;
    assert!(started.elapsed() < TTL / 4, "no renewal was due");
    assert!(!nodes[0].is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_verdict_waits_for_a_late_call_and_is_not_lost_with_a_dropped_future() {
    let (nodes, redlock) = three();
    let guard = redlock.mutex("k").build().unwrap().acquire().await.unwrap();
    settle().await;
    let asking = tokio::time::timeout(Duration::from_millis(5), guard.failover()).await;
    assert!(asking.is_err(), "nothing to tell");
    nodes[0].restart_empty();
    settle().await;
    assert_eq!(guard.failover().await, Failover::Kept);
    assert_eq!(guard.failover().now_or_never(), None, "once");
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_nodes_are_gone_is_open_and_then_kept_or_lost() {
    for back in [true, false] {
        let (nodes, builder) = world::<3>();
        let open = [0; 3].map(|_| Arc::new(Mutex::new(true)));
        let scripted = |(node, open)| scripted(node, open, &Asked::default());
        let builder = nodes.iter().zip(&open).map(scripted).fold(builder, RedlockBuilder::node);
        let redlock = builder.build().unwrap();
        let guard = redlock.mutex("k").build().unwrap().acquire().await.unwrap();
        settle().await;
        for open in &open[1..] {
            *open.lock().unwrap() = false;
        }
        nodes[0].restart_keeping();
        assert_eq!(guard.failover().await, Failover::Open);
        assert!(guard.is_valid(), "its deadline holds");
        for open in &open[1..] {
            *open.lock().unwrap() = back;
        }
        let expected = if back { Failover::Kept } else { Failover::Lost };
        assert_eq!(guard.failover().await, expected);
        assert_eq!(guard.is_valid(), back);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_past_its_longest_hold_is_open_and_not_renewed() {
    let (nodes, redlock) = three();
    let mutex = redlock.mutex("k").max_hold(Duration::from_secs(1)).build().unwrap();
    let guard = mutex.acquire().await.unwrap();
    let deadline = guard.valid_until();
    sleep(Duration::from_secs(2)).await;
    nodes[0].restart_empty();
    assert_eq!(guard.failover().await, Failover::Open);
    assert_eq!((guard.is_valid(), guard.valid_until()), (true, deadline));
    assert_eq!(guard.failover().await, Failover::Lost, "it ends at its deadline");
}

#[tokio::test(start_paused = true)]
async fn leaders_and_running_handlers_are_renewed_too() {
    let (nodes, redlock) = three();
    let election = redlock.election("boss").build().unwrap();
    let leader = election.campaign("me").await.unwrap();
    settle().await;
    nodes[2].restart_empty();
    assert_eq!(leader.failover().await, Failover::Kept);
    leader.resign().await.unwrap();

    let jobs = redlock.idempotency("jobs").at_most_once().build().unwrap();
    let all = nodes.clone();
    let call = jobs.key("one").run(|cx| async move {
        all.iter().for_each(MemoryNode::restart_keeping);
        // `failover` renews the claim. So the nodes accept the result also after the loss of data,
        // in their new data histories.
        Ok::<_, String>(cx.failover().await == Failover::Kept)
    });
    match call.await.unwrap() {
        Outcome::Executed { value, kept, .. } => assert!(value && kept),
        other => panic!("{other:?}"),
    }
}

type Asked = Arc<Mutex<Vec<Vec<Op>>>>;

/// Returns a node that records the requests in `asked`. It replies only while `open` is true, and
/// fails as unreachable otherwise.
fn scripted(node: &MemoryNode, open: &Arc<Mutex<bool>>, asked: &Asked) -> Wrap {
    let (open, asked) = (Arc::clone(open), Arc::clone(asked));
    Wrap::new(node.clone(), move |node, batch, deadline| {
        asked.lock().unwrap().push(batch.ops.clone());
        let open = *open.lock().unwrap();
        async move {
            if open {
                return node.call(batch, deadline).await;
            }
            refused(&batch, NodeFault::Unreachable)
        }
    })
}

#[tokio::test(start_paused = true)]
async fn the_first_renewal_after_a_failover_names_the_quarantine() {
    let ([node], builder) = world();
    let asked = Asked::default();
    let scripted = scripted(&node, &Arc::new(Mutex::new(true)), &asked);
    let redlock = builder.node(scripted).build().unwrap();
    let guard = redlock.mutex("k").build().unwrap().acquire().await.unwrap();
    settle().await;
    asked.lock().unwrap().clear();
    node.restart_empty();
    assert_eq!(guard.failover().await, Failover::Kept);
    let asked = std::mem::take(&mut *asked.lock().unwrap());
    let [facts, renewal] = &asked[..] else { panic!("{asked:?}") };
    assert!(facts.is_empty(), "{facts:?}");
    assert!(matches!(renewal[..], [Op::Extend { reassert: Some(_), .. }]), "{renewal:?}");
}

/// While a barrier (the wait for replicas) runs, the node's address moves to another server. The
/// replicas of the first server still confirm the barrier, although the new server lacks the lock.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_confirmed_across_a_failover_is_renewed_at_once_too() {
    let ([node], builder) = world();
    let call = |node: MemoryNode, batch, deadline| async move { node.call(batch, deadline).await };
    let moved = Wrap::new(node.clone(), call).barrier(|_| async {
        sleep(Duration::from_millis(100)).await;
        Ok(1)
    });
    let redlock = builder.node(moved).build().unwrap();
    let _held = redlock.mutex("held").build().unwrap().acquire().await.unwrap();
    let mutex = redlock.mutex("late").durability(Durability::AllReplicas).build().unwrap();
    let late = tokio::spawn(async move { mutex.acquire().await });
    sleep(Duration::from_millis(50)).await;
    node.restart_empty();
    let late = late.await.unwrap().unwrap();
    assert_eq!(late.failover().await, Failover::Kept);
    assert!(!node.is_empty());
}

/// Tasks extend the locks all the time, while the client reports failovers to the guards. Each
/// guard must receive the report of each failover.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_renewal_swallows_a_failover() {
    const HELD: usize = 500;
    const FAILOVERS: usize = 20;
    let ([node], builder) = world();
    let redlock = builder.node(node.clone()).build().unwrap();
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
    for _ in 0..FAILOVERS {
        node.restart_keeping();
        for guard in &held {
            // Another task extends the lock all the time, so the result of `failover` soon becomes
            // `Kept`.
            while guard.failover().await != Failover::Kept {}
        }
    }
    renewing.shutdown().await;
}
