//! Fair locks: callers get the lock in the order in which they began to wait. This holds even if
//! some callers leave the queue.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use palisade::error::{AcquireError, NodeFault};
use palisade::node::spi::{Batch, LockNode as _, Op};
use palisade::{MemoryNode, Mutex, OnUnavailable, Owner, Queued, Redlock, RetryPolicy, TryAcquire};
use palisade_testing::fault::{Fault, Odds};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::nodes::Nodes;
use crate::support::wrap::{Wrap, refused};

pub(crate) const LONG: Duration = Duration::from_secs(240);

pub(crate) fn fair(redlock: &Redlock) -> Mutex {
    redlock.mutex("plotter").fair(true).acquire_timeout(LONG).build().unwrap()
}

/// The numbers of the callers, in the order in which they had the lock.
pub(crate) type Served = Arc<StdMutex<Vec<usize>>>;

/// Begins a call that waits for the lock, and returns as soon as the call has reported its position
/// in the queue. When the call gets the lock, it adds `number` to `served`.
pub(crate) async fn queue_up(mutex: Mutex, number: usize, served: &Served) -> JoinHandle<()> {
    let (queued, served) = (Arc::new(Notify::new()), Arc::clone(served));
    let task = tokio::spawn({
        let queued = Arc::clone(&queued);
        async move {
            let guard = mutex.acquire_with(|_| queued.notify_one()).await.unwrap();
            served.lock().unwrap().push(number);
            guard.release().await.unwrap();
        }
    });
    timeout(LONG, queued.notified()).await.expect("the call has a position");
    task
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_are_served_in_the_order_in_which_they_came() {
    for nodes in Nodes::all() {
        let holder = fair(&nodes.handle()).acquire().await.unwrap();
        let served = Served::default();
        let mut tasks = Vec::new();
        let handles: Vec<_> = (0..8).map(|_| nodes.handle()).collect();
        for (number, handle) in handles.iter().enumerate() {
            tasks.push(queue_up(fair(handle), number, &served).await);
        }
        // A later caller of a handle that already has a waiter comes after that waiter. It also
        // comes after all callers that already have a position.
        let later = tokio::spawn({
            let (mutex, served) = (fair(&handles[0]), Arc::clone(&served));
            async move {
                let guard = mutex.acquire().await.unwrap();
                served.lock().unwrap().push(8);
                guard.release().await.unwrap();
            }
        });
        sleep(Duration::from_millis(50)).await;
        holder.release().await.unwrap();
        for task in tasks.into_iter().chain([later]) {
            timeout(LONG, task).await.unwrap().unwrap();
        }
        assert_eq!(*served.lock().unwrap(), (0..9).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn the_position_falls_as_others_leave() {
    let nodes = Nodes::memory(3);
    let holder = fair(&nodes.handle()).acquire().await.unwrap();
    let served = Served::default();
    let mut ahead = Vec::new();
    for number in 0..3 {
        ahead.push(queue_up(fair(&nodes.handle()), number, &served).await);
    }
    let (tell, mut told) = mpsc::unbounded_channel();
    let last = tokio::spawn({
        let mutex = fair(&nodes.handle());
        async move {
            let mut tell = |q: Queued| tell.send((q.ahead, q.ticket)).unwrap();
            mutex.acquire_with(&mut tell).await
        }
    });
    let (first, ticket) = told.recv().await.unwrap();
    assert_eq!(first, 3);
    // A caller that is dropped leaves the queue at once.
    ahead.remove(1).abort();
    assert_eq!(told.recv().await.unwrap(), (2, ticket));
    holder.release().await.unwrap();
    let guard = timeout(LONG, last).await.unwrap().unwrap().unwrap();
    while let Some((ahead, same)) = told.recv().await {
        assert!(ahead < 2 && same == ticket);
    }
    assert_eq!(*served.lock().unwrap(), [0, 2]);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_free_lock_is_acquired_in_one_attempt_and_reports_no_position() {
    let nodes = Nodes::memory(3);
    for _ in 0..3 {
        let mutex = fair(&nodes.handle());
        let guard = mutex.acquire_with(|q| panic!("it is free: {q:?}")).await.unwrap();
        guard.release().await.unwrap();
    }
    // A call of a mutex that is not fair waits, but reports no position.
    let plain = nodes.handle().mutex("plotter").build().unwrap();
    let holder = plain.acquire().await.unwrap();
    let waits = plain.acquire_with(|q| panic!("it is not fair: {q:?}"));
    assert!(timeout(Duration::from_millis(300), waits).await.is_err());
    holder.release().await.unwrap();
}

#[tokio::test]
async fn a_call_ends_at_its_deadline_and_says_who_came_first() {
    let nodes = Nodes::memory(3);
    let (one, two) = (nodes.handle(), nodes.handle());
    let holder = fair(&nodes.handle()).acquire().await.unwrap();
    let served = Served::default();
    let first = queue_up(fair(&one), 0, &served).await;
    let brief = |redlock: &Redlock| {
        let brief = redlock.mutex("plotter").fair(true).acquire_timeout(Duration::from_millis(300));
        brief.build().unwrap()
    };
    // The call of `two` waits in the queues of the nodes. The call of `one` waits until the first
    // call of its own handle has ended.
    let (queued, behind) = (brief(&two), brief(&one));
    let (queued, behind) = tokio::join!(queued.acquire(), behind.acquire());
    let Err(AcquireError::TimedOut { waited, taken, .. }) = queued else { panic!("{queued:?}") };
    assert!(waited >= Duration::from_millis(300));
    assert_eq!(taken.queued.map(|queued| queued.ahead), Some(1));
    let Err(AcquireError::TimedOut { waited, taken, .. }) = behind else { panic!("{behind:?}") };
    assert!(waited >= Duration::from_millis(300) && taken.queued.is_none());
    // Both calls that timed out have left no place in the queue. So the next caller waits behind
    // the first caller only.
    let third = queue_up(fair(&nodes.handle()), 1, &served).await;
    holder.release().await.unwrap();
    for task in [first, third] {
        timeout(Duration::from_secs(10), task).await.expect("no other is ahead").unwrap();
    }
    assert_eq!(*served.lock().unwrap(), [0, 1]);
}

/// A call reports "taken" only if a majority of the nodes said so. This holds even for a call that
/// sends no requests, because it waits for another call of its handle.
#[tokio::test]
async fn calls_without_a_majority_report_what_a_mutex_that_is_not_fair_reports() {
    let memory: Vec<_> = (0..3).map(|_| MemoryNode::new()).collect();
    let read_only = Arc::new(AtomicBool::new(false));
    let nodes: Vec<_> = memory
        .iter()
        .map(|node| {
            let read_only = Arc::clone(&read_only);
            Fault::new(Wrap::new(node.clone(), move |node, batch: Batch, deadline| {
                let locks = batch.ops.iter().any(|op| matches!(op, Op::Acquire { .. }));
                let refuses = locks && read_only.load(SeqCst);
                async move {
                    if refuses {
                        refused(&batch, NodeFault::NoReplicas)
                    } else {
                        node.call(batch, deadline).await
                    }
                }
            }))
        })
        .collect();
    let builder = nodes.iter().fold(Redlock::builder(), |b, node| b.node(node.clone()));
    let redlock = builder.node_deadline(Duration::from_millis(50)).build().unwrap();
    let brief = |fair| {
        let brief = redlock.mutex("plotter").fair(fair).acquire_timeout(Duration::from_millis(300));
        brief.build().unwrap()
    };
    let (plain, fair) = (brief(false), brief(true));
    let report = async || {
        let all = tokio::join!(plain.acquire(), fair.acquire(), fair.acquire(), fair.acquire());
        [all.0, all.1, all.2, all.3].map(|refused| match refused.unwrap_err() {
            AcquireError::TimedOut { waited, .. } => {
                assert!(waited >= Duration::from_millis(300));
                "taken"
            }
            AcquireError::NoQuorum(why) => {
                assert!(why.waited.is_some_and(|waited| waited >= Duration::from_millis(300)));
                if why.quarantine().is_some() { "quarantine" } else { "no quorum" }
            }
            other => panic!("{other:?}"),
        })
    };
    let held = plain.acquire().await.unwrap();
    assert_eq!(report().await, ["taken"; 4]);
    nodes[0].control().cut();
    assert_eq!(report().await, ["taken"; 4]);
    nodes[1].control().cut();
    assert_eq!(report().await, ["no quorum"; 4]);
    for node in &nodes {
        node.control().heal();
    }
    // The servers answer reads, and refuse writes.
    read_only.store(true, SeqCst);
    assert_eq!(report().await, ["no quorum"; 4]);
    read_only.store(false, SeqCst);
    assert_eq!(report().await, ["taken"; 4]);
    memory.iter().for_each(MemoryNode::restart_empty);
    assert_eq!(report().await, ["quarantine"; 4]);
    drop(held);
    let waiting = tokio::join!(queue_up_behind(&fair), queue_up_behind(&fair));
    drop(redlock.close(LONG).await);
    for call in [waiting.0, waiting.1] {
        let refused = timeout(LONG, call).await.unwrap().unwrap();
        assert!(matches!(refused, Err(AcquireError::Closed(_))), "{refused:?}");
    }
}

/// A fair call waits in the process for the first fair call of its handle. It reports the nodes'
/// answer to the first call, even if the first call may degrade (continue without the lock). If no
/// task polls the first call, the second call reads the lock itself.
#[tokio::test]
async fn calls_behind_a_call_that_may_degrade_or_is_not_polled_report_a_taken_lock() {
    let nodes = Nodes::memory(3);
    let holder = fair(&nodes.handle()).acquire().await.unwrap();
    let (one, two) = (nodes.handle(), nodes.handle());
    let brief = |redlock: &Redlock| {
        let brief = redlock.mutex("plotter").fair(true).acquire_timeout(Duration::from_millis(200));
        brief.build().unwrap()
    };
    let degrading = fair(&one).on_unavailable(OnUnavailable::Proceed);
    let first = tokio::spawn(async move { degrading.acquire().await.map(drop) });
    tokio::task::yield_now().await;
    let behind = brief(&one).acquire().await;
    let Err(AcquireError::TimedOut { taken, .. }) = behind else { panic!("{behind:?}") };
    assert!(taken.retry_after > Some(Duration::from_secs(1)), "the answer of the nodes: {taken:?}");

    let never_polled = fair(&two);
    let mut never_polled = Box::pin(never_polled.acquire());
    assert!((&mut never_polled).now_or_never().is_none());
    let refused = timeout(LONG, brief(&two).acquire()).await.expect("it ends");
    assert!(matches!(refused, Err(AcquireError::TimedOut { .. })), "{refused:?}");
    drop(never_polled);
    // Readers hold the lock.
    let readers = nodes.handle().rw_lock("pages").build().unwrap();
    let reader = readers.read().await.unwrap();
    let writer = |wait| two.mutex("pages").fair(true).acquire_timeout(wait).build().unwrap();
    let never_polled = writer(LONG);
    let mut never_polled = Box::pin(never_polled.acquire());
    assert!((&mut never_polled).now_or_never().is_none());
    let refused = writer(Duration::from_millis(200)).acquire().await;
    assert!(matches!(refused, Err(AcquireError::TimedOut { .. })), "{refused:?}");
    drop((never_polled, reader));
    holder.release().await.unwrap();
    timeout(LONG, first).await.unwrap().unwrap().unwrap();
}

/// Begins a call with a long timeout, as a task. The task begins to wait before this function
/// returns.
async fn queue_up_behind(mutex: &Mutex) -> JoinHandle<Result<palisade::LockGuard, AcquireError>> {
    let mutex = mutex.clone();
    let call = tokio::spawn(async move { mutex.acquire().await });
    tokio::task::yield_now().await;
    call
}

/// A caller that is no longer polled sends no more requests, so it does not take the lock. The next
/// callers wait for it for at most 3 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_first_in_the_queue_holds_the_others_up_shortly() {
    let nodes = Nodes::memory(3);
    let holder = fair(&nodes.handle()).acquire().await.unwrap();
    let (dead, queued) = (fair(&nodes.handle()), AtomicUsize::new(0));
    let mut frozen = Box::pin(dead.acquire_with(|_| {
        queued.fetch_add(1, SeqCst);
    }));
    while queued.load(SeqCst) == 0 {
        let _ = timeout(Duration::from_millis(5), &mut frozen).await;
    }
    let served = Served::default();
    let second = queue_up(fair(&nodes.handle()), 2, &served).await;
    holder.release().await.unwrap();
    sleep(Duration::from_millis(500)).await;
    assert!(served.lock().unwrap().is_empty(), "the first is still ahead");
    timeout(Duration::from_secs(10), second).await.unwrap().unwrap();
    // The first caller is polled again. It gets the lock, although the second caller had it before.
    let guard = timeout(LONG, frozen).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// Fair callers compete for one lock on nodes that lose requests and replies. Each caller gets the
/// lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_caller_is_served_though_messages_are_lost() {
    for n in [1, 3, 5] {
        let Nodes::Memory(all) = Nodes::memory(n) else { unreachable!() };
        let inside = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..6_u64)
            .map(|seed| {
                let mut builder = Redlock::builder().node_deadline(Duration::from_millis(100));
                for (i, node) in all.iter().enumerate() {
                    let faulty = Fault::new(node.clone());
                    let odds = Odds { lose_request: 0.03, lose_reply: 0.03, ..Odds::default() };
                    faulty.control().dice(seed * 10 + i as u64, odds);
                    builder = builder.node(faulty);
                }
                let redlock = builder.ttl(Duration::from_secs(1)).build().unwrap();
                let inside = Arc::clone(&inside);
                tokio::spawn(async move {
                    for _ in 0..4 {
                        let guard = fair(&redlock).acquire().await.unwrap();
                        assert_eq!(inside.fetch_add(1, SeqCst), 0, "two inside");
                        sleep(Duration::from_millis(3)).await;
                        inside.fetch_sub(1, SeqCst);
                        drop(guard);
                    }
                })
            })
            .collect();
        for task in tasks {
            timeout(LONG, task).await.unwrap().unwrap();
        }
    }
}

/// A degrading mutex (work may run without it if no node answers) and a reentrant mutex wait in the
/// same queue as a fair mutex, in the order of their calls.
#[tokio::test]
async fn other_forms_of_a_fair_mutex_wait_in_the_same_queue() {
    let nodes = Nodes::memory(3);
    let holder = fair(&nodes.handle()).acquire().await.unwrap();
    let served = Served::default();
    let first = queue_up(fair(&nodes.handle()), 0, &served).await;
    let (degrading, reentrant) = (fair(&nodes.handle()), fair(&nodes.handle()).reentrant());
    let degrading = degrading.on_unavailable(OnUnavailable::Local);
    let others = tokio::spawn({
        let served = Arc::clone(&served);
        async move {
            let guard = degrading.acquire().await.unwrap();
            served.lock().unwrap().push(1);
            guard.release().await.unwrap();
            let guard = reentrant.acquire(&Owner::new()).await.unwrap();
            served.lock().unwrap().push(2);
            drop(guard);
        }
    });
    sleep(Duration::from_millis(100)).await;
    let last = queue_up(fair(&nodes.handle()), 3, &served).await;
    // A call that does not wait is allowed to pass the queue. It is refused here because the lock
    // is held.
    let tried = fair(&nodes.handle()).try_acquire().await;
    assert!(matches!(tried, Ok(TryAcquire::Taken(_))));
    holder.release().await.unwrap();
    for task in [first, others, last] {
        timeout(LONG, task).await.unwrap().unwrap();
    }
    assert_eq!(*served.lock().unwrap(), [0, 1, 3, 2]);
}

/// A fair caller asks the nodes at least once a second, even if its retry policy has longer pauses.
/// So it keeps its place in the queue.
#[tokio::test]
async fn a_slow_policy_keeps_its_place() {
    let nodes = Nodes::memory(1);
    let slow = Duration::from_secs(20);
    let slow = RetryPolicy::exponential(slow, slow, 1.0).unwrap();
    let holder = fair(&nodes.handle()).acquire().await.unwrap();
    let served = Served::default();
    let mutex = nodes.handle().mutex("plotter").fair(true).retry(slow).acquire_timeout(LONG);
    let first = queue_up(mutex.build().unwrap(), 0, &served).await;
    sleep(Duration::from_millis(3_500)).await;
    let second = queue_up(fair(&nodes.handle()), 1, &served).await;
    holder.release().await.unwrap();
    for task in [first, second] {
        timeout(LONG, task).await.unwrap().unwrap();
    }
    assert_eq!(*served.lock().unwrap(), [0, 1]);
}

/// The queue of a lock has 64 places on each node. A caller that finds no free place has no
/// position. It gets the lock after the callers that have one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_without_a_place_has_no_position() {
    for nodes in [Nodes::memory(1), Nodes::redis(1)] {
        let holder = fair(&nodes.handle()).acquire().await.unwrap();
        let served = Served::default();
        let mut tasks = Vec::new();
        for number in 0..64 {
            tasks.push(queue_up(fair(&nodes.handle()), number, &served).await);
        }
        let (queued, redlock) = (Arc::new(AtomicUsize::new(0)), nodes.handle());
        let late = tokio::spawn({
            let (queued, served) = (Arc::clone(&queued), Arc::clone(&served));
            async move {
                let on_queued = |_| {
                    queued.fetch_add(1, SeqCst);
                };
                let guard = fair(&redlock).acquire_with(on_queued).await.unwrap();
                served.lock().unwrap().push(64);
                guard.release().await.unwrap();
            }
        });
        sleep(Duration::from_millis(500)).await;
        assert_eq!(queued.load(SeqCst), 0);
        holder.release().await.unwrap();
        for task in tasks.into_iter().chain([late]) {
            timeout(LONG, task).await.unwrap().unwrap();
        }
        assert!(served.lock().unwrap().iter().copied().eq(0..65));
    }
}

/// Waiters of many handles wait for a lock on three servers. Ten of these waiters end while they
/// wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_waiters_are_served_in_order_though_ten_end() {
    const HANDLES: usize = 50;
    const WAITERS: usize = 200;
    let nodes = Nodes::redis(3);
    let holder = fair(&nodes.handle()).acquire().await.unwrap();
    let served = Served::default();
    let handles: Vec<_> = (0..HANDLES).map(|_| nodes.handle()).collect();
    let mut tasks = Vec::new();
    for (number, handle) in handles.iter().enumerate() {
        tasks.push(queue_up(fair(handle), number, &served).await);
    }
    // Each of these callers waits until an earlier call of its own handle has ended. So it gets the
    // lock after that call.
    for number in HANDLES..WAITERS {
        let (mutex, served) = (fair(&handles[number % HANDLES]), Arc::clone(&served));
        let mut call = Box::pin(async move {
            let guard = mutex.acquire().await.unwrap();
            served.lock().unwrap().push(number);
            guard.release().await.unwrap();
        });
        assert!(futures_util::poll!(&mut call).is_pending());
        tasks.push(tokio::spawn(call));
    }
    sleep(Duration::from_millis(200)).await;
    let ended: Vec<_> = (0..10).map(|i| 3 + 5 * i).collect();
    for number in &ended {
        tasks[*number].abort();
    }
    holder.release().await.unwrap();
    for (number, task) in tasks.into_iter().enumerate() {
        let done = timeout(LONG, task).await.expect("each is served");
        assert_eq!(done.is_err(), ended.contains(&number));
    }
    let served = served.lock().unwrap();
    assert_eq!(served.len(), WAITERS - ended.len());
    // The first caller of each handle had a position in the queue. These callers got the lock in
    // the order of their positions.
    let first: Vec<_> = (0..HANDLES).filter(|number| !ended.contains(number)).collect();
    let before: Vec<_> = served.iter().copied().filter(|number| *number < HANDLES).collect();
    assert_eq!(before, first);
    for handle in 0..HANDLES {
        let own = served.iter().filter(|number| *number % HANDLES == handle);
        assert!(own.is_sorted(), "callers of one handle are served in their order: {served:?}");
    }
}
