//! Read-write locks with very many readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use palisade::error::AcquireError;
use palisade::node::spi::{LockMode, LockNode as _, OwnerToken, Reply};
use palisade::{MemoryNode, Redlock};
use tokio::time::{sleep, timeout};

use crate::nodes::{Nodes, in_memory};
use crate::support::ops;

const LEASE: Duration = Duration::from_secs(30);

/// Fifty readers overlap, so that the lock is never free. While a writer waits, no reader gets the
/// lock again. So only the readers that ask before the writer's first requests arrive can get the
/// lock before the writer.
async fn writers_wait_for_the_readers_that_hold_the_lock(
    handle: impl Fn() -> Redlock,
    writes: usize,
    most: usize,
) {
    let lock = || handle().rw_lock("doc").acquire_timeout(8 * LEASE).build().unwrap();
    let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::<AtomicUsize>::default());
    let readers: Vec<_> = (0..50)
        .map(|i| {
            let (lock, stop, reads) = (lock(), Arc::clone(&stop), Arc::clone(&reads));
            tokio::spawn(async move {
                while !stop.load(SeqCst) {
                    let guard = lock.read().await.unwrap();
                    reads.fetch_add(1, SeqCst);
                    sleep(Duration::from_millis(20 + i as u64 % 13)).await;
                    drop(guard);
                }
            })
        })
        .collect();
    let lock = lock();
    let mut passed = Vec::new();
    for _ in 0..writes {
        sleep(Duration::from_millis(50)).await;
        let before = reads.load(SeqCst);
        let write = timeout(8 * LEASE, lock.write()).await;
        let guard = write.expect("the writer starves").unwrap();
        passed.push(reads.load(SeqCst) - before);
        guard.release().await.unwrap();
    }
    passed.sort_unstable();
    let p99 = passed[writes * 99 / 100];
    assert!(p99 <= most, "{p99} reads began before the write: {passed:?}");
    stop.store(true, SeqCst);
    for reader in readers {
        timeout(8 * LEASE, reader).await.expect("a reader starves").unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_waits_for_fifty_readers_once() {
    for n in [1, 3] {
        writers_wait_for_the_readers_that_hold_the_lock(in_memory(n), 100, 50).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_waits_for_fifty_readers_on_servers_once() {
    let nodes = Nodes::redis(3);
    writers_wait_for_the_readers_that_hold_the_lock(|| nodes.handle(), 25, 600).await;
}

/// A node has room for 4,096 readers of a lock. The next reader waits until a reader releases, as
/// it would wait for a writer.
#[tokio::test]
async fn a_reader_that_finds_no_room_waits_for_another_to_leave() {
    let node = MemoryNode::new();
    let redlock = Redlock::builder().node(node.clone()).build().unwrap();
    let tell = async |op| {
        let batch = ops::batch(LEASE, vec![ops::in_mode(op, LockMode::Shared)]);
        let replies = node.call(batch, redlock.now() + LEASE).await;
        replies.items.into_iter().next().unwrap().unwrap()
    };
    let reader = |n| OwnerToken::from_random(n);
    for n in 0..4_096 {
        let op = ops::acquire("doc", reader(n), LEASE);
        assert!(matches!(tell(op).await, Reply::Granted { .. }));
    }
    let brief = redlock.rw_lock("doc").acquire_timeout(Duration::from_millis(100));
    let refused = brief.build().unwrap().read().await;
    let Err(AcquireError::TimedOut { taken, .. }) = refused else { panic!("{refused:?}") };
    assert!(!taken.foreign && taken.retry_after.is_some_and(|rest| rest <= LEASE), "{taken:?}");
    let waits = redlock.rw_lock("doc").acquire_timeout(LEASE).build().unwrap();
    let waits = tokio::spawn(async move { waits.read().await });
    sleep(Duration::from_millis(50)).await;
    assert_eq!(tell(ops::release("doc", reader(7))).await, Reply::Done);
    let guard = timeout(LEASE, waits).await.expect("there is room").unwrap().unwrap();
    guard.release().await.unwrap();
}
