//! Read-write locks that several handles (clients) share: who may hold the lock together, fencing
//! tokens, waiting, and the end of a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use palisade::{FencingToken, MemoryNode, NodeView, RwLock, TryAcquire};
use palisade_testing::fault::{Fault, Odds};
use tokio::time::{sleep, timeout};

use crate::nodes::{Nodes, is_taken, seldom};
use crate::support::memory::Timed;

impl Nodes {
    fn lock(&self) -> RwLock {
        self.handle().rw_lock("doc").build().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_share_and_writers_exclude() {
    for nodes in Nodes::all() {
        let (a, b) = (nodes.lock(), nodes.lock());
        let mutex = nodes.handle().mutex("doc").build().unwrap();
        let (one, two) = (a.read().await.unwrap(), b.read().await.unwrap());
        assert!(is_taken(&a.try_write().await), "a writer beside readers");
        assert!(matches!(mutex.try_acquire().await, Ok(TryAcquire::Taken(_))));
        one.release().await.unwrap();
        assert!(is_taken(&b.try_write().await), "a writer beside a reader");
        two.release().await.unwrap();
        let writer = a.write().await.unwrap();
        assert!(is_taken(&b.try_read().await), "a reader beside a writer");
        writer.release().await.unwrap();
        let holder = mutex.acquire().await.unwrap();
        assert!(is_taken(&b.try_read().await), "a reader beside a mutex");
        holder.release().await.unwrap();
        drop(b.read().await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_readers_token_is_between_those_of_the_writers() {
    for nodes in Nodes::all() {
        let (a, b) = (nodes.lock(), nodes.lock());
        let mut last = FencingToken::default();
        for _ in 0..5 {
            let writer = a.write().await.unwrap();
            let written = writer.fencing_token();
            assert!(written > last, "{written} after {last}");
            let reader = writer.downgrade().await;
            assert_eq!(reader.fencing_token(), written);
            let beside = b.read().await.unwrap();
            assert!(beside.fencing_token() >= written);
            last = beside.fencing_token();
            reader.release().await.unwrap();
            beside.release().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_lets_readers_in_and_no_writer() {
    for nodes in Nodes::all() {
        let (a, b, c) = (nodes.lock(), nodes.lock(), nodes.lock());
        let writer = a.write().await.unwrap();
        // A reader and then a writer wait, in this order.
        let reader = tokio::spawn({
            let b = b.clone();
            async move { b.read().await }
        });
        sleep(Duration::from_millis(150)).await;
        let next = tokio::spawn({
            let c = c.clone();
            async move { c.write().await }
        });
        sleep(Duration::from_millis(150)).await;
        let mine = writer.downgrade().await;
        let theirs = timeout(Duration::from_secs(5), reader).await.unwrap().unwrap().unwrap();
        assert!(mine.is_valid() && !next.is_finished());
        assert!(is_taken(&b.try_read().await), "a reader that came after the writer");
        theirs.release().await.unwrap();
        assert!(mine.extend().await.is_ok());
        mine.release().await.unwrap();
        let next = timeout(Duration::from_secs(10), next).await.unwrap().unwrap().unwrap();
        next.release().await.unwrap();
    }
}

/// Two of three nodes do not execute the downgrade of a writer to a reader. The next renewal
/// executes the downgrade on these two nodes. Until then, no writer gets the lock.
#[tokio::test]
async fn a_half_done_downgrade_is_finished_by_the_next_renewal() {
    let all: Vec<_> = (0..3).map(|_| MemoryNode::new()).collect();
    let nodes = Nodes::Memory(all.clone());
    let (a, b) = (nodes.lock(), nodes.lock());
    let writer = a.write().await.unwrap();
    // Two nodes are closed: they do not reply for a time, as during a planned handover, which moves
    // or restarts a server.
    for node in &all[..2] {
        assert!(node.close(Duration::from_millis(300)));
    }
    let reader = writer.downgrade().await;
    assert!(reader.is_valid(), "a downgrade that too few confirm loses nothing");
    assert!(is_taken(&b.try_write().await) || b.try_write().await.is_err());
    sleep(Duration::from_millis(350)).await;
    assert!(reader.extend().await.is_ok());
    drop(b.read().await.unwrap());
    let seen = a.inspect().await.unwrap();
    assert_eq!(seen.readers().len(), 1);
    assert!(seen.nodes.iter().all(|(_, view)| matches!(view, NodeView::Readers { .. })));
    reader.release().await.unwrap();
    assert!(a.inspect().await.unwrap().is_free());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inspection_shows_the_readers() {
    for nodes in Nodes::all() {
        let (a, b) = (nodes.lock(), nodes.lock());
        assert!(a.inspect().await.unwrap().is_free());
        let (one, two) = (a.read().await.unwrap(), b.read().await.unwrap());
        // An acquire returns as soon as a majority of the nodes has granted. So the slowest node
        // may not show the reader yet.
        let begun = Instant::now();
        loop {
            let seen = a.inspect().await.unwrap();
            assert!(seen.holder().is_none() && !seen.is_free());
            if seen.readers().len() == 2 {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{seen:?}");
            sleep(Duration::from_millis(20)).await;
        }
        one.release().await.unwrap();
        two.release().await.unwrap();
        drop(a.write().await.unwrap());
    }
}

#[tokio::test]
async fn a_lost_reader_says_so() {
    let nodes = Nodes::memory(3);
    let redlock = nodes.handle();
    let lock = redlock.rw_lock("doc").ttl(Duration::from_millis(300)).auto_renew(false);
    let lock = lock.build().unwrap();
    let reader = lock.read().await.unwrap();
    timeout(Duration::from_secs(5), reader.lost()).await.unwrap();
    assert!(!reader.is_valid() && reader.release().await.is_err());
    let reader = lock.read().await.unwrap();
    assert!(reader.extend().await.is_ok());
    drop(reader);
    assert!(lock.write_with(|guard| async move { guard.is_valid() }).await.unwrap());
    assert!(lock.read_with(|guard| async move { guard.is_valid() }).await.unwrap());
}

/// Readers overlap, so at least one of them always holds the lock. A writer gets the lock, although
/// the lock was never free during the wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_gets_past_readers_without_end() {
    for nodes in Nodes::all() {
        let stop = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..8)
            .map(|i: u64| {
                let (lock, stop) = (nodes.lock(), Arc::clone(&stop));
                tokio::spawn(async move {
                    let mut reads = 0;
                    while !stop.load(SeqCst) {
                        let guard = lock.read().await.unwrap();
                        sleep(Duration::from_millis(20 + 3 * i)).await;
                        drop(guard);
                        reads += 1;
                    }
                    reads
                })
            })
            .collect();
        sleep(Duration::from_millis(200)).await;
        let lock = nodes.lock();
        for _ in 0..5 {
            let writer = timeout(Duration::from_secs(20), lock.write()).await;
            writer.expect("the writer starves").unwrap().release().await.unwrap();
        }
        stop.store(true, SeqCst);
        for reader in readers {
            assert!(reader.await.unwrap() > 2, "a reader starves");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_gets_past_writers_without_end() {
    for nodes in Nodes::all() {
        let stop = Arc::new(AtomicBool::new(false));
        let inside = Arc::new(AtomicI64::new(0));
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let (lock, stop, inside) = (nodes.lock(), Arc::clone(&stop), Arc::clone(&inside));
                tokio::spawn(async move {
                    while !stop.load(SeqCst) {
                        let guard = lock.write().await.unwrap();
                        assert_eq!(inside.fetch_add(1, SeqCst), 0, "a holder beside a writer");
                        sleep(Duration::from_millis(10)).await;
                        inside.fetch_sub(1, SeqCst);
                        guard.release().await.unwrap();
                    }
                })
            })
            .collect();
        sleep(Duration::from_millis(200)).await;
        let locks: Vec<_> = (0..3).map(|_| nodes.lock()).collect();
        for _ in 0..5 {
            let reads = locks.iter().map(|lock| async {
                let guard = lock.read().await.unwrap();
                assert_eq!(inside.load(SeqCst), 0, "a reader beside a writer");
                sleep(Duration::from_millis(5)).await;
                guard.release().await.unwrap();
            });
            let all = futures_util::future::join_all(reads);
            timeout(Duration::from_secs(20), all).await.expect("the readers starve");
        }
        stop.store(true, SeqCst);
        for writer in writers {
            writer.await.unwrap();
        }
    }
}

/// The process of a waiting writer dies, and its place (entry) stays in the node's queue. This
/// place keeps new readers out for at most 3 s, although an earlier reader still holds the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_dies_while_it_waits_keeps_readers_out_for_a_moment() {
    for nodes in [Nodes::memory(3), Nodes::redis(1)] {
        let reader = nodes.lock().read().await.unwrap();
        let process = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let lock = nodes.lock();
        let writer = process.spawn(async move { lock.write().await });
        let other = nodes.lock();
        let begun = Instant::now();
        while !is_taken(&other.try_read().await) {
            assert!(begun.elapsed() < Duration::from_secs(60), "the writer never waits");
            sleep(Duration::from_millis(10)).await;
        }
        // The process is killed, so it sends no more requests.
        process.shutdown_background();
        drop(writer);
        let guard = timeout(Duration::from_secs(15), other.read()).await;
        guard.expect("a dead writer keeps readers out").unwrap().release().await.unwrap();
        reader.release().await.unwrap();
    }
}

/// Readers wait for a writer. After the writer's release, all readers get the lock together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_waited_for_a_writer_read_together() {
    for nodes in Nodes::all() {
        let (a, b) = (nodes.lock(), nodes.lock());
        let writer = a.write().await.unwrap();
        let meet = Arc::new(tokio::sync::Barrier::new(10));
        let readers: Vec<_> = (0..10)
            .map(|i| {
                let (lock, meet) = (if i % 2 == 0 { b.clone() } else { a.clone() }, meet.clone());
                tokio::spawn(async move {
                    let guard = lock.read().await.unwrap();
                    // Each reader holds the lock until all readers hold it.
                    meet.wait().await;
                    guard.release().await.unwrap();
                })
            })
            .collect();
        sleep(Duration::from_millis(300)).await;
        writer.release().await.unwrap();
        let all = futures_util::future::join_all(readers);
        let done = timeout(Duration::from_secs(20), all).await.expect("they read one by one");
        for reader in done {
            reader.unwrap();
        }
    }
}

/// A reader timed out, and its place is still in the queue. If the hint of the next release (a
/// wake-up message) goes to this reader, the reader's handle passes it on to the next waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_gave_up_does_not_swallow_the_release_for_the_next_writer() {
    for nodes in [Nodes::memory(3), Nodes::redis(3)] {
        let handles = [nodes.handle(), nodes.handle(), nodes.handle()];
        let held = handles[0].mutex("doc").build().unwrap().acquire().await.unwrap();
        let short = handles[1].rw_lock("doc").acquire_timeout(Duration::from_millis(300));
        assert!(short.build().unwrap().read().await.is_err());
        let writer = handles[2].rw_lock("doc").retry(seldom()).build().unwrap();
        let writer = tokio::spawn(async move { writer.write().await.map(|_| Instant::now()) });
        sleep(Duration::from_secs(1)).await;
        let released = Instant::now();
        held.release().await.unwrap();
        let got = timeout(Duration::from_secs(15), writer).await.expect("it is woken");
        assert!(got.unwrap().unwrap() - released < Duration::from_secs(10));
    }
}

/// A reader of one handle has timed out, and its place is still in the queue, in front of a reader
/// of another handle, which waits, and of a writer that came later. The releases reach the nodes,
/// and the hints the handles, at random.
#[tokio::test(start_paused = true)]
async fn a_reader_that_gave_up_does_not_give_the_turn_of_other_readers_to_a_writer() {
    for (seed, n) in (0..40).zip([1, 3].into_iter().cycle()) {
        let world = Timed::new(n);
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let locks: Vec<RwLock> = (0..4_u64)
            .map(|handle| {
                let nodes = world.nodes.iter().map(|node| {
                    let node = Fault::new(node.clone()).env(Arc::clone(&world.env));
                    let max_delay = Duration::from_millis(3);
                    let odds = Odds { delay: 1.0, max_delay, ..Odds::default() };
                    node.control().dice(4 * seed + handle, odds);
                    node
                });
                let redlock = nodes.fold(world.settings(), palisade::RedlockBuilder::node);
                let wait = Duration::from_millis(if handle == 1 { 400 } else { 20_000 });
                redlock.build().unwrap().rw_lock("doc").acquire_timeout(wait).build().unwrap()
            })
            .collect();
        let holder = locks[0].write().await.unwrap();
        let gone = tokio::spawn({
            let lock = locks[1].clone();
            async move { lock.read().await.is_err() }
        });
        sleep(Duration::from_millis(100)).await;
        let (reader, served) = (locks[2].clone(), Arc::clone(&order));
        let reader = tokio::spawn(async move {
            let guard = reader.read().await.unwrap();
            served.lock().unwrap().push("reader");
            guard.release().await.unwrap();
        });
        sleep(Duration::from_millis(100)).await;
        let (writer, served) = (locks[3].clone(), Arc::clone(&order));
        let writer = tokio::spawn(async move {
            let guard = writer.write().await.unwrap();
            served.lock().unwrap().push("writer");
            guard.release().await.unwrap();
        });
        assert!(gone.await.unwrap());
        sleep(Duration::from_millis(100)).await;
        holder.release().await.unwrap();
        reader.await.unwrap();
        writer.await.unwrap();
        assert_eq!(*order.lock().unwrap(), ["reader", "writer"], "seed {seed}, {n} nodes");
    }
}

/// Readers of many handles timed out, and their places (entries) fill the node's queue. These
/// places do not keep a later writer out of the queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_of_readers_that_ask_no_more_leave_room_for_a_writer() {
    let nodes = Nodes::memory(3);
    let first = nodes.lock().read().await.unwrap();
    let gives_up = nodes.handle().rw_lock("doc").acquire_timeout(Duration::from_millis(1_200));
    let gives_up = gives_up.build().unwrap();
    let gives_up = tokio::spawn(async move { gives_up.write().await.is_err() });
    sleep(Duration::from_millis(100)).await;
    let all: Vec<_> = (0..70).map(|_| nodes.lock()).collect();
    let waited = all.iter().cloned().map(|lock| tokio::spawn(async move { lock.read().await }));
    for waited in waited.collect::<Vec<_>>() {
        drop(waited.await.unwrap().unwrap());
    }
    assert!(gives_up.await.unwrap());
    let writer = nodes.handle().rw_lock("doc").acquire_timeout(Duration::from_secs(60));
    let writer = writer.build().unwrap();
    let writer = tokio::spawn(async move { writer.write().await.map(drop) });
    let done = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&done);
    // The readers overlap without end.
    let readers = tokio::spawn(async move {
        for lock in all.iter().cycle() {
            if over.load(SeqCst) {
                break;
            }
            let lock = lock.clone();
            tokio::spawn(async move {
                if let Ok(guard) = lock.read().await {
                    sleep(Duration::from_millis(300)).await;
                    drop(guard);
                }
            });
            sleep(Duration::from_millis(100)).await;
        }
    });
    sleep(Duration::from_millis(200)).await;
    drop(first);
    let got = writer.await.unwrap();
    done.store(true, SeqCst);
    readers.await.unwrap();
    assert!(got.is_ok(), "the writer starved: {got:?}");
}
