//! The node queue, which holds the requests of a client to one node: it sends no more than the node
//! accepts, returns each reply to its caller, sends no release before the acquire of the same
//! owner, and stores large results in separate batches.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use palisade::Moment;
use palisade::error::{AcquireError, NodeError, NodeFault, NodeOutcome};
use palisade::idempotency::Status;
use palisade::node::spi::{Batch, Op, Replies, Reply};
use palisade::node::{
    MemoryNode,
    spi::{BoxFuture, LockNode},
};
use palisade::test_util::TokioEnv;
use palisade::{Durability, node::spi::BarrierPoint};
use palisade::{Idempotency, Outcome, Redlock, RunError, TryAcquire};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::support::forward;
use crate::support::memory::Timed;
use crate::support::wrap::Wrap;

const DEPTH: usize = 6;

type Call = (Batch, Moment, oneshot::Sender<Replies>);

/// A memory node behind one connection. It executes one batch after the other, in order, and needs
/// some time for each.
struct Connection {
    inner: Arc<MemoryNode>,
    queue: mpsc::UnboundedSender<Call>,
    seen: Arc<Seen>,
}

/// Counts of the batches that the node received.
#[derive(Default)]
struct Seen {
    under_way: AtomicUsize,
    most: AtomicUsize,
    largest: AtomicUsize,
    /// Owners whose release has arrived. The number `overtaken` below counts acquires that arrived
    /// after the release of the same owner, which must not happen.
    released: Mutex<BTreeSet<String>>,
    overtaken: AtomicUsize,
}

impl Seen {
    fn note(&self, batch: &Batch) {
        self.largest.fetch_max(batch.ops.len(), Ordering::SeqCst);
        let mut released = self.released.lock().unwrap();
        for op in &batch.ops {
            match op {
                Op::Release { owner, .. } => {
                    released.insert(owner.as_str().to_owned());
                }
                Op::Acquire { owner, .. } if released.contains(owner.as_str()) => {
                    self.overtaken.fetch_add(1, Ordering::SeqCst);
                }
                _ => {}
            }
        }
    }
}

impl Connection {
    fn new() -> (Self, Arc<Seen>) {
        let inner = Arc::new(MemoryNode::new());
        let (queue, mut calls) = mpsc::unbounded_channel::<Call>();
        let (node, seen) = (Arc::clone(&inner), Arc::<Seen>::default());
        let looks = Arc::clone(&seen);
        tokio::spawn(async move {
            let mut n = 0_u64;
            while let Some((batch, deadline, answer)) = calls.recv().await {
                looks.note(&batch);
                n += 1;
                sleep(Duration::from_micros(200 + n % 7 * 300)).await;
                let replies = node.call(batch, deadline).await;
                let looks = Arc::clone(&looks);
                // All replies have the same delay, so they arrive in order. Some replies arrive at
                // the same time.
                tokio::spawn(async move {
                    sleep(Duration::from_millis(2)).await;
                    looks.under_way.fetch_sub(1, Ordering::SeqCst);
                    let _ = answer.send(replies);
                });
            }
        });
        (Self { inner, queue, seen: Arc::clone(&seen) }, seen)
    }
}

impl LockNode for Connection {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        let under_way = self.seen.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.seen.most.fetch_max(under_way, Ordering::SeqCst);
        let (answer, answered) = oneshot::channel();
        assert!(self.queue.send((batch, deadline, answer)).is_ok(), "the connection is open");
        Box::pin(async move { answered.await.expect("it answers") })
    }

    fn barrier(
        &self,
        after: BarrierPoint,
        level: Durability,
        deadline: Moment,
    ) -> BoxFuture<'_, Result<u32, NodeError>> {
        self.inner.barrier(after, level, deadline)
    }

    fn depth(&self) -> usize {
        DEPTH
    }

    forward!(inner);
}

