//! Locks that may degrade: while no majority of the nodes replies, work runs without the lock. In
//! virtual time.

mod never;

use std::future::ready;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::error::{NodeError, NodeFault};
use palisade::node::spi::{Batch, BoxFuture, Env, LockNode, Op, Replies};
use palisade::test_util::TokioEnv;
use palisade::{
    AcquireError, DegradableGuard, DegradingMutex, MemoryNode, Moment, OnUnavailable, Redlock,
};
use palisade_testing::fault::{Fault, FaultControl};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tracing_subscriber::filter::LevelFilter;

use crate::cancel::poll_times;
use crate::nodes::is_free;
use crate::support::forward;
use crate::support::logs::Log;

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// A node behind a fault wrapper that cuts or freezes its link. It counts the acquires that it
/// receives.
#[derive(Clone)]
struct Node {
    inner: Fault,
    acquires: Arc<AtomicUsize>,
    /// Error of every reply, if set.
    error: Arc<Mutex<Option<NodeError>>>,
    /// Delay of every reply.
    takes: Arc<Mutex<Duration>>,
}

impl LockNode for Node {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        let acquires = batch.ops.iter().filter(|op| matches!(op, Op::Acquire { .. })).count();
        self.acquires.fetch_add(acquires, Ordering::Relaxed);
        if let Some(error) = &*self.error.lock().unwrap() {
            return Box::pin(ready(Replies::fail(batch.ops.len(), error)));
        }
        let takes = *self.takes.lock().unwrap();
        Box::pin(async move {
            if !takes.is_zero() {
                sleep(takes).await;
            }
            self.inner.call(batch, deadline).await
        })
    }

    forward!(inner);
}

struct World {
    env: Arc<dyn Env>,
    memories: Vec<MemoryNode>,
    links: Vec<FaultControl>,
    nodes: Vec<Node>,
}

impl World {
    fn new(n: usize) -> Self {
        let env: Arc<dyn Env> = Arc::new(TokioEnv::new());
        let memory = |_| MemoryNode::builder().env(Arc::clone(&env)).build();
        let memories: Vec<_> = (0..n).map(memory).collect();
        let node = |memory: &MemoryNode| Node {
            inner: Fault::new(memory.clone()).env(Arc::clone(&env)),
            acquires: Arc::default(),
            error: Arc::default(),
            takes: Arc::default(),
        };
        let nodes: Vec<_> = memories.iter().map(node).collect();
        let links = nodes.iter().map(|node| node.inner.control()).collect();
        Self { env, memories, links, nodes }
    }

    /// Returns a new handle over all nodes, as a separate process would have.
    fn process(&self) -> Redlock {
        let builder = Redlock::builder().env(Arc::clone(&self.env));
        self.nodes.iter().fold(builder, |b, node| b.node(node.clone())).build().unwrap()
    }

    fn cut(&self, nodes: impl IntoIterator<Item = usize>) {
        nodes.into_iter().for_each(|node| self.links[node].cut());
    }

    fn heal(&self) {
        self.links.iter().for_each(FaultControl::heal);
    }

    /// Returns the number of acquires that the first node received.
    fn acquires(&self) -> usize {
        self.nodes[0].acquires.load(Ordering::Relaxed)
    }

    fn set_error(&self, node: usize, fault: NodeFault) {
        *self.nodes[node].error.lock().unwrap() = Some(NodeError::not_executed(fault, "set"));
    }
}

/// Returns a mutex whose calls wait at most 3 s.
fn mutex(redlock: &Redlock, name: &str, policy: OnUnavailable) -> DegradingMutex {
    redlock.mutex(name).acquire_timeout(3 * S).build().unwrap().on_unavailable(policy)
}

fn local(redlock: &Redlock, name: &str) -> DegradingMutex {
    mutex(redlock, name, OnUnavailable::Local)
}

fn proceed(redlock: &Redlock, name: &str) -> DegradingMutex {
    mutex(redlock, name, OnUnavailable::Proceed)
}

fn spawn(mutex: &DegradingMutex) -> JoinHandle<Result<DegradableGuard, AcquireError>> {
    let mutex = mutex.clone();
    tokio::spawn(async move { mutex.acquire().await })
}

async fn degraded(mutex: &DegradingMutex) -> DegradableGuard {
    let guard = mutex.acquire().await.expect("a degraded guard");
    assert!(guard.is_degraded() && guard.lock().is_none());
    guard
}

async fn held(mutex: &DegradingMutex) -> DegradableGuard {
    let guard = mutex.acquire().await.expect("the lock");
    assert!(!guard.is_degraded() && guard.lock().is_some_and(palisade::LockGuard::is_valid));
    assert!(guard.degraded().is_none() && guard.since().is_none());
    guard
}

