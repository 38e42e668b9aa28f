//! The order in which several waiting handles get a lock.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::node::spi::{
    Batch, IfHeld, LockKeys, LockMode, LockNode as _, Op, OwnerToken, Place, Reply, Terms,
};
use palisade::{MemoryNode, Moment, Redlock};

fn handle(nodes: &[MemoryNode]) -> Redlock {
    let builder = nodes.iter().fold(Redlock::builder(), |b, node| b.node(node.clone()));
    builder.build().unwrap()
}

fn nodes(n: usize) -> Vec<MemoryNode> {
    (0..n).map(|_| MemoryNode::new()).collect()
}

/// A handle releases a lock and acquires it again at once. Its request arrives first, but another
/// handle often gets the lock.
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
        // Count only the first half of the turns. In this half, all handles want the lock.
        let contended = &order[..HANDLES * TURNS / 2];
        let again = contended.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(again < contended.len() / 4, "{n} nodes: {again} of {contended:?}");
        for me in 0..HANDLES {
            let turns = contended.iter().filter(|who| **who == me).count();
            assert!(turns > TURNS / 8, "{n} nodes: {me} had {turns} turns of {contended:?}");
        }
    }
}

/// A majority of the nodes have reserved the lock for handles that never ask again. Only a minority
/// have reserved the lock for the handle that waits.
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
        let op = Op::Acquire {
            mode: LockMode::Exclusive,
            keys: LockKeys::new("wanted"),
            owner: OwnerToken::from_random(ghost as u128),
            ttl: Duration::from_secs(1),
            proposal: 0,
            if_held: Some(IfHeld::Queue(place)),
        };
        let terms = Terms { max_ttl: Duration::from_secs(30), clock_error: Duration::from_secs(1) };
        let batch = Batch { terms, not_after: None, known_since: None, ops: vec![op] };
        let replies = node.call(batch, Moment::from_nanos(u64::MAX)).await;
        assert!(matches!(replies.items[..], [Ok(Reply::Held { .. })]), "{:?}", replies.items);
    }
    guard.release().await.unwrap();
    let guard = waiter.await.unwrap().expect("reservations end");
    guard.release().await.unwrap();
}