/// Runs sixty-four callers that compete for a few names. Asserts that each name has one holder at a
/// time. Some callers cancel while they wait. Returns the number of acquires.
async fn crowd(lock: &Redlock) -> u32 {
    let (held, pairs) = (Arc::new(<[AtomicU32; 24]>::default()), Arc::<AtomicU32>::default());
    let callers = (0..64_usize).map(|caller| {
        let (lock, held, pairs) = (lock.clone(), Arc::clone(&held), Arc::clone(&pairs));
        tokio::spawn(async move {
            for round in 0..40_usize {
                let name = (caller * 7 + round * 5) % held.len();
                let mutex = lock.mutex(format!("name-{name}")).build().unwrap();
                let patience =
                    Duration::from_millis(if (caller + round) % 9 == 0 { 3 } else { 500 });
                let asked = tokio::time::timeout(patience, mutex.try_acquire()).await;
                let Ok(Ok(TryAcquire::Acquired(guard))) = asked else { continue };
                assert_eq!(held[name].fetch_add(1, Ordering::SeqCst), 0, "two hold name-{name}");
                assert!(guard.is_valid());
                held[name].fetch_sub(1, Ordering::SeqCst);
                if round % 5 == 0 {
                    drop(guard);
                } else {
                    assert!(guard.release().await.is_ok());
                }
                pairs.fetch_add(1, Ordering::SeqCst);
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.expect("a caller");
    }
    pairs.load(Ordering::SeqCst)
}

fn handle(nodes: usize) -> (Redlock, Vec<Arc<Seen>>) {
    let (nodes, seen): (Vec<_>, Vec<_>) = (0..nodes).map(|_| Connection::new()).unzip();
    // The memory nodes have a real clock, which on a slow machine is ahead of tokio's paused one.
    let builder = Redlock::builder().node_deadline(Duration::from_secs(5));
    let builder = nodes.into_iter().fold(builder, palisade::RedlockBuilder::node);
    (builder.build().expect("a handle"), seen)
}

#[tokio::test(start_paused = true)]
async fn a_lone_node_is_given_four() {
    let (lock, seen) = handle(1);
    assert!(crowd(&lock).await > 500);
    let most = seen[0].most.load(Ordering::SeqCst);
    assert_eq!(most, 4, "batches under way");
    assert_eq!(seen[0].overtaken.load(Ordering::SeqCst), 0, "a release came before its acquire");
}

#[tokio::test(start_paused = true)]
async fn each_of_several_nodes_is_given_four() {
    let (lock, seen) = handle(3);
    assert!(crowd(&lock).await > 100);
    for seen in seen {
        assert_eq!(seen.most.load(Ordering::SeqCst), 4, "batches under way");
        assert!(seen.largest.load(Ordering::SeqCst) > 16, "they leave together");
        assert_eq!(seen.overtaken.load(Ordering::SeqCst), 0, "a release came before its acquire");
    }
}

/// For the batch that stored the most result bytes: the number of these bytes, and the number of
/// ops that stored results.
type Stored = Arc<Mutex<(usize, usize)>>;

fn shows_result(reply: &Reply) -> bool {
    match reply {
        Reply::Completed(_) => true,
        Reply::Record { state, .. } => state.as_ref().is_some_and(|s| s.record.is_some()),
        _ => false,
    }
}

/// Returns a node that returns at most `shows` results in one batch, and needs the time `takes` for
/// each batch.
fn stingy(inner: MemoryNode, shows: usize, takes: Duration, stored: &Stored) -> Wrap {
    let stored = Arc::clone(stored);
    Wrap::new(inner, move |inner, batch, deadline| {
        let values = batch.ops.iter().filter_map(|op| match op {
            Op::Complete { value: Some(value), .. } => Some(value.len()),
            _ => None,
        });
        let sent = values.fold((0, 0), |(bytes, ops), value| (bytes + value, ops + 1));
        let mut stored = stored.lock().unwrap();
        *stored = sent.max(*stored);
        drop(stored);
        async move {
            sleep(takes).await;
            let mut replies = inner.call(batch, deadline).await;
            let results = replies.items.iter_mut().flatten().filter(|reply| shows_result(reply));
            for reply in results.skip(shows) {
                *reply = Reply::Deferred;
            }
            replies
        }
    })
}

/// Returns a handle over a node that returns at most `shows` results in one batch, and a namespace
/// of idempotency keys. The key `k` of the namespace has a result.
async fn with_a_result(shows: usize, stored: &Stored) -> (Redlock, Idempotency) {
    let node = stingy(MemoryNode::new(), shows, Duration::from_millis(10), stored);
    let redlock = Redlock::builder().node(node).node_deadline(Duration::from_secs(4));
    let redlock = redlock.build().expect("a handle");
    let calls = redlock.idempotency("n").at_most_once().build().expect("a namespace");
    let done = calls.key("k").run(async |_| Ok::<_, String>(7)).await;
    assert!(matches!(done, Ok(Outcome::Executed { .. })), "{done:?}");
    (redlock, calls)
}

#[tokio::test(start_paused = true)]
async fn a_deferred_answer_is_requested_again_and_delays_no_other_caller() {
    let (redlock, calls) = with_a_result(1, &Stored::default()).await;
    let mut all = JoinSet::new();
    for i in 0..200 {
        let calls = calls.clone();
        all.spawn(async move {
            if i % 2 == 0 {
                let found = calls.key("k").lookup::<i32>().await;
                assert!(matches!(found, Ok(Status::Stored(7))), "{found:?}");
            } else {
                let done = calls.key("k").run(async |_| Err::<i32, _>("it stands")).await;
                assert!(matches!(done, Ok(Outcome::Replayed(7))), "{done:?}");
            }
        });
    }
    sleep(Duration::from_millis(25)).await;
    let begun = Instant::now();
    let guard = redlock.mutex("m").build().unwrap().acquire().await.expect("it is free");
    assert!(begun.elapsed() < Duration::from_millis(100), "after {:?}", begun.elapsed());
    while let Some(done) = all.join_next().await {
        done.expect("answered as by any other node");
    }
    assert!(guard.release().await.is_ok());
    assert_eq!(redlock.metrics()[0].faults_total(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_puts_everything_off_has_a_fault() {
    let (_redlock, calls) = with_a_result(0, &Stored::default()).await;
    let found = calls.key("k").lookup::<i32>().await;
    let Err(RunError::NoQuorum { error: why, .. }) = found else { panic!("{found:?}") };
    let [(_, NodeOutcome::Failed(e))] = &why.nodes[..] else { panic!("{why}") };
    assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::Protocol, false), "{e}");
}

#[tokio::test(start_paused = true)]
async fn a_batch_asks_a_node_to_store_a_mebibyte_at_most_or_one_result() {
    const LARGE: usize = 400 * 1024;
    let stored = Stored::default();
    let (_redlock, calls) = with_a_result(1, &stored).await;
    let mut all = JoinSet::new();
    for i in 0..20 {
        let calls = calls.clone();
        all.spawn(async move {
            let value = "x".repeat(LARGE);
            let key = format!("large-{i}");
            let done = calls.key(&key).run(async |_| Ok::<_, String>(value)).await;
            assert!(matches!(done, Ok(Outcome::Executed { kept: true, .. })), "not stored");
        });
    }
    while let Some(done) = all.join_next().await {
        done.expect("it is stored");
    }
    let (bytes, ops) = *stored.lock().unwrap();
    assert_eq!(ops, 2, "{bytes} bytes");
}

/// Returns the duration of `n` concurrent acquires of different names. The node executes 128
/// requests in 20 ms.
async fn at_once(n: usize) -> Duration {
    let world = Timed::new(1);
    let node = stingy(world.nodes[0].clone(), 1, Duration::from_millis(20), &Stored::default());
    let redlock = world.settings().node(node).build().unwrap();
    let (mut all, begun) = (JoinSet::new(), Instant::now());
    for i in 0..n {
        let mutex = redlock.mutex(format!("name-{i}")).build().unwrap();
        all.spawn(async move { mutex.acquire().await.map(drop) });
    }
    while let Some(done) = all.join_next().await {
        done.expect("an answer").expect("it is free");
    }
    let faults = redlock.metrics()[0].faults_total();
    assert_eq!(faults, 0, "{n} at once hinder each other");
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn twice_as_many_at_once_take_about_twice_as_long() {
    let (few, many) = (at_once(5_000).await, at_once(10_000).await);
    assert!(many < few * 3, "{many:?} instead of {few:?}");
}

#[tokio::test(start_paused = true)]
async fn a_try_that_finds_no_place_is_refused_with_advice() {
    let world = Timed::new(1);
    let node = stingy(world.nodes[0].clone(), 1, Duration::from_secs(3_600), &Stored::default());
    let redlock = world.settings().node(node).build().unwrap();
    let (mut all, begun) = (JoinSet::new(), Instant::now());
    for i in 0..2_000 {
        let mutex = redlock.mutex(format!("name-{i}")).build().unwrap();
        all.spawn(async move { mutex.try_acquire().await });
    }
    let mut busy = 0;
    while let Some(done) = all.join_next().await {
        let Err(AcquireError::NoQuorum(why)) = done.expect("an answer") else { panic!("granted") };
        let advice = matches!(why.advice(), palisade::error::Advice::RetryAfter(_));
        assert!(advice, "{why}");
        let not_sent = |e: &NodeError| (e.fault(), e.is_ambiguous()) == (NodeFault::Busy, false);
        busy += usize::from(matches!(&why.nodes[0].1, NodeOutcome::Failed(e) if not_sent(e)));
    }
    assert!(busy > 900, "{busy}");
    assert!(begun.elapsed() < Duration::from_secs(2), "after {:?}", begun.elapsed());
}

/// Makes attempts until one is refused. Returns the number of attempts before, and the error.
///
/// Each attempt is dropped at once, and leaves an acquire and a release in the node queue, which
/// holds the requests to one node. The task of the node queue does not run meanwhile.
fn fill(mutex: &palisade::Mutex) -> (usize, AcquireError) {
    let refused = (0..150_000).find_map(|n| Some((n, mutex.try_acquire().now_or_never()?)));
    let (n, outcome) = refused.expect("the queue is bounded");
    (n, outcome.expect_err("the queue is full"))
}

#[tokio::test]
async fn a_full_queue_refuses_what_begins_something_and_empties_again() {
    let redlock = Redlock::builder().node(MemoryNode::new()).build().unwrap();
    let mutex = redlock.mutex("n").build().unwrap();
    let (n, refused) = fill(&mutex);
    assert_eq!(2 * n, 100_000, "requests that wait");
    let AcquireError::NoQuorum(why) = refused else { panic!("{refused}") };
    let [(_, NodeOutcome::Failed(e))] = &why.nodes[..] else { panic!("{why}") };
    assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::Busy, false), "{e}");
    assert!(e.to_string().contains("100000 requests wait already"), "{e}");
    let faults = &redlock.metrics()[0].faults;
    assert_eq!(faults.get(&NodeFault::Busy), Some(&1), "{faults:?}");
    // The requests that filled the node queue are sent now, so the lock can be acquired again.
    drop(mutex.acquire().await.expect("free again"));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_accepts_a_release() {
    let redlock = Timed::new(1).redlock();
    let guard = redlock.mutex("held").build().unwrap().acquire().await.expect("it is free");
    let _ = fill(&redlock.mutex("n").build().unwrap());
    assert_eq!(guard.release().await, Ok(()));
}

/// All names are in one part.
struct Parted(Arc<dyn LockNode>);

impl LockNode for Parted {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        self.0.call(batch, deadline)
    }

    fn part_of(&self, _: &Op) -> Option<Result<u16, NodeError>> {
        Some(Ok(0))
    }

    fn part(&self, _: u16) -> Option<Arc<dyn LockNode>> {
        Some(self.0.clone())
    }

    forward!(0);
}

#[tokio::test(start_paused = true)]
async fn a_part_that_nobody_uses_has_no_task_until_it_is_used_again() {
    let env = Arc::new(TokioEnv::new());
    let part: Arc<dyn LockNode> = Arc::new(MemoryNode::builder().env(env.clone()).build());
    let lock = Redlock::builder().env(env).node(Parted(part.clone())).build().unwrap();
    let used = || async {
        let got = lock.mutex("n").build().unwrap().try_acquire().await.unwrap();
        assert!(got.acquired().expect("it is free").release().await.is_ok());
        Arc::strong_count(&part)
    };
    let first = used().await;
    sleep(Duration::from_secs(3_600)).await;
    assert!(Arc::strong_count(&part) < first);
    assert_eq!(used().await, first);
}