#[tokio::test(start_paused = true)]
async fn a_call_goes_on_without_the_lock_when_attempts_have_failed_for_long_enough() {
    for frozen in [false, true] {
        for n in [1, 3] {
            let world = World::new(n);
            let redlock = world.process();
            let m = local(&redlock, "m");
            let guard = held(&m).await;
            assert!(guard.release().await.is_ok());
            world.links.iter().for_each(|link| if frozen { link.freeze() } else { link.cut() });
            let (begun, now) = (Instant::now(), redlock.now());
            let guard = degraded(&m).await;
            let took = begun.elapsed();
            assert!((500 * MS..1_200 * MS).contains(&took), "{took:?}");
            let why = guard.degraded().unwrap();
            assert_eq!(why.nodes.len(), n);
            assert!(why.to_string().starts_with("lock \"m\": no quorum"), "{why}");
            assert!(why.waited.is_some_and(|waited| waited <= took));
            assert_eq!(guard.since(), Some(now));
            assert!(guard.release().await.is_ok());
            world.links.iter().for_each(FaultControl::thaw);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_before_it_is_a_setting_and_spans_calls() {
    let world = World::new(1);
    let redlock = world.process();
    let short = redlock.mutex("m").acquire_timeout(S).build().unwrap();
    let m = short.on_unavailable(OnUnavailable::Proceed).degrade_after(1_500 * MS).unwrap();
    world.cut([0]);
    let begun = Instant::now();
    let e = m.acquire().await.unwrap_err();
    assert!(matches!(e, AcquireError::NoQuorum(_)), "{e}");
    drop(degraded(&m).await);
    assert!((1_500 * MS..2_100 * MS).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

#[test]
fn a_time_in_which_a_healthy_node_may_still_answer_is_refused() {
    let redlock = World::new(1).process();
    for after in [Duration::ZERO, 249 * MS] {
        let e = local(&redlock, "m").degrade_after(after).unwrap_err();
        assert_eq!(e.field(), "degrade_after");
        let text =
            format!("lock \"m\": `degrade_after` is {after:?}: at least node_deadline (250ms)");
        assert_eq!(e.to_string(), text);
    }
    assert_eq!(local(&redlock, "m").degrade_after(250 * MS).unwrap().name(), "m");
}

#[tokio::test(start_paused = true)]
async fn each_of_two_processes_excludes_itself_and_both_may_be_inside() {
    let world = World::new(3);
    let (a, b) = (world.process(), world.process());
    world.cut([0, 1, 2]);
    let in_a = degraded(&local(&a, "m")).await;
    let in_b = degraded(&local(&b, "m")).await;
    drop(degraded(&local(&a, "another name")).await);
    let second = spawn(&local(&a, "m"));
    let begun = Instant::now();
    sleep(S).await;
    assert!(!second.is_finished());
    drop(in_a);
    assert!(second.await.unwrap().unwrap().is_degraded());
    assert_eq!(begun.elapsed(), S);
    drop(in_b);
}

#[tokio::test(start_paused = true)]
async fn in_one_process_the_local_lock_comes_first_also_while_the_nodes_answer() {
    let world = World::new(3);
    let redlock = world.process();
    let m = local(&redlock, "m");
    let first = held(&m).await;
    let asked = world.acquires();
    let waits = spawn(&m);
    sleep(S).await;
    assert_eq!(world.acquires(), asked, "who waits inside the process asks no node");
    let token = first.lock().unwrap().fencing_token();
    first.release().await.unwrap();
    let second = waits.await.unwrap().unwrap();
    assert!(second.lock().unwrap().fencing_token() > token);
    // A degraded guard (its work runs without the lock) and a guard with the lock exclude each
    // other.
    world.cut([0, 1, 2]);
    let waits = spawn(&m);
    sleep(S).await;
    assert!(!waits.is_finished());
    drop(second);
    let third = waits.await.unwrap().unwrap();
    assert!(third.is_degraded());
    world.heal();
    let waits = spawn(&m);
    sleep(S).await;
    assert!(!waits.is_finished());
    drop(third);
    assert!(!waits.await.unwrap().unwrap().is_degraded());
}

#[tokio::test(start_paused = true)]
async fn local_callers_are_served_in_their_order_and_each_waits_until_its_own_deadline() {
    let world = World::new(1);
    let redlock = world.process();
    let m = local(&redlock, "m");
    world.cut([0]);
    let first = degraded(&m).await;
    let begun = Instant::now();
    let hasty = redlock.mutex("m").acquire_timeout(2 * S).build().unwrap();
    let hasty = spawn(&hasty.on_unavailable(OnUnavailable::Local));
    let order = Arc::<Mutex<Vec<usize>>>::default();
    let mut waiting = Vec::new();
    for i in 0..5 {
        let (m, order) = (m.clone(), Arc::clone(&order));
        waiting.push(tokio::spawn(async move {
            let _guard = m.acquire().await.unwrap();
            order.lock().unwrap().push(i);
            sleep(MS).await;
        }));
        tokio::task::yield_now().await;
    }
    let Err(AcquireError::TimedOut { waited, .. }) = hasty.await.unwrap() else { panic!() };
    assert_eq!((waited, begun.elapsed()), (2 * S, 2 * S));
    drop(first);
    for one in waiting {
        one.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
}

#[tokio::test(start_paused = true)]
async fn with_proceed_all_go_on() {
    let world = World::new(3);
    let redlock = world.process();
    world.cut([0, 1, 2]);
    let m = proceed(&redlock, "m");
    let mut guards = Vec::new();
    for _ in 0..5 {
        guards.push(degraded(&m).await);
    }
    let health = redlock.health().await;
    assert_eq!(health.degraded, 5);
    let line = health.to_string();
    assert!(line.ends_with("; 5 guards are degraded: their work runs without the locks"), "{line}");
    guards.truncate(1);
    let line = redlock.health().await.to_string();
    assert!(line.ends_with("; 1 guard is degraded: its work runs without the lock"), "{line}");
    guards.clear();
    assert!(!redlock.health().await.to_string().contains("degraded"));
}

#[tokio::test(start_paused = true)]
async fn during_an_outage_one_call_a_second_asks_and_no_other_waits() {
    for frozen in [false, true] {
        let world = World::new(3);
        let redlock = world.process();
        let m = proceed(&redlock, "m");
        world.links.iter().for_each(|link| if frozen { link.freeze() } else { link.cut() });
        drop(degraded(&m).await);
        let (before, begun) = (world.acquires(), Instant::now());
        let (mut calls, mut waited) = (Vec::new(), 0);
        while begun.elapsed() < 20 * S {
            let m = if calls.len() % 2 == 0 { m.clone() } else { proceed(&redlock, "n") };
            calls.push(tokio::spawn(async move {
                let begun = Instant::now();
                drop(degraded(&m).await);
                !begun.elapsed().is_zero()
            }));
            sleep(10 * MS).await;
        }
        for call in calls {
            waited += usize::from(call.await.unwrap());
        }
        let asked = world.acquires() - before;
        // A `Redlock` handle sends no more requests to a node with several unanswered requests,
        // until these have timed out.
        assert!((5..=20).contains(&asked), "{asked} probes in 20 s");
        assert!(waited <= 20, "{waited} calls waited");
    }
}

/// One node still replies, and may report a holder. So the handle asks this node about each lock,
/// and does not take the result for one lock as that for another.
#[tokio::test(start_paused = true)]
async fn where_a_node_answers_the_outcome_of_one_lock_is_not_that_of_another() {
    let world = World::new(3);
    let redlock = world.process();
    let blocker = world.process().mutex("taken").build().unwrap().acquire().await.unwrap();
    world.cut([0, 1]);
    drop(degraded(&proceed(&redlock, "free")).await);
    let asked = world.acquires();
    drop(degraded(&proceed(&redlock, "free")).await);
    assert_eq!(world.acquires(), asked);
    let e = proceed(&redlock, "taken").acquire().await.unwrap_err();
    assert!(matches!(e, AcquireError::NoQuorum(_)), "{e}");
    drop(blocker);
}

#[tokio::test(start_paused = true)]
async fn the_nodes_are_used_again_within_a_second_of_their_return() {
    let world = World::new(3);
    let redlock = world.process();
    let m = local(&redlock, "m");
    let guard = held(&m).await;
    let token = guard.lock().unwrap().fencing_token();
    guard.release().await.unwrap();
    world.cut([0, 1, 2]);
    for _ in 0..50 {
        drop(m.acquire().await.unwrap());
        sleep(77 * MS).await;
    }
    world.heal();
    let begun = Instant::now();
    let real = loop {
        let guard = m.acquire().await.unwrap();
        if !guard.is_degraded() {
            break guard;
        }
        drop(guard);
        sleep(10 * MS).await;
    };
    assert!(begun.elapsed() <= 1_050 * MS, "{:?}", begun.elapsed());
    assert!(real.lock().unwrap().fencing_token() > token);
    drop(held(&local(&redlock, "n")).await);
}

#[tokio::test(start_paused = true)]
async fn a_guard_stays_what_it_is() {
    let world = World::new(3);
    let redlock = world.process();
    let real = held(&local(&redlock, "held")).await;
    let token = real.lock().unwrap().fencing_token();
    world.cut([0, 1, 2]);
    let degraded = degraded(&local(&redlock, "m")).await;
    sleep(3 * S).await;
    assert!(real.lock().unwrap().is_valid());
    world.heal();
    sleep(20 * S).await;
    assert!(degraded.is_degraded() && degraded.lock().is_none());
    assert!(is_free(&world.process(), "m").await, "a degraded guard has nothing on the nodes");
    assert!(real.lock().unwrap().is_valid());
    assert_eq!(real.lock().unwrap().fencing_token(), token);
    assert!(real.release().await.is_ok());
    assert!(degraded.release().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_at_every_await_leaves_nothing() {
    for (down, busy) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut done = 0;
        for k in 0..40 {
            let world = World::new(3);
            let redlock = world.process();
            let m = local(&redlock, "m");
            if down {
                world.cut([0, 1, 2]);
            }
            let inside = if busy { Some(m.acquire().await.unwrap()) } else { None };
            done += usize::from(poll_times(k, m.acquire()).await.is_some());
            drop(inside);
            world.heal();
            sleep(2 * S).await;
            let begun = Instant::now();
            let next = held(&m).await;
            assert!(begun.elapsed() < S, "{k}: {:?}", begun.elapsed());
            drop(next);
            sleep(S).await;
            assert!(is_free(&world.process(), "m").await, "{k}");
            assert_eq!(redlock.health().await.degraded, 0);
        }
        assert!(busy || done > 0, "the future completes at some k");
    }
}

#[tokio::test(start_paused = true)]
async fn closing_ends_all_who_wait_and_lets_no_call_go_on() {
    let world = World::new(3);
    let redlock = world.process();
    world.cut([0, 1, 2]);
    let m = local(&redlock, "m");
    let asks = spawn(&proceed(&redlock, "asks"));
    sleep(S / 10).await;
    let closing = redlock.clone();
    let closed = tokio::spawn(async move { closing.close(10 * S).await });
    let e = asks.await.unwrap().unwrap_err();
    assert!(matches!(e, AcquireError::Closed(_)), "{e}");
    let e = m.acquire().await.unwrap_err();
    assert!(matches!(e, AcquireError::Closed(_)), "{e}");
    drop(closed.await.unwrap());

    // The `Redlock` handle is closed during the last attempt to acquire the lock. After this
    // attempt, `acquire` would continue without the lock.
    world.heal();
    world.links.iter().for_each(FaultControl::freeze);
    let redlock = world.process();
    let asks = spawn(&proceed(&redlock, "asks"));
    sleep(400 * MS).await;
    assert!(!asks.is_finished());
    drop(redlock.close(10 * S).await);
    let e = asks.await.unwrap().unwrap_err();
    assert!(matches!(e, AcquireError::Closed(_)), "{e}");
    world.links.iter().for_each(FaultControl::thaw);

    world.cut([0, 1, 2]);
    let redlock = world.process();
    let m = local(&redlock, "m");
    let inside = degraded(&m).await;
    let waits = spawn(&m);
    sleep(S / 10).await;
    let begun = Instant::now();
    // A degraded guard holds no lock, so `close` does not wait for it.
    drop(redlock.close(10 * S).await);
    let e = waits.await.unwrap().unwrap_err();
    assert!(matches!(e, AcquireError::Closed(_)), "{e}");
    assert!(begun.elapsed() < S, "{:?}", begun.elapsed());
    let e = proceed(&redlock, "m").acquire().await.unwrap_err();
    assert!(matches!(e, AcquireError::Closed(_)), "no known outcome is used");
    assert!(inside.is_degraded() && inside.release().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_log_says_when_it_begins_and_when_it_ends() {
    let log = Log::of_this_thread(LevelFilter::INFO);
    let said = |parts: &[&str]| log.lines(parts).len();
    let world = World::new(3);
    let redlock = world.process();
    let m = local(&redlock, "m");
    drop(held(&m).await);
    assert_eq!(said(&["degrad"]), 0);
    world.cut([0, 1, 2]);
    for _ in 0..40 {
        drop(degraded(&m).await);
        drop(degraded(&proceed(&redlock, "n")).await);
        sleep(S / 4).await;
    }
    let begin = ["WARN palisade::lease", "policy=\"local\"", "lock \"m\"", "event=\"degraded\""];
    assert_eq!((said(&begin), said(&["degrad"])), (1, 1), "{}", log.text());
    world.heal();
    sleep(S).await;
    drop(held(&m).await);
    let end = ["INFO palisade::lease", "guards=80", "event=\"degrading_ended\"", "for_secs=1"];
    assert_eq!((said(&end), said(&["degrad"])), (1, 2), "{}", log.text());
    drop(held(&m).await);
    assert_eq!(said(&["degrad"]), 2);
}
