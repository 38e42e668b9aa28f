//! Calls for several permits at once. Such a call gets all its permits or none. The waiters of a
//! full semaphore send few requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use palisade::error::AcquireError;
use palisade::node::spi::{LockMode, LockNode as _, Op, OwnerToken, Reply, Slots};
use palisade::{MemoryNode, Permits, Redlock, Semaphore, TryAcquire};
use palisade_testing::fault::Fault;
use tokio::time::{sleep, timeout};

use crate::nodes::Nodes;
use crate::support::ops;

const LONG: Duration = Duration::from_secs(60);

fn pool(nodes: &Nodes, wait: Duration) -> Semaphore {
    nodes.handle().semaphore("gpu", 4).acquire_timeout(wait).build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_permits_are_held_together_or_none_is() {
    for nodes in Nodes::all() {
        let (a, b) = (pool(&nodes, LONG), pool(&nodes, Duration::from_millis(300)));
        let three = a.acquire_many(3).await.unwrap();
        let tokens: BTreeMap<_, _> = three.slots().iter().copied().collect();
        assert_eq!(tokens.len(), 3, "{three:?}");
        assert!(tokens.keys().all(|slot| *slot < 4) && three.slots().is_sorted());
        assert!(three.is_valid() && three.extend().await.unwrap() <= three.valid_until());
        let refused = b.acquire_many(2).await;
        assert!(matches!(refused, Err(AcquireError::TimedOut { .. })), "{refused:?}");
        // The refused call acquired some of its permits and gave them back. So one permit is free.
        let last = timeout(LONG, a.acquire()).await.unwrap().unwrap();
        assert!(!tokens.contains_key(&last.slot()));
        three.release().await.unwrap();
        let next = pool(&nodes, LONG).acquire_many(3).await.unwrap();
        for (slot, token) in next.slots() {
            assert!(*token > tokens[slot], "the tokens of a slot grow");
        }
        last.release().await.unwrap();
        drop(next);
        assert_eq!(a.acquire_many(4).await.unwrap().slots().len(), 4);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_attempt_gets_several_permits_or_none_and_does_not_wait() {
    for nodes in Nodes::all() {
        let (a, b) = (pool(&nodes, LONG), pool(&nodes, LONG));
        let three = a.try_acquire_many(3).await.unwrap().acquired().expect("four are free");
        assert!(three.is_valid() && three.slots().len() == 3 && three.slots().is_sorted());
        let TryAcquire::Taken(taken) = b.try_acquire_many(2).await.unwrap() else {
            panic!("more than four permits")
        };
        let rest = taken.retry_after.expect("the permits end");
        assert!(!taken.foreign && taken.queued.is_none() && !rest.is_zero(), "{taken:?}");
        let last = b.try_acquire_many(1).await.unwrap().acquired().expect("one is free");
        assert!(three.slots().iter().all(|(slot, _)| *slot != last.slots()[0].0));
        three.release().await.unwrap();
        last.release().await.unwrap();
        let all = b.try_acquire_many(4).await.unwrap().acquired().expect("all are free");
        all.release().await.unwrap();
    }
}

/// "Taken" is an answer of a majority of the nodes. Without a majority, the error must be "no
/// quorum".
#[tokio::test]
async fn one_attempt_without_a_majority_reports_no_quorum() {
    let nodes: Vec<_> = (0..3).map(|_| Fault::new(MemoryNode::new())).collect();
    let redlock = nodes.iter().fold(Redlock::builder(), |b, node| b.node(node.clone()));
    let redlock = redlock.node_deadline(Duration::from_millis(50)).build().unwrap();
    let pool = redlock.semaphore("gpu", 4).build().unwrap();
    let held = pool.acquire_many(4).await.unwrap();
    for node in &nodes[1..] {
        node.control().cut();
    }
    let refused = pool.try_acquire_many(2).await;
    assert!(matches!(refused, Err(AcquireError::NoQuorum(_))), "{refused:?}");
    for node in &nodes {
        node.control().heal();
    }
    held.release().await.unwrap();
    drop(redlock.close(LONG).await);
    let refused = pool.try_acquire_many(2).await;
    assert!(matches!(refused, Err(AcquireError::Closed(_))), "{refused:?}");
}

/// Each write of a semaphore prolongs its key in Redis. A call that waits for more permits than are
/// free only reads, so the key's remaining time falls.
#[tokio::test]
async fn a_call_that_cannot_get_its_permits_writes_nothing() {
    for n in [1, 3] {
        let nodes = Nodes::redis(n);
        let Nodes::Redis(servers) = &nodes else { panic!("these are servers") };
        let left = || -> Vec<u64> {
            let left = servers.iter().map(|server| server.cli(&["pttl", "permits:gpu"]));
            left.map(|ms| ms.parse().expect("the semaphore has an expiry")).collect()
        };
        let quiet = nodes.handle().semaphore("gpu", 4).auto_renew(false).build().unwrap();
        let held = quiet.acquire_many(2).await.unwrap();
        sleep(Duration::from_millis(500)).await;
        let before = left();
        let refused = pool(&nodes, Duration::from_millis(400)).acquire_many(3).await;
        let Err(AcquireError::TimedOut { taken, .. }) = refused else { panic!("{refused:?}") };
        assert!(!taken.foreign && taken.retry_after.is_some_and(|rest| !rest.is_zero()));
        for (before, after) in before.into_iter().zip(left()) {
            assert!(after < before, "a node was written: {after} ms left, {before} ms before");
        }
        assert!(held.is_valid());
    }
}

/// Two callers want three of four permits each, so that only one can hold its permits at a time.
/// Neither caller starves, and they do not deadlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_callers_of_three_of_four_permits_both_get_their_turns() {
    for nodes in Nodes::all() {
        let inside: Arc<[AtomicUsize; 4]> = Arc::default();
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let (pool, inside) = (pool(&nodes, LONG), Arc::clone(&inside));
                tokio::spawn(async move {
                    for _ in 0..10 {
                        let permits = pool.acquire_many(3).await.expect("a caller starves");
                        let slots = || permits.slots().iter().map(|(slot, _)| usize::from(*slot));
                        for slot in slots() {
                            assert_eq!(inside[slot].fetch_add(1, SeqCst), 0, "two in one slot");
                        }
                        sleep(Duration::from_millis(5)).await;
                        for slot in slots() {
                            inside[slot].fetch_sub(1, SeqCst);
                        }
                        permits.release().await.unwrap();
                    }
                })
            })
            .collect();
        for caller in callers {
            timeout(2 * LONG, caller).await.expect("a caller starves").unwrap();
        }
    }
}

