//! What leaves for a node that takes several batches at once: never more than it takes, each answer
//! to its asker, and no release before its own acquire.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::durability::{BarrierPoint, Durability};
use palisade::error::NodeError;
use palisade::node::{BoxFuture, LockNode, MemoryNode, NodeEvent};
use palisade::op::{Batch, Op, Replies};
use palisade::time::Moment;
use palisade::{Redlock, TryAcquire};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::sleep;

const DEPTH: usize = 6;

type Call = (Batch, Moment, oneshot::Sender<Replies>);

/// A memory node behind one connection: executes in order, one batch after the other, and takes
/// its time for it.
struct Connection {
    inner: Arc<MemoryNode>,
    queue: mpsc::UnboundedSender<Call>,
    seen: Arc<Seen>,
}

/// What came in.
#[derive(Default)]
struct Seen {
    under_way: AtomicUsize,
    most: AtomicUsize,
    largest: AtomicUsize,
    /// Owners whose release came, and those whose acquire came after it.
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
                // The way back takes as long for all, so answers come in order, some together.
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
        assert!(self.queue.send((batch, deadline, answer)).is_ok(), "the connection stands");
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

    fn events(&self) -> broadcast::Receiver<NodeEvent> {
        self.inner.events()
    }

    fn name(&self) -> Arc<str> {
        self.inner.name()
    }
}

/// Sixty-four callers on a few names, each of which may have one holder at a time; some of them go
/// away while they ask.
async fn crowd(lock: &Redlock) -> u32 {
    let (held, pairs) = (Arc::new(<[AtomicU32; 24]>::default()), Arc::<AtomicU32>::default());
    let callers = (0..64_usize).map(|caller| {
        let (lock, held, pairs) = (lock.clone(), Arc::clone(&held), Arc::clone(&pairs));
        tokio::spawn(async move {
            for round in 0..40_usize {
                let name = (caller * 7 + round * 5) % held.len();
                let mutex = lock.mutex(format!("name-{name}"));
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
                    assert!(guard.release().await.is_released());
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
    let builder = nodes.into_iter().fold(Redlock::builder(), palisade::RedlockBuilder::node);
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
async fn each_of_several_nodes_is_given_two() {
    let (lock, seen) = handle(3);
    assert!(crowd(&lock).await > 100);
    for seen in seen {
        assert_eq!(seen.most.load(Ordering::SeqCst), 2, "batches under way");
        assert!(seen.largest.load(Ordering::SeqCst) > 16, "they leave together");
        assert_eq!(seen.overtaken.load(Ordering::SeqCst), 0, "a release came before its acquire");
    }
}
