//! Three nodes, each with its own reply to a barrier (the wait for replicas). The tests check which
//! grants count as votes, and that the other grants are rolled back.

use std::sync::{Arc, Mutex};

use palisade::node::spi::LockNode as _;
use palisade_testing::fault::Fault;

use crate::support::wrap::Wrap;

use super::*;

/// Reply of a node to a barrier (the wait until replicas have a grant).
#[derive(Clone)]
enum BarrierReply {
    Have(u32),
    /// An error with "not executed", although the request was executed.
    NotExecuted(NodeFault),
    Nothing,
}

/// A memory node whose reply to a barrier the test sets. It records the durability levels of the
/// barriers that it receives.
#[derive(Clone)]
struct Reporting {
    reply: Arc<Mutex<BarrierReply>>,
    levels: Arc<Mutex<Vec<Durability>>>,
}

impl Reporting {
    fn node(&self) -> Wrap {
        let of = self.clone();
        let node = Wrap::new(MemoryNode::new(), |node, batch, deadline| async move {
            node.call(batch, deadline).await
        });
        node.barrier(move |level| {
            of.levels.lock().unwrap().push(level);
            let reply = of.reply.lock().unwrap().clone();
            async move {
                tokio::time::sleep(Duration::from_millis(3)).await;
                match reply {
                    BarrierReply::Have(n) => Ok(n),
                    BarrierReply::NotExecuted(fault) => {
                        Err(NodeError::not_executed(fault, "so it says"))
                    }
                    BarrierReply::Nothing => std::future::pending().await,
                }
            }
        })
    }
}

struct Three {
    nodes: Vec<Reporting>,
    redlock: Redlock,
}

fn three(replies: [BarrierReply; 3]) -> Three {
    let node = |reply| Reporting { reply: Arc::new(Mutex::new(reply)), levels: Arc::default() };
    let nodes: Vec<_> = replies.into_iter().map(node).collect();
    // Each node is inside the wrapper `Fault`, as a user may wrap a node. So the tests also check
    // that a wrapper forwards barriers (waits for replicas).
    let builder = nodes.iter().fold(Redlock::builder(), |b, n| b.node(Fault::new(n.node())));
    Three { nodes, redlock: builder.build().unwrap() }
}