#[tokio::test]
async fn a_wrong_number_of_permits_is_refused_with_the_rule() {
    let nodes = Nodes::memory(3);
    let pool = pool(&nodes, LONG);
    for n in [0, 5, u16::MAX] {
        let refused = pool.acquire_many(n).await;
        let Err(AcquireError::Config(error)) = refused else { panic!("{refused:?}") };
        let text = error.to_string();
        let tried = pool.try_acquire_many(n).await;
        assert!(matches!(&tried, Err(AcquireError::Config(same)) if same.to_string() == text));
        for words in ["semaphore \"gpu\"", "`n` is", "between 1 and 4, the number of permits"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
    assert_eq!(pool.inspect().await.unwrap().available(), 4);
}

#[tokio::test]
async fn permits_end_together() {
    let nodes = Nodes::memory(3);
    let redlock = nodes.handle();
    let brief = redlock.semaphore("gpu", 4).ttl(Duration::from_millis(300)).auto_renew(false);
    let brief = brief.build().unwrap();
    let permits = brief.acquire_many(2).await.unwrap();
    timeout(LONG, permits.lost()).await.unwrap();
    assert!(!permits.is_valid() && permits.extend().await.is_err());
    assert!(permits.release().await.is_err());
    let permits = pool(&nodes, LONG).acquire_many(2).await.unwrap();
    drop(permits);
    let all: Permits = timeout(LONG, pool(&nodes, LONG).acquire_many(4)).await.unwrap().unwrap();
    all.release().await.unwrap();
}

/// Sends an op on the slots of the semaphore directly to a node. Returns the node's reply.
async fn tell(node: &MemoryNode, handle: &Redlock, op: Op) -> Reply {
    let batch = ops::batch(LONG, vec![op]);
    let replies = node.call(batch, handle.now() + Duration::from_secs(10)).await;
    replies.items.into_iter().next().unwrap().unwrap()
}

/// A full semaphore of two permits on three nodes. Each of its two holders is missing on one node.
/// A waiter gets a free slot on each of these two nodes, but not the same slot on a majority. It
/// gives both slots back. Each release wakes the next waiter, which fails in the same way. The
/// waiters must send fewer and fewer requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_wake_each_other_in_vain_get_quiet() {
    let all: Vec<_> = (0..3).map(|_| MemoryNode::new()).collect();
    let handle = || {
        let builder = all.iter().fold(Redlock::builder(), |b, n| b.node(n.clone()));
        builder.ttl(LONG).max_ttl(LONG).build().unwrap()
    };
    let waiters: Vec<_> = (0..4).map(|_| handle()).collect();
    let two = Slots::any(2);
    for (node, slot) in [(0, 0), (1, 0), (0, 1), (2, 1)] {
        let acquire = ops::acquire("permits:gpu", OwnerToken::from_random(slot.into()), LONG);
        let op = ops::in_mode(acquire, LockMode::Slot(two.exactly(slot)));
        let got = tell(&all[node], &waiters[0], op).await;
        assert!(matches!(got, Reply::Permit { .. }), "{got:?}");
    }
    let tasks: Vec<_> = waiters
        .iter()
        .map(|redlock| {
            let pool = redlock.semaphore("gpu", 2).acquire_timeout(LONG).build().unwrap();
            tokio::spawn(async move { drop(pool.acquire().await.unwrap()) })
        })
        .collect();
    let ops = || -> u64 { waiters.iter().flat_map(Redlock::metrics).map(|node| node.ops).sum() };
    // In the end, each of the four waiters is woken about six times a second and sends at most ten
    // ops each time. So they send fewer than 300 ops a second in all.
    let is_quiet = async {
        loop {
            let (begun, before) = (Instant::now(), ops());
            sleep(Duration::from_secs(3)).await;
            if (ops() - before) as f64 / begun.elapsed().as_secs_f64() < 300.0 {
                return;
            }
        }
    };
    timeout(Duration::from_secs(30), is_quiet).await.expect("they wake each other without end");
    for slot in 0..2 {
        for node in &all {
            let release = ops::release("permits:gpu", OwnerToken::from_random(slot));
            let op = ops::in_mode(release, LockMode::Slot(two));
            tell(node, &waiters[0], op).await;
        }
    }
    for task in tasks {
        timeout(LONG, task).await.expect("a waiter is not woken").unwrap();
    }
}
