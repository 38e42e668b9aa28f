//! Many locks and waiters in one process. Renewals of held locks are sent before new requests. Only
//! some of the waiters of a name send requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use palisade::error::{AcquireError, Advice, NodeError, NodeFault, NodeOutcome};
use palisade::node::MemoryNode;
use palisade::node::spi::{Batch, BoxFuture, IfHeld, LockNode, NodeSignal, Op, Replies};
use palisade::{Durability, LockGuard, Moment, Redlock, TryAcquire};
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::memory::Timed;
use crate::support::wrap::{Wrap, refused};

/// Returns a memory node that executes its batches one after the other, and needs the time `takes`
/// for each. `acquires` counts the acquires that the node receives.
fn slow(inner: MemoryNode, takes: Duration, acquires: &Arc<AtomicUsize>) -> Wrap {
    let counted = Arc::clone(acquires);
    Wrap::new(inner, move |inner, batch, deadline| {
        let acquires = batch.ops.iter().filter(|op| matches!(op, Op::Acquire { .. })).count();
        counted.fetch_add(acquires, Ordering::Relaxed);
        async move {
            sleep(takes).await;
            inner.call(batch, deadline).await
        }
    })
}

/// A node on which another program publishes false hints (messages that wake a waiter, as if the
/// lock were free): one for each acquire that joins the node's queue.
struct Forged {
    node: Wrap,
    hints: broadcast::Sender<NodeSignal>,
}

impl LockNode for Forged {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        for op in &batch.ops {
            if let Op::Acquire { keys, if_held: Some(IfHeld::Queue(place)), .. } = op {
                let hint = NodeSignal::Turn { key: keys.lock().into(), waiter: place.waiter };
                self.hints.send(hint).expect("the handle listens");
            }
        }
        self.node.call(batch, deadline)
    }

    fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.hints.subscribe()
    }

    fn name(&self) -> Arc<str> {
        self.node.name()
    }
}

/// Returns two `Redlock` handles on one node, and a counter of the acquires of the first handle.
/// The node needs the time `takes` for each batch.
fn handles(takes: Duration) -> (Redlock, Redlock, Arc<AtomicUsize>) {
    let (world, acquires) = (Timed::new(1), Arc::default());
    let slow = slow(world.nodes[0].clone(), takes, &acquires);
    (world.settings().node(slow).build().expect("a handle"), world.redlock(), acquires)
}

/// Tries to acquire `n` locks. Returns the acquired locks, and the number of attempts that were
/// refused because renewals come first.
async fn hold(redlock: &Redlock, n: usize) -> (Vec<LockGuard>, usize) {
    let mut all = JoinSet::new();
    for i in 0..n {
        let mutex = redlock.mutex(format!("lock-{i}")).build().expect("a mutex");
        all.spawn(async move { mutex.acquire().await });
    }
    let (mut held, mut shed) = (Vec::new(), 0);
    while let Some(done) = all.join_next().await {
        match done.expect("an answer") {
            Ok(guard) => held.push(guard),
            Err(e) => shed += usize::from(is_shed(&e)),
        }
    }
    (held, shed)
}

fn is_shed(refused: &AcquireError) -> bool {
    let AcquireError::NoQuorum(why) = refused else { return false };
    assert!(matches!(why.advice(), Advice::RetryAfter(_)), "{why}");
    let busy = |e: &NodeError| (e.fault(), e.is_ambiguous()) == (NodeFault::Busy, false);
    let busy = matches!(&why.nodes[0].1, NodeOutcome::Failed(e) if busy(e));
    busy && why.to_string().contains("renewals of locks that are held come first")
}

/// The node executes 1,280 requests a second. So it can renew 4,800 locks in a quarter of their
/// ttl, and 19,200 locks in the whole ttl. New locks must not take the time of these renewals.
#[tokio::test(start_paused = true)]
async fn locks_that_are_held_come_before_new_ones() {
    let (redlock, _, _) = handles(Duration::from_millis(100));
    let (mut held, shed) = hold(&redlock, 15_000).await;
    assert!((4_000..15_000).contains(&held.len()), "{} held", held.len());
    assert!(shed > 1_000, "new work was refused {shed} times");
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        let lost = held.iter().filter(|guard| !guard.is_valid()).count();
        assert_eq!(lost, 0, "of {} after {:?}", held.len(), begun.elapsed());
        sleep(Duration::from_millis(500)).await;
    }
    // With fewer locks to renew, the node has time for new work again.
    held.truncate(2_000);
    sleep(Duration::from_secs(15)).await;
    for i in 0..20 {
        let new = redlock.mutex(format!("new-{i}")).build().expect("a mutex");
        let tried = new.try_acquire().await;
        assert!(matches!(tried, Ok(TryAcquire::Acquired(_))), "{tried:?}");
        sleep(Duration::from_millis(500)).await;
    }
    assert!(held.iter().all(LockGuard::is_valid));
}