impl Three {
    /// Waits until the grants of the refused attempt are rolled back on all nodes, so that an
    /// attempt to acquire this name succeeds.
    async fn nothing_stands(&self, name: &str) {
        for _ in 0..200 {
            match self.redlock.mutex(name).build().unwrap().try_acquire().await.unwrap() {
                TryAcquire::Acquired(_) => return,
                TryAcquire::Taken(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        panic!("{name} is still held");
    }
}

#[tokio::test]
async fn a_majority_at_the_level_is_enough_and_the_lowest_count_is_reported() {
    let t = three([BarrierReply::Have(5), BarrierReply::Have(2), BarrierReply::Nothing]);
    let mutex = t.redlock.mutex("k").durability(Durability::Replicas(2)).build().unwrap();
    let guard = mutex.try_acquire().await.unwrap().acquired().unwrap();
    assert_eq!(guard.durability().replicas, 2);
    let before = guard.valid_until();
    *t.nodes[1].reply.lock().unwrap() = BarrierReply::Have(3);
    assert!(guard.extend().await.unwrap() > before);
    assert_eq!(guard.durability().replicas, 3, "the renewal's own word");
    assert!(guard.release().await.is_ok());
    for node in &t.nodes {
        let levels = node.levels.lock().unwrap();
        assert!(levels.iter().all(|l| *l == Durability::Replicas(2)), "{levels:?}");
    }
}

#[tokio::test]
async fn the_default_level_sends_no_barrier() {
    let t = three([BarrierReply::Nothing, BarrierReply::Nothing, BarrierReply::Nothing]);
    let guard = t.redlock.mutex("k").build().unwrap().acquire().await.unwrap();
    guard.extend().await.unwrap();
    assert_eq!(guard.durability(), palisade::Achieved::default());
    assert!(t.nodes.iter().all(|n| n.levels.lock().unwrap().is_empty()));
}

#[tokio::test]
async fn a_minority_at_the_level_is_a_refusal_and_all_of_it_is_rolled_back() {
    // The reply of the first node: too few replicas. The reply of the second node: the request was
    // not executed. Only the third node has enough replicas, so there is no majority.
    let t = three([
        BarrierReply::Have(1),
        BarrierReply::NotExecuted(NodeFault::NotMaster),
        BarrierReply::Have(2),
    ]);
    let mutex =
        t.redlock.mutex("k").durability(Durability::Replicas(2)).auto_renew(false).build().unwrap();
    let error = mutex.try_acquire().await.unwrap_err();
    let AcquireError::NoQuorum(no) = &error else { panic!("{error}") };
    let faults: Vec<_> = no
        .nodes
        .iter()
        .filter_map(|(_, outcome)| match outcome {
            NodeOutcome::Failed(e) => Some((e.fault(), e.is_ambiguous())),
            _ => None,
        })
        .collect();
    assert_eq!(faults, [(NodeFault::NotDurable, true), (NodeFault::NotMaster, true)]);
    t.nothing_stands("k").await;
}

#[tokio::test(start_paused = true)]
async fn a_barrier_that_never_answers_ends_and_is_rolled_back() {
    let t = three([BarrierReply::Have(2), BarrierReply::Nothing, BarrierReply::Nothing]);
    let mutex = t.redlock.mutex("k").durability(Durability::AllReplicas).build().unwrap();
    let refused = tokio::time::timeout(TTL, mutex.try_acquire()).await.expect("in time");
    assert!(matches!(refused, Err(AcquireError::NoQuorum(_))), "{refused:?}");
    t.nothing_stands("k").await;
}

#[tokio::test]
async fn a_caller_that_leaves_while_replicas_are_asked_leaves_nothing_behind() {
    let t = three([BarrierReply::Nothing, BarrierReply::Nothing, BarrierReply::Nothing]);
    let mutex = t.redlock.mutex("k").durability(Durability::AllReplicas).build().unwrap();
    let gone = tokio::time::timeout(Duration::from_millis(50), mutex.try_acquire()).await;
    assert!(gone.is_err());
    assert!(t.nodes.iter().all(|n| !n.levels.lock().unwrap().is_empty()), "they were asked");
    t.nothing_stands("k").await;
}

#[tokio::test]
async fn others_do_not_wait_behind_a_barrier() {
    let t = three([BarrierReply::Nothing, BarrierReply::Nothing, BarrierReply::Nothing]);
    let mutex = t.redlock.mutex("k").durability(Durability::AllReplicas).build().unwrap();
    let stuck = tokio::spawn(async move { mutex.try_acquire().await });
    while t.nodes.iter().any(|n| n.levels.lock().unwrap().is_empty()) {
        tokio::task::yield_now().await;
    }
    for turn in 0..30 {
        assert!(t.redlock.mutex(format!("{turn}")).build().unwrap().acquire().await.is_ok());
    }
    assert!(!stuck.is_finished(), "all of that while the node was asked");
    stuck.abort();
}

#[tokio::test]
async fn the_durability_of_a_result_is_that_of_its_storing_and_not_of_its_claim() {
    for (claimed, stored) in [(1, 2), (3, 1)] {
        let t = three([1; 3].map(|_| BarrierReply::Have(claimed)));
        let orders = t.redlock.idempotency("orders").durability(Durability::Replicas(1));
        let orders = orders.at_most_once().build().unwrap();
        let nodes = t.nodes.clone();
        let handler = |cx: palisade::idempotency::Context| async move {
            for node in &nodes {
                *node.reply.lock().unwrap() = BarrierReply::Have(stored);
            }
            Ok::<_, String>(cx.durability().replicas)
        };
        let out = orders.key("7").run(handler).await.unwrap();
        let Outcome::Executed { value, durability, .. } = out else { panic!("{out:?}") };
        assert_eq!((value, durability.replicas), (claimed, stored));
    }
}

#[tokio::test]
async fn a_result_counts_only_at_the_level() {
    let t = three([BarrierReply::Have(1), BarrierReply::Have(1), BarrierReply::Have(1)]);
    let orders = |level| {
        let builder = t.redlock.idempotency("orders").durability(level);
        builder.at_most_once().build().unwrap()
    };
    let one = orders(Durability::Replicas(1));
    let out = one.key("7").run(|_| async { Ok::<_, String>(7) }).await.unwrap();
    let Outcome::Executed { value: 7, durability, .. } = out else { panic!("{out:?}") };
    assert_eq!((durability.level, durability.replicas), (Durability::Replicas(1), 1));
    // The result is stored, but on fewer replicas than this call requires.
    let two = orders(Durability::Replicas(2));
    let again = two.key("7").run(|_| async { Err::<i32, _>("must not run") }).await;
    assert!(matches!(again, Err(RunError::NoQuorum { .. })), "{again:?}");
    assert!(two.key("7").lookup::<i32>().await.is_err());
    for node in &t.nodes {
        *node.reply.lock().unwrap() = BarrierReply::Have(2);
    }
    let again = two.key("7").run(|_| async { Err::<i32, _>("must not run") }).await;
    assert_eq!(again.unwrap(), Outcome::Replayed(7));

    // The replicas disappear after the handler has run. The call returns an error that reports
    // this, but the nodes keep the result.
    let nodes = t.nodes.clone();
    let out = two.key("8").run(|_| async move {
        for node in &nodes {
            *node.reply.lock().unwrap() = BarrierReply::Have(0);
        }
        Ok::<_, String>(8)
    });
    match out.await {
        Err(RunError::NotRecorded(not)) => {
            let text = not.to_string();
            assert!(text.contains("0 of 2 replicas have it"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    for node in &t.nodes {
        *node.reply.lock().unwrap() = BarrierReply::Have(2);
    }
    let again = two.key("8").run(|_| async { Err::<i32, _>("must not run") }).await;
    assert_eq!(again.unwrap(), Outcome::Replayed(8));
}

/// A waiter requires a durability level that no node reaches. The wake-up messages to its handle
/// (client) still reach the handle's other waiters.
#[tokio::test]
async fn a_waiter_that_cannot_succeed_lets_the_others_of_its_handle_go_first() {
    let nodes = three([BarrierReply::Have(0), BarrierReply::Have(0), BarrierReply::Have(0)]);
    let mutex = nodes.redlock.mutex("wanted");
    let [strict, plain] = [Durability::Replicas(1), Durability::Primary]
        .map(|level| mutex.clone().durability(level).build().unwrap());
    let mut held = plain.acquire().await.unwrap();
    let [waits, also_waits] = [(), ()].map(|()| {
        let strict = strict.clone();
        tokio::spawn(async move { strict.acquire().await.map(drop) })
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let attempts = || nodes.nodes[0].levels.lock().unwrap().len();
    let before = attempts();
    for _ in 0..20 {
        let next = tokio::spawn({
            let plain = plain.clone();
            async move { plain.acquire().await.unwrap() }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        held.release().await.unwrap();
        held = next.await.unwrap();
    }
    waits.abort();
    also_waits.abort();
    // Each of the two makes an attempt after a release. They do not make one after each of their
    // roll-backs, and do not wake each other again and again.
    let attempts = attempts() - before;
    assert!((10..100).contains(&attempts), "{attempts} attempts for 20 releases");
}

/// A fair caller keeps its place in the nodes' queues, so the roll-back of its own grants wakes it.
/// Callers that are not fair pass their wake-ups on to each other. All of them make their next
/// attempt only after a pause.
#[tokio::test]
async fn callers_that_cannot_succeed_do_not_wake_themselves_or_each_other() {
    for (fair, callers) in [(true, 1), (false, 2)] {
        let nodes = three([BarrierReply::Have(0), BarrierReply::Have(0), BarrierReply::Have(0)]);
        let held = nodes.redlock.mutex("wanted").build().unwrap().acquire().await.unwrap();
        let mutex = nodes.redlock.mutex("wanted").fair(fair).durability(Durability::Replicas(1));
        let mutex = mutex.acquire_timeout(Duration::from_secs(3)).build().unwrap();
        let calls = (0..callers).map(|_| {
            let mutex = mutex.clone();
            tokio::spawn(async move { mutex.acquire().await.map(drop) })
        });
        let calls: Vec<_> = calls.collect();
        tokio::time::sleep(Duration::from_millis(200)).await;
        held.release().await.unwrap();
        for call in calls {
            // The last attempt of one may find the grants of the other.
            assert!(call.await.unwrap().is_err());
        }
        let attempts = nodes.nodes[0].levels.lock().unwrap().len();
        assert!((2..250).contains(&attempts), "{attempts} attempts in 2.8 s");
    }
}
