//! Semaphores that several handles (clients) share: the holder of each slot, fencing tokens,
//! waiting, and nodes that lose their data. Also a comparison with a plain counter of permits,
//! which would admit too many holders.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use palisade::error::AcquireError;
use palisade::node::spi::{LockNode, Op, Reply};
use palisade::{
    LockGuard, MemoryNode, NodePermits, Permit, Permits, Redlock, RedlockBuilder, Semaphore,
    TryAcquire,
};
use palisade_testing::fault::{Fault, Odds};
use tokio::time::{sleep, timeout};

use crate::support::wrap::Wrap;

use crate::nodes::{Nodes, is_taken, seldom};

fn pool(nodes: &Nodes, permits: u16) -> Semaphore {
    nodes.handle().semaphore("gpu", permits).build().unwrap()
}

/// Acquires all permits one after the other. A call repeats its attempt if it collides with another
/// attempt.
async fn all_of(pool: &Semaphore) -> Vec<Permit> {
    let mut held = Vec::new();
    while held.len() < usize::from(pool.permits()) {
        held.push(timeout(Duration::from_secs(60), pool.acquire()).await.unwrap().unwrap());
    }
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_slot_has_one_holder_and_the_next_caller_is_refused() {
    for nodes in Nodes::all() {
        for permits in [1, 2, 5] {
            let (a, b) = (pool(&nodes, permits), pool(&nodes, permits));
            let mut held = all_of(&a).await;
            let slots: BTreeSet<u16> = held.iter().map(Permit::slot).collect();
            assert!(slots.into_iter().eq(0..permits), "{held:?}");
            for _ in 0..5 {
                assert!(is_taken(&b.try_acquire().await), "a permit too many");
            }
            let gone = held.swap_remove(0);
            let (slot, token) = (gone.slot(), gone.fencing_token());
            gone.release().await.unwrap();
            let next = b.acquire().await.unwrap();
            assert_eq!(next.slot(), slot);
            assert!(next.fencing_token() > token, "the tokens of a slot grow");
            assert!(is_taken(&a.try_acquire().await), "a permit too many");
            for permit in held.into_iter().chain([next]) {
                permit.release().await.unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_of_a_holder_that_died_comes_back() {
    for nodes in Nodes::all() {
        let redlock = nodes.handle();
        let brief = redlock.semaphore("gpu", 2).ttl(Duration::from_secs(3)).auto_renew(false);
        let brief = brief.build().unwrap();
        let dead = brief.acquire().await.unwrap();
        let (slot, token) = (dead.slot(), dead.fencing_token());
        // The holder dies like a killed process: its permit is not released, but expires.
        std::mem::forget(dead);
        let other = pool(&nodes, 2);
        let held = other.acquire().await.unwrap();
        assert_ne!(held.slot(), slot);
        let next = timeout(Duration::from_secs(60), other.acquire()).await.unwrap().unwrap();
        assert_eq!(next.slot(), slot);
        assert!(next.fencing_token() > token);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_with_fewer_permits_get_only_the_lower_slots() {
    for nodes in Nodes::all() {
        let (few, many) = (pool(&nodes, 1), pool(&nodes, 4));
        let held = all_of(&many).await;
        assert!(is_taken(&few.try_acquire().await));
        let (lowest, others): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|permit| permit.slot() == 0);
        for permit in others {
            permit.release().await.unwrap();
        }
        assert!(is_taken(&few.try_acquire().await), "a slot above those that it asks for");
        drop(lowest);
        let lowest = timeout(Duration::from_secs(60), few.acquire()).await.unwrap().unwrap();
        assert_eq!(lowest.slot(), 0);
        assert!(is_taken(&few.try_acquire().await));
        let other = many.acquire().await.unwrap();
        assert_ne!(other.slot(), 0);
    }
}

#[tokio::test]
async fn a_lost_permit_says_so() {
    let nodes = Nodes::memory(3);
    let redlock = nodes.handle();
    let brief = redlock.semaphore("gpu", 3).ttl(Duration::from_millis(300)).auto_renew(false);
    let brief = brief.build().unwrap();
    let permit = brief.acquire().await.unwrap();
    assert!(permit.extend().await.is_ok());
    timeout(Duration::from_secs(5), permit.lost()).await.unwrap();
    assert!(!permit.is_valid() && permit.release().await.is_err());
    let slot = brief.run(|permit| async move { permit.slot() }).await.unwrap();
    assert!(slot < 3);
    let guard = LockGuard::from(brief.acquire().await.unwrap());
    assert!(guard.is_valid());
}

/// Two handles hold and renew both permits of a semaphore. The nodes lose their data, one after the
/// other. A node without its data grants no permit, so no third holder gets one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_survive_a_node_that_forgets_them() {
    let all: Vec<_> = (0..3).map(|_| MemoryNode::new()).collect();
    let handle = || {
        let builder = all.iter().fold(Redlock::builder(), |b, n| b.node(n.clone()));
        builder.ttl(Duration::from_secs(2)).build().unwrap()
    };
    let (a, b) = (handle(), handle());
    let (a, b) = (a.semaphore("gpu", 2).build().unwrap(), b.semaphore("gpu", 2).build().unwrap());
    let (one, two) = (a.acquire().await.unwrap(), b.acquire().await.unwrap());
    let begun = Instant::now();
    for node in all.iter().cycle() {
        node.restart_empty();
        // This wait is longer than the quarantine of a node without its data. In this time, which
        // lasts one ttl, the node grants nothing.
        sleep(Duration::from_millis(2_500)).await;
        assert!(!matches!(a.try_acquire().await, Ok(TryAcquire::Acquired(_))), "a third holder");
        assert!(one.is_valid() && two.is_valid());
        if begun.elapsed() > Duration::from_secs(7) {
            break;
        }
    }
    assert_eq!(a.inspect().await.unwrap().held().len(), 2);
    one.release().await.unwrap();
    two.release().await.unwrap();
}

/// More callers than permits, with several handles. No slot has two holders at a time, and each
/// caller gets a permit as often as it wants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_callers_get_the_permits_that_are_released() {
    const PERMITS: u16 = 3;
    for nodes in Nodes::all() {
        let inside: Arc<[AtomicUsize; 3]> = Arc::default();
        let callers: Vec<_> = (0..9)
            .flat_map(|i| {
                // Every third handle has two callers. The other handles have one caller.
                let redlock = nodes.handle();
                let inside = Arc::clone(&inside);
                let pool = redlock.semaphore("gpu", PERMITS).build().unwrap();
                let pools = if i % 3 == 0 { vec![pool.clone(), pool] } else { vec![pool] };
                pools.into_iter().map(move |pool| {
                    let inside = Arc::clone(&inside);
                    tokio::spawn(async move {
                        for _ in 0..10 {
                            let permit = pool.acquire().await.unwrap();
                            let slot = &inside[usize::from(permit.slot())];
                            assert_eq!(slot.fetch_add(1, SeqCst), 0, "two in one slot");
                            sleep(Duration::from_millis(5)).await;
                            slot.fetch_sub(1, SeqCst);
                            permit.release().await.unwrap();
                        }
                    })
                })
            })
            .collect();
        let all = futures_util::future::join_all(callers);
        for caller in timeout(Duration::from_secs(240), all).await.expect("a caller starves") {
            caller.unwrap();
        }
    }
}

/// Each release of a permit wakes a waiter by a hint (a message from a node). The waiter's own
/// timer would fire only after one minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_release_is_handed_over_to_a_waiter() {
    for nodes in Nodes::all() {
        let held = all_of(&pool(&nodes, 3)).await;
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let pool = nodes.handle().semaphore("gpu", 3).retry(seldom()).build().unwrap();
                tokio::spawn(async move { pool.acquire().await.unwrap() })
            })
            .collect();
        sleep(Duration::from_millis(500)).await;
        for permit in held {
            permit.release().await.unwrap();
        }
        let all = futures_util::future::join_all(waiters);
        let got = timeout(Duration::from_secs(45), all).await.expect("a waiter is not woken");
        let got: Vec<_> = got.into_iter().map(Result::unwrap).collect();
        let slots: BTreeSet<u16> = got.iter().map(Permit::slot).collect();
        assert_eq!(slots.len(), 3);
    }
}

/// A waiter timed out, and its place is still in the queue. If the hint of the next release (a
/// wake-up message) goes to this waiter, its handle passes it on to the next waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_gave_up_does_not_swallow_a_release() {
    for nodes in Nodes::all() {
        let mut held = all_of(&pool(&nodes, 2)).await;
        let gone = nodes.handle();
        let short = gone.semaphore("gpu", 2).acquire_timeout(Duration::from_millis(300));
        let refused = short.build().unwrap().acquire().await;
        assert!(matches!(refused, Err(AcquireError::TimedOut { .. })), "{refused:?}");
        let next = nodes.handle().semaphore("gpu", 2).retry(seldom()).build().unwrap();
        let next = tokio::spawn(async move { next.acquire().await.map(drop) });
        sleep(Duration::from_millis(500)).await;
        held.pop().unwrap().release().await.unwrap();
        timeout(Duration::from_secs(45), next).await.expect("it is woken").unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inspection_shows_the_permits() {
    for nodes in Nodes::all() {
        let (a, b) = (pool(&nodes, 3), pool(&nodes, 3));
        assert_eq!(a.inspect().await.unwrap().available(), 3);
        let (one, two) = (a.acquire().await.unwrap(), b.acquire().await.unwrap());
        // An acquire returns as soon as a majority of the nodes has granted. So the slowest node
        // can still lack the permit.
        let begun = Instant::now();
        loop {
            let seen = a.inspect().await.unwrap();
            let held: BTreeSet<u16> = seen.held().iter().map(|holder| holder.slot).collect();
            if held == BTreeSet::from([one.slot(), two.slot()]) && seen.available() == 1 {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{seen:?}");
            sleep(Duration::from_millis(20)).await;
        }
        // A mutex of the same name is another lock, so it is free.
        drop(nodes.handle().mutex("gpu").build().unwrap().acquire().await.unwrap());
        one.release().await.unwrap();
        two.release().await.unwrap();
    }
}

/// Returns a node that grants as many permits as the semaphore has, but reports slot 0 for each of
/// them. So a majority of such nodes counts permits, without agreement on a slot.
fn counting(node: &MemoryNode) -> Wrap {
    Wrap::new(node.clone(), |node, batch, deadline| async move {
        let mut replies = node.call(batch, deadline).await;
        for reply in replies.items.iter_mut().flatten() {
            if let Reply::Permit { slot, .. } = reply {
                *slot = 0;
            }
        }
        replies
    })
}

/// Three callers try to acquire one of two permits, one after the other. For each caller, another
/// one of the three nodes does not reply. Returns the number of callers that hold a permit in the
/// end.
async fn holders(all: &[MemoryNode], handle: impl Fn() -> Redlock) -> usize {
    let mut held = Vec::new();
    for unreached in all {
        let span = Duration::from_millis(300);
        assert!(unreached.close(span));
        let pool = handle().semaphore("gpu", 2).build().unwrap();
        for _ in 0..3 {
            if let Ok(TryAcquire::Acquired(permit)) = pool.try_acquire().await {
                held.push(permit);
                break;
            }
        }
        sleep(span + Duration::from_millis(50)).await;
    }
    held.iter().filter(|permit| permit.is_valid()).count()
}

#[tokio::test]
async fn a_counter_lets_in_too_many_and_a_semaphore_does_not() {
    let nodes = || (0..3).map(|_| MemoryNode::new()).collect::<Vec<_>>();
    let all = nodes();
    let counted = || all.iter().map(counting).fold(Redlock::builder(), RedlockBuilder::node);
    assert_eq!(holders(&all, || counted().build().unwrap()).await, 3);
    let all = nodes();
    let numbered = || all.iter().fold(Redlock::builder(), |b, n| b.node(n.clone()));
    assert_eq!(holders(&all, || numbered().build().unwrap()).await, 2);
}

/// The replies of the nodes are delayed by random times. So an attempt often gets different slots
/// on different nodes, and then moves to one slot. The caller is dropped before, during or after
/// this move.
#[tokio::test(start_paused = true)]
async fn callers_that_give_up_at_any_time_leave_no_permit_behind() {
    let odds = Odds { delay: 1.0, max_delay: Duration::from_millis(10), ..Odds::default() };
    let mut builder = Redlock::builder();
    for seed in 0..3 {
        let node = Fault::new(MemoryNode::new());
        node.control().dice(seed, odds);
        builder = builder.node(node);
    }
    let redlock = builder.build().unwrap();
    let pool = redlock.semaphore("gpu", 10).ttl(Duration::from_secs(10)).build().unwrap();
    let callers = (0..20_u64).map(|caller| {
        let pool = pool.clone();
        tokio::spawn(async move {
            for turn in 0..40_u64 {
                let patience = 1_000 + (caller * 7_919 + turn * 104_729) % 40_000;
                let got = timeout(Duration::from_micros(patience), pool.acquire()).await;
                if let Ok(Ok(permit)) = got {
                    let _ = permit.release().await;
                }
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    sleep(Duration::from_secs(1)).await;
    for (node, seen) in pool.inspect().await.unwrap().nodes {
        assert!(matches!(&seen, NodePermits::Held(all) if all.is_empty()), "{node}: {seen:?}");
    }
}

/// Returns a node whose replies are delayed by `delay` milliseconds. The permits in `holder` are
/// released as soon as the node has executed its first batch with an acquire.
fn late(node: &MemoryNode, delay: u64, holder: Option<Permits>) -> Wrap {
    let holder = Arc::new(tokio::sync::Mutex::new(holder));
    Wrap::new(node.clone(), move |node, batch, deadline| {
        let holder = Arc::clone(&holder);
        async move {
            let acquires = batch.ops.iter().any(|op| matches!(op, Op::Acquire { .. }));
            let replies = node.call(batch, deadline).await;
            let holder = if acquires { holder.lock().await.take() } else { None };
            if let Some(holder) = holder {
                holder.release().await.unwrap();
            }
            sleep(Duration::from_millis(delay)).await;
            replies
        }
    })
}

/// The winner of a permit asks the third node for the slot that it has won on the other two. The
/// third node's reply to the first acquire arrives later, and is a refusal. The node may have
/// granted the slot since, so the release must be sent to it, too.
#[tokio::test(start_paused = true)]
async fn a_release_reaches_a_node_whose_refusal_came_after_the_permit_was_won() {
    let nodes: Vec<_> = (0..3).map(|_| MemoryNode::new()).collect();
    let alone = Redlock::builder().node(nodes[2].clone()).build().unwrap();
    let holder = alone.semaphore("gpu", 2).build().unwrap().acquire_many(2).await.unwrap();
    let late =
        [late(&nodes[0], 5, None), late(&nodes[1], 5, None), late(&nodes[2], 20, Some(holder))];
    let redlock = late.into_iter().fold(Redlock::builder(), RedlockBuilder::node);
    let pool = redlock.build().unwrap().semaphore("gpu", 2).build().unwrap();
    let permit = pool.acquire().await.unwrap();
    sleep(Duration::from_millis(100)).await;
    let on_the_last = || async {
        let seen = alone.semaphore("gpu", 2).build().unwrap().inspect().await.unwrap();
        seen.held().len()
    };
    assert_eq!(on_the_last().await, 1, "the slot is the winner's there, too");
    permit.release().await.unwrap();
    sleep(Duration::from_millis(100)).await;
    assert_eq!(on_the_last().await, 0);
}
