//! The order in which several handles (clients) that wait for a lock get it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::node::spi::{IfHeld, LockNode as _, Place, Reply};
use palisade::test_util::TokioEnv;
use palisade::{MemoryNode, Moment, Redlock};
use palisade_testing::fault::{Fault, Odds, Step};

use crate::support::memory::linked;
use crate::support::ops;

fn handle(nodes: &[MemoryNode]) -> Redlock {
    let builder = nodes.iter().fold(Redlock::builder(), |b, node| b.node(node.clone()));
    builder.build().unwrap()
}

fn nodes(n: usize) -> Vec<MemoryNode> {
    (0..n).map(|_| MemoryNode::new()).collect()
}

/// Several `Redlock` handles acquire and release a lock in a loop. A handle that has just released
/// the lock sends its next request first, but usually another handle, which has waited, gets the
/// lock.
#[tokio::test]
async fn a_handle_that_asks_again_at_once_comes_after_those_who_wait() {
    const HANDLES: usize = 4;
    const TURNS: usize = 40;
    for n in [1, 5] {
        let nodes = nodes(n);
        let order: Arc<Mutex<Vec<usize>>> = Arc::default();
        let tasks: Vec<_> = (0..HANDLES)
            .map(|me| {
                let (redlock, order) = (handle(&nodes), Arc::clone(&order));
                tokio::spawn(async move {
                    let mutex = redlock.mutex("wanted").build().unwrap();
                    for _ in 0..TURNS {
                        let guard = mutex.acquire().await.unwrap();
                        order.lock().unwrap().push(me);
                        // Wait until the other handles are in the queue.
                        tokio::time::sleep(Duration::from_millis(2)).await;
                        guard.release().await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let order = order.lock().unwrap();
        // Count only the first half of the turns, because all handles compete for the lock in this
        // half.
        let contended = &order[..HANDLES * TURNS / 2];
        let again = contended.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(again < contended.len() / 4, "{n} nodes: {again} of {contended:?}");
        for me in 0..HANDLES {
            let turns = contended.iter().filter(|who| **who == me).count();
            assert!(turns > TURNS / 8, "{n} nodes: {me} had {turns} turns of {contended:?}");
        }
    }
}

/// The lock was released. A majority of the nodes keep it reserved for handles (clients) that never
/// ask again. Only a minority keep it reserved for the handle that waits. The waiting handle gets
/// the lock when the reservations end.
#[tokio::test]
async fn a_lock_that_is_reserved_for_who_never_comes_is_had_all_the_same() {
    let nodes = nodes(5);
    let (first, second) = (handle(&nodes), handle(&nodes));
    let guard = first.mutex("wanted").build().unwrap().acquire().await.unwrap();
    let waiter = tokio::spawn({
        let mutex = second.mutex("wanted").build().unwrap();
        async move { mutex.acquire().await }
    });
    for (ghost, node) in nodes.iter().take(3).enumerate() {
        let place = Place {
            waiter: ghost as u64,
            waited: Duration::from_secs(600),
            needs: Duration::from_secs(600),
        };
        let op = ops::acquire("wanted", ops::owner(), Duration::from_secs(1));
        let op = ops::if_held(op, IfHeld::Queue(place));
        let batch = ops::batch(Duration::from_secs(30), vec![op]);
        let replies = node.call(batch, Moment::from_nanos(u64::MAX)).await;
        assert!(matches!(replies.items[..], [Ok(Reply::Held { .. })]), "{:?}", replies.items);
    }
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().expect("reservations end");
    guard.release().await.unwrap();
}

/// Five callers want a lock again and again; three of them share a handle. The request of a caller
/// that has just released arrives before the request of the handle's next waiter. Each caller still
/// gets its turn, because the handle serves its callers in the order of their waits.
#[tokio::test(start_paused = true)]
async fn callers_of_one_handle_come_in_the_order_of_their_waits() {
    let env = Arc::new(TokioEnv::new());
    let node = MemoryNode::builder().env(env.clone()).build();
    let late = |seed| {
        let node = Fault::new(node.clone()).env(env.clone());
        let max_delay = Duration::from_millis(2);
        node.control().dice(seed, Odds { delay: 1.0, max_delay, ..Odds::default() });
        Redlock::builder().node(node).env(env.clone()).build().unwrap()
    };
    let (one, other) = (late(1), late(2));
    let turns: Arc<Mutex<Vec<usize>>> = Arc::default();
    let tasks: Vec<_> = (0..5)
        .map(|me| {
            let redlock = if me < 3 { &one } else { &other };
            let mutex = redlock.mutex("wanted").build().unwrap();
            let turns = Arc::clone(&turns);
            tokio::spawn(async move {
                loop {
                    let guard = mutex.acquire().await.unwrap();
                    turns.lock().unwrap().push(me);
                    tokio::time::sleep(Duration::from_millis(6)).await;
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    while turns.lock().unwrap().len() < 300 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    let turns = turns.lock().unwrap();
    let of = |me: usize| turns.iter().filter(|who| **who == me).count();
    let of_each: Vec<_> = (0..5).map(of).collect();
    assert!(of_each.iter().all(|turns| *turns > 25), "one starves: {of_each:?}");
}

/// The first waiter of a handle is woken, and is dropped before its request is answered. The second
/// one is woken instead, long before its own timer ends.
#[tokio::test(start_paused = true)]
async fn a_call_that_ends_passes_its_wake_up_on() {
    let (one, link) = linked();
    let mutex = || one.mutex("wanted").build().unwrap();
    let wait = || {
        tokio::spawn({
            let mutex = mutex();
            async move { mutex.acquire().await.unwrap() }
        })
    };
    let (moment, mut late) = (Duration::from_millis(50), Vec::new());
    for _ in 0..20 {
        let holder = mutex().acquire().await.unwrap();
        let first = wait();
        tokio::time::sleep(moment).await;
        let second = wait();
        tokio::time::sleep(Duration::from_secs(3)).await;
        // The release goes through; the request that it wakes is late.
        link.script([Step::fine(), Step::delay(4 * moment)]);
        holder.release().await.unwrap();
        tokio::time::sleep(moment).await;
        first.abort();
        drop(first);
        let ended = tokio::time::Instant::now();
        let guard = second.await.unwrap();
        late.extend(Some(ended.elapsed()).filter(|late| *late > 10 * moment));
        guard.release().await.unwrap();
    }
    assert!(late.len() < 3, "only its timer woke the second one: {late:?}");
}