/// What becomes of a second node, beside one whose replica dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Second {
    Absent,
    Refuses,
    Silent,
}

/// A replica dies, so the leases that need it cannot be renewed. The others are renewed as ever,
/// and new locks that need no replica are acquired.
async fn hinder_no_others(others: usize, durable: usize, second: Second) {
    let world = Timed::new(if second == Second::Absent { 1 } else { 3 });
    let ttl = Duration::from_secs(if second == Second::Absent { 5 } else { 20 });
    let dies = Arc::<AtomicBool>::default();
    let mut settings = world.settings().ttl(ttl);
    for (i, node) in world.nodes.iter().enumerate() {
        let (away, lacking) = (Arc::clone(&dies), Arc::clone(&dies));
        let node = Wrap::new(node.clone(), move |inner, batch, deadline| {
            let is_away = i == 1 && away.load(Ordering::Relaxed);
            async move {
                if is_away && second == Second::Refuses {
                    return refused(&batch, NodeFault::Unreachable);
                } else if is_away {
                    std::future::pending::<()>().await;
                }
                sleep(Duration::from_millis(2)).await;
                inner.call(batch, deadline).await
            }
        });
        let node = node.barrier(move |_| {
            let lacking = i == 0 && lacking.load(Ordering::Relaxed);
            async move {
                if lacking {
                    sleep(Duration::from_millis(250)).await;
                    return Err(NodeError::maybe_executed(NodeFault::NotDurable, "no replica"));
                }
                Ok(1)
            }
        });
        settings = settings.node(node);
    }
    let redlock = settings.build().unwrap();
    let (held, _) = hold(&redlock, others).await;
    let mut all = JoinSet::new();
    for n in 0..durable {
        let mutex = redlock.mutex(format!("durable-{n}")).durability(Durability::Replicas(1));
        let mutex = mutex.build().unwrap();
        all.spawn(async move { mutex.acquire().await.expect("a replica has it") });
    }
    let durable = all.join_all().await;
    dies.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    for n in 0.. {
        let lost = held.iter().filter(|guard| !guard.is_valid()).count();
        assert_eq!(lost, 0, "of {others} after {:?}, {second:?}", begun.elapsed());
        let new = redlock.mutex(format!("new-{n}")).build().unwrap();
        let tried = new.try_acquire().await;
        assert!(matches!(tried, Ok(TryAcquire::Acquired(_))), "{second:?}: {tried:?}");
        if begun.elapsed() > ttl + Duration::from_secs(7) {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    assert!(durable.iter().all(|guard| !guard.is_valid()), "no replica confirms them");
}

#[tokio::test(start_paused = true)]
async fn leases_that_cannot_be_renewed_hinder_no_others() {
    for (others, durable) in [(20, 400), (300, 700), (1_000, 1_000)] {
        hinder_no_others(others, durable, Second::Absent).await;
    }
}

/// The third node and one of the two others would renew each lease that needs no replica.
#[tokio::test(start_paused = true)]
async fn leases_that_cannot_be_renewed_for_two_of_three_nodes_hinder_no_others() {
    for second in [Second::Refuses, Second::Silent] {
        hinder_no_others(20, 400, second).await;
    }
}

/// The renewals of locks that were acquired together are spread over a sixteenth of their ttl.
#[tokio::test(start_paused = true)]
async fn renewals_that_are_due_within_ten_milliseconds_share_a_batch() {
    let world = Timed::new(1);
    let counts = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let counted = Arc::clone(&counts);
    let node = Wrap::new(world.nodes[0].clone(), move |inner, batch, deadline| {
        let renewals = batch.ops.iter().filter(|op| matches!(op, Op::Extend { .. })).count();
        counted[0].fetch_add(renewals, Ordering::Relaxed);
        counted[1].fetch_add(usize::from(renewals > 0), Ordering::Relaxed);
        async move { inner.call(batch, deadline).await }
    });
    let redlock = world.settings().node(node).ttl(Duration::from_secs(32));
    let redlock = redlock.build().expect("a handle");
    let (held, _) = hold(&redlock, 2_000).await;
    sleep(Duration::from_millis(8_100)).await;
    let [renewals, batches] = [0, 1].map(|i| counts[i].load(Ordering::Relaxed));
    assert!((2_000..=2_600).contains(&renewals), "each is renewed, few twice: {renewals}");
    assert!((100..=300).contains(&batches), "spread, and together: {batches}");
    assert!(held.iter().all(LockGuard::is_valid));
}

/// The renewals are spread over one second. So some renewals have been sent but not answered when
/// the locks are released. Such a renewal must not keep a released lock alive.
#[tokio::test(start_paused = true)]
async fn locks_that_are_released_during_a_renewal_are_kept_alive_no_longer() {
    let (redlock, _, _) = handles(Duration::from_millis(100));
    let (held, _) = hold(&redlock, 256).await;
    assert_eq!((held.len(), redlock.held()), (256, 256));
    sleep(Duration::from_secs(3)).await;
    drop(held);
    assert_eq!(redlock.held(), 0);
    // By now the node has replied to all renewals.
    sleep(Duration::from_secs(1)).await;
    assert_eq!(redlock.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn forged_hints_cost_a_node_a_hundred_requests_a_second_at_most() {
    let (world, acquires) = (Timed::new(1), Arc::default());
    let node = slow(world.nodes[0].clone(), Duration::from_millis(2), &acquires);
    let node = Forged { node, hints: broadcast::channel(64).0 };
    let redlock = world.settings().node(node).build().expect("a handle");
    let other = world.redlock();
    let blocker = other.mutex("hot").build().unwrap().acquire().await.expect("it is free");
    let mutex = redlock.mutex("hot").acquire_timeout(Duration::from_secs(600)).build().unwrap();
    let waiter = tokio::spawn(async move { mutex.acquire().await });
    sleep(Duration::from_secs(1)).await;
    let before = acquires.load(Ordering::Relaxed);
    sleep(Duration::from_secs(20)).await;
    let asked = acquires.load(Ordering::Relaxed) - before;
    assert!((100..=20 * 105).contains(&asked), "{asked} in 20 s");
    blocker.release().await.expect("it was held");
    waiter.await.expect("a waiter").expect("free again").release().await.expect("it was held");
}

/// Of all waiters of a handle, only the first one sends requests. So more waiters do not cause more
/// requests.
#[tokio::test(start_paused = true)]
async fn waiters_of_one_process_ask_no_more_often_the_more_they_are() {
    let (redlock, other, acquires) = handles(Duration::from_millis(1));
    let blocker = other.mutex("hot").build().unwrap().acquire().await.expect("it is free");
    let mut all = JoinSet::new();
    for _ in 0..5_000 {
        let mutex = redlock.mutex("hot").acquire_timeout(Duration::from_secs(600));
        let mutex = mutex.build().expect("a mutex");
        all.spawn(
            async move { mutex.acquire().await?.release().await.map_err(|_| unreachable!()) },
        );
    }
    sleep(Duration::from_secs(5)).await;
    let before = acquires.load(Ordering::Relaxed);
    sleep(Duration::from_secs(20)).await;
    let asked = acquires.load(Ordering::Relaxed) - before;
    assert!((19..=20 * 100).contains(&asked), "{asked} in 20 s");
    blocker.release().await.expect("it was held");
    let begun = Instant::now();
    while let Some(done) = all.join_next().await {
        let done: Result<(), AcquireError> = done.expect("a waiter");
        done.expect("each has its turn");
    }
    assert!(begun.elapsed() < Duration::from_secs(120), "after {:?}", begun.elapsed());
}

/// A handle allows a limited number of attempts at a time. The other callers wait for the handle's
/// permission. When the handle closes, these callers end without a request to the nodes.
#[tokio::test(start_paused = true)]
async fn a_close_ends_attempts_that_have_no_permit_without_asking_the_nodes() {
    let (redlock, _, acquires) = handles(Duration::from_millis(200));
    let mut all = JoinSet::new();
    for n in 0..5_000 {
        let mutex = redlock.mutex(format!("lock-{n}")).build().expect("a mutex");
        all.spawn(async move {
            if n % 2 == 0 { mutex.acquire().await } else { mutex.try_acquire().await.map(won) }
        });
    }
    sleep(Duration::from_millis(100)).await;
    let closing = redlock.clone();
    let closed = tokio::spawn(async move { closing.close(Duration::from_secs(60)).await });
    let (mut held, mut refused) = (Vec::new(), 0);
    while let Some(done) = all.join_next().await {
        match done.expect("a caller") {
            Ok(guard) => held.push(guard),
            Err(AcquireError::Closed(_)) => refused += 1,
            Err(e) => panic!("{e}"),
        }
    }
    let asked = acquires.load(Ordering::Relaxed);
    assert!(asked <= 1_024 && held.len() <= asked, "{asked} asked, {} held", held.len());
    assert_eq!(refused, 5_000 - held.len());
    drop(held);
    assert!(closed.await.expect("it ends").is_clean());
}

fn won(tried: TryAcquire) -> LockGuard {
    tried.acquired().expect("each name is free")
}
