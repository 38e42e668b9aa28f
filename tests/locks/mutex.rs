//! Tests of the mutex over in-memory nodes.

use std::time::Duration;

use palisade::{MemoryNode, Redlock, TryAcquire};

fn redlock(n: usize) -> (Redlock, Vec<MemoryNode>) {
    let nodes: Vec<_> = (0..n).map(|_| MemoryNode::new()).collect();
    let builder = nodes.iter().fold(Redlock::builder(), |b, node| b.node(node.clone()));
    (builder.build().unwrap(), nodes)
}

#[tokio::test]
async fn one_holder_and_growing_tokens() {
    for n in [1, 3, 5] {
        let (r, _nodes) = redlock(n);
        let mut last = 0;
        for _ in 0..50 {
            let guard = r.mutex("invoice:42").build().unwrap().acquire().await.unwrap();
            assert!(guard.fencing_token().get() > last);
            last = guard.fencing_token().get();
            match r.mutex("invoice:42").build().unwrap().try_acquire().await.unwrap() {
                TryAcquire::Taken(t) => assert!(t.retry_after.unwrap() <= Duration::from_secs(15)),
                TryAcquire::Acquired(_) => panic!("two holders"),
            }
            assert_eq!(guard.release().await, Ok(()));
        }
    }
}

#[tokio::test]
async fn a_deadline_is_on_the_clock_of_its_handle() {
    let (r, _nodes) = redlock(1);
    let mutex = r.mutex("a").auto_renew(false).build().unwrap();
    let guard = mutex.acquire().await.unwrap();
    let (earlier, left, later) = (r.now(), guard.remaining(), r.now());
    let until = guard.valid_until();
    assert!(until.since(later) <= left && left <= until.since(earlier));
}

#[tokio::test]
async fn sixty_four_tasks_take_turns() {
    let (r, _nodes) = redlock(3);
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (r, inside) = (r.clone(), inside.clone());
            tokio::spawn(async move {
                let guard = r.mutex("one").build().unwrap().acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                guard.release().await
            })
        })
        .collect();
    for t in tasks {
        assert!(t.await.unwrap().is_ok());
    }
}
