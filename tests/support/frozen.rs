//! Consumers that are frozen in their handler for longer than their lease, and consumers whose
//! process dies in it. For each broker: a frozen one takes nothing away from the one that took
//! over, and a message that kills its process again and again is put aside.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use palisade::idempotency::Context;
use palisade::{Failed, Idempotency, MemoryNode, Redlock};
use palisade_consumer::{Broker, ConsumerBuilder, ConsumerReport, Rules};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::time::timeout;

const LEASE: Duration = Duration::from_secs(2);
/// Time limit for one step, even on a busy machine.
const LONG: Duration = Duration::from_secs(100);
/// Number of attempts that may end with their process.
const DEATHS: u32 = 3;

type Answer = fn() -> Result<(), Failed>;

const ANSWERS: [Answer; 5] = [
    || Err(Failed::permanent("no such customer")),
    || Err(Failed::no_effect("the last allowed failure")),
    || Err(Failed::retry("the last allowed failure")),
    || Err(Failed::unknown("the last allowed failure")),
    || Ok(()),
];

/// Returns a namespace of idempotency keys, as a process of its own makes it.
fn orders(node: &MemoryNode) -> Idempotency {
    let redlock = Redlock::builder().node(node.clone()).ttl(LEASE).build().unwrap();
    redlock.idempotency("orders").at_least_once().build().unwrap()
}

/// A runtime with one thread. While a handler blocks this thread, the process sends nothing.
fn alone() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs a process that gets a message, freezes, and then answers.
fn freeze<B: Broker>(
    make: &impl AsyncFn(Idempotency) -> ConsumerBuilder<B>,
    node: &MemoryNode,
    taken: &Arc<Notify>,
    answer: Answer,
) -> ConsumerReport {
    let work = async {
        let rules = Rules::default().max_failures(1);
        let consumer = make(orders(node)).await.rules(rules).build().unwrap();
        let awake = Arc::new(Notify::new());
        let (started, woke) = (Arc::clone(taken), Arc::clone(&awake));
        let handler = move |_: Context, _: Arc<B::Delivery>| {
            started.notify_one();
            std::thread::sleep(4 * LEASE);
            woke.notify_one();
            async move { answer() }
        };
        consumer.run(handler, awake.notified()).await.unwrap()
    };
    alone().block_on(Box::pin(work))
}

/// Publishes a message for each answer of a frozen consumer, and consumes it with another one. The
/// runtime of the caller needs two threads.
pub async fn overtaken<B: Broker, F>(
    make: F,
    publish: impl AsyncFn(&str),
    drained: impl AsyncFn(),
    dead: impl AsyncFn() -> usize,
) where
    F: AsyncFn(Idempotency) -> ConsumerBuilder<B> + Clone + Send + 'static,
{
    for (n, answer) in ANSWERS.into_iter().enumerate() {
        let (node, taken) = (MemoryNode::new(), Arc::new(Notify::new()));
        publish(&format!("order-{n}")).await;
        let frozen = {
            let (make, node, taken) = (make.clone(), node.clone(), Arc::clone(&taken));
            tokio::task::spawn_blocking(move || freeze(&make, &node, &taken, answer))
        };
        timeout(LONG, taken.notified()).await.expect("it is delivered");
        let (ran, over) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
        let (counted, go_on) = (Arc::clone(&ran), Arc::clone(&over));
        let other = move |cx: Context, _: Arc<B::Delivery>| {
            let (counted, go_on) = (Arc::clone(&counted), Arc::clone(&go_on));
            async move {
                assert_eq!(cx.attempt(), 2);
                counted.fetch_add(1, SeqCst);
                go_on.notified().await;
                Ok::<_, Failed>(())
            }
        };
        let consumer = make(orders(&node)).await.build().unwrap();
        let judge = Box::pin(async {
            let late = frozen.await.unwrap();
            assert_eq!((late.acked, late.parked, late.unsettled), (0, 0, 1), "{n}: {late:?}");
            over.notify_one();
            drained().await;
        });
        let run = Box::pin(consumer.run(other, judge));
        let ended = timeout(LONG, run).await.expect("it ends").unwrap();
        assert_eq!((ran.load(SeqCst), ended.acked, ended.parked), (1, 1, 0), "{n}: {ended:?}");
        assert_eq!(dead().await, 0, "{n}");
    }
}

/// Runs a process that gets a message, and dies in its handler.
fn die<B: Broker>(make: &impl AsyncFn(Idempotency) -> ConsumerBuilder<B>, node: &MemoryNode) {
    let runtime = alone();
    let work = async {
        let begun = Arc::new(Notify::new());
        let started = Arc::clone(&begun);
        let handler = move |_: Context, _: Arc<B::Delivery>| {
            started.notify_one();
            pending::<Result<(), Failed>>()
        };
        let rules = Rules::default().max_failures(DEATHS);
        let consumer = make(orders(node)).await.rules(rules).build().unwrap();
        tokio::select! {
            biased;
            () = begun.notified() => {}
            ended = timeout(LONG, consumer.run(handler, pending())) => panic!("{ended:?}"),
        }
    };
    runtime.block_on(Box::pin(work));
    runtime.shutdown_background();
}

/// Publishes a message whose handler kills its process, and consumes it with one process after the
/// other. The last one must put it aside.
pub async fn kills_its_process<B: Broker, F>(
    make: F,
    publish: impl AsyncFn(&str),
    drained: impl AsyncFn(),
) where
    F: AsyncFn(Idempotency) -> ConsumerBuilder<B> + Clone + Send + 'static,
{
    let node = MemoryNode::new();
    publish("poisoned").await;
    for _ in 0..DEATHS {
        let (make, node) = (make.clone(), node.clone());
        tokio::task::spawn_blocking(move || die(&make, &node)).await.unwrap();
    }
    publish("fine").await;
    let ran = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&ran);
    let handler = move |cx: Context, _: Arc<B::Delivery>| {
        counted.fetch_add(1, SeqCst);
        async move {
            assert_eq!(cx.key(), "fine");
            Ok::<_, Failed>(())
        }
    };
    let rules = Rules::default().max_failures(DEATHS);
    let consumer = make(orders(&node)).await.rules(rules).build().unwrap();
    let run = Box::pin(consumer.run(handler, drained()));
    let ended = timeout(LONG, run).await.expect("it ends").unwrap();
    assert_eq!((ran.load(SeqCst), ended.acked, ended.parked), (1, 1, 1), "{ended:?}");
}
