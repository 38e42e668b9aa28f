//! Tests with a crash at every point of a message's delivery.

use std::fmt;
use std::future::{Future, pending};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade::error::{ConfigError, NodeError, NodeFault};

use palisade::node::spi::{BarrierPoint, Batch, BoxFuture, Env, LockNode, NodeSignal, Op, Replies};
use palisade::test_util::TokioEnv;
use palisade::{Config, Durability, MemoryNode, Moment, Redlock, RedlockBuilder};
use tokio::sync::{Notify, broadcast};
use tokio::time::sleep;

/// In one trial.
const MOST: u32 = 20;
/// Within the default `clock_error`.
const SKEW: Duration = Duration::from_secs(1);

/// Fault that is injected at a crash point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CrashKind {
    /// The process dies: its futures are dropped, and it sends no further request.
    Kill,
    /// The request or its answer is under way for longer than a lease.
    Stall,
    /// The node loses its data, like a new master without the data of the old one. Other processes
    /// have recorded that the node had data.
    LoseData,
    /// The node's clock steps forward by a second, which the default `clock_error` permits.
    SkewClock,
}

/// Result of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The handling has ended, and the message is acknowledged.
    Done,
    /// The message has to be delivered again.
    Again,
    /// The message is parked, because a person has to decide.
    Parked,
}

/// A test of code that handles messages. Each trial has a crash at one point of a delivery.
///
/// There is a crash point at each request to a node and at each answer, and before and after each
/// [effect](Process::effect). After the crash, the message is delivered to a new process, again and
/// again until it is done or parked. Run the trials in a test with tokio's time paused, so that no
/// real time passes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), palisade::error::ConfigError> {
/// use palisade_testing::crash::{CrashKind, Crashes, Delivery};
/// use palisade::{Failed, Outcome};
///
/// // #[tokio::test(start_paused = true)]
/// let report = Crashes::new(3, CrashKind::Kill)
///     .run(|process| async move {
///         let orders = process.redlock().idempotency("orders").at_most_once().build().unwrap();
///         let charge = async |_| {
///             process.effect().await; // your code, with a false payment service
///             Ok::<_, Failed>("receipt".to_owned())
///         };
///         match orders.key("order-7").run(charge).await {
///             Ok(Outcome::Executed { .. } | Outcome::Replayed(_)) => Delivery::Done,
///             Ok(Outcome::Parked(_)) => Delivery::Parked,
///             _ => Delivery::Again,
///         }
///     })
///     .await?;
/// report.assert_at_most_once();
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "it does nothing until `run`"]
pub struct Crashes {
    nodes: usize,
    kind: CrashKind,
}

/// Result of all trials.
#[derive(Clone, Debug)]
#[must_use = "it lists the trials that broke a promise; check it"]
pub struct CrashReport {
    /// The trials, one for each crash point.
    pub trials: Vec<Trial>,
}

/// Result of one trial.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Trial {
    /// The injected fault.
    pub kind: CrashKind,
    /// The crash point, for example `before Claim at node-1`; `None` if the trial did not reach its
    /// point.
    pub point: Option<String>,
    /// Number of effects.
    pub effects: u32,
    /// Result of the last delivery; `None` if the message was neither done nor parked within twenty
    /// deliveries.
    pub ended: Option<Delivery>,
    /// Number of deliveries of the message.
    pub deliveries: u32,
}

/// A process that handles a delivery. A crash may end it. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Process(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    redlock: Redlock,
    life: Arc<Life>,
}

/// They outlive a process.
#[derive(Debug)]
struct World {
    env: Arc<TokioEnv>,
    nodes: Vec<MemoryNode>,
    effects: Arc<AtomicU32>,
}

#[derive(Debug)]
struct Life {
    /// `None` for a process without a crash.
    crash: Option<(CrashKind, usize)>,
    passed: AtomicUsize,
    crashed_at: Mutex<Option<String>>,
    dead: AtomicBool,
    died: Notify,
    first: MemoryNode,
    effects: Arc<AtomicU32>,
}

impl Crashes {
    /// Creates trials with this number of memory nodes.
    pub fn new(nodes: usize, kind: CrashKind) -> Self {
        Self { nodes, kind }
    }

    /// Runs one delivery without a crash. Then runs one trial, which has one crash, for each crash
    /// point that this delivery passed.
    ///
    /// # Errors
    /// [`ConfigError`] if no handle can be made with this number of nodes.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time. The trials have no effect outside of this future.
    pub async fn run<F, Fut>(self, deliver: F) -> Result<CrashReport, ConfigError>
    where
        F: Fn(Process) -> Fut,
        Fut: Future<Output = Delivery>,
    {
        let world = World::new(self.nodes);
        let undisturbed = world.process(None)?;
        deliver(undisturbed.clone()).await;
        let points = undisturbed.0.life.passed.load(Ordering::Relaxed);
        let mut trials = Vec::with_capacity(points);
        for at in 0..points {
            trials.push(self.trial(&deliver, at).await?);
        }
        Ok(CrashReport { trials })
    }

    async fn trial<F, Fut>(&self, deliver: &F, at: usize) -> Result<Trial, ConfigError>
    where
        F: Fn(Process) -> Fut,
        Fut: Future<Output = Delivery>,
    {
        let world = World::new(self.nodes);
        let mut crash = Some((self.kind, at));
        // A process that was not killed keeps its `Redlock` handle.
        let mut alive = Vec::new();
        let (mut deliveries, mut ended, mut point) = (0, None, None);
        while deliveries < MOST {
            let process = world.process(crash.take())?;
            deliveries += 1;
            let life = Arc::clone(&process.0.life);
            let delivery = tokio::select! {
                biased;
                () = life.died.notified() => None,
                delivery = deliver(process.clone()) => Some(delivery),
            };
            point = point.or(life.crashed_at().take());
            if delivery.is_some() {
                alive.push(process);
            }
            if let Some(Delivery::Done | Delivery::Parked) = delivery {
                ended = delivery;
                break;
            }
            sleep(Config::default().ttl * 2).await;
        }
        let effects = world.effects.load(Ordering::Relaxed);
        Ok(Trial { kind: self.kind, point, effects, ended, deliveries })
    }
}

impl World {
    fn new(nodes: usize) -> Self {
        let env = Arc::new(TokioEnv::new());
        let node = |i| MemoryNode::builder().name(format!("node-{i}")).env(env.clone()).build();
        Self { nodes: (0..nodes).map(node).collect(), env, effects: Arc::default() }
    }

    fn process(&self, crash: Option<(CrashKind, usize)>) -> Result<Process, ConfigError> {
        let life = Arc::new(Life {
            crash,
            passed: AtomicUsize::new(0),
            crashed_at: Mutex::default(),
            dead: AtomicBool::new(false),
            died: Notify::new(),
            first: self.nodes.first().cloned().unwrap_or_default(),
            effects: Arc::clone(&self.effects),
        });
        let with_crashes = |node: &MemoryNode| CrashingNode {
            node: node.clone(),
            env: Arc::clone(&self.env),
            life: Arc::clone(&life),
        };
        let builder = Redlock::builder().env(Arc::clone(&self.env) as Arc<dyn Env>);
        let builder = self.nodes.iter().map(with_crashes).fold(builder, RedlockBuilder::node);
        Ok(Process(Arc::new(Inner { redlock: builder.build()?, life })))
    }
}

impl Process {
    /// Returns the `Redlock` handle of this process.
    pub fn redlock(&self) -> &Redlock {
        &self.0.redlock
    }

    /// Counts one effect of the handler, with a crash point before it and a crash point after it.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the effect may have happened. A probe can read the number of
    /// effects from [`effects`](Self::effects).
    pub async fn effect(&self) {
        let life = &self.0.life;
        life.pass("before the effect", &life.first).await;
        life.effects.fetch_add(1, Ordering::Relaxed);
        life.pass("behind the effect", &life.first).await;
    }

    /// Returns the number of effects so far, in all processes, as a probe would.
    pub fn effects(&self) -> u32 {
        self.0.life.effects.load(Ordering::Relaxed)
    }
}

impl Life {
    fn crashed_at(&self) -> MutexGuard<'_, Option<String>> {
        // Each change of the value is one statement.
        self.crashed_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time for which the request or the answer is delayed at this point. If the
    /// process dies, the future never resolves.
    async fn pass(&self, what: &str, node: &MemoryNode) -> Duration {
        if self.dead.load(Ordering::Acquire) {
            return pending().await;
        }
        let at = self.passed.fetch_add(1, Ordering::Relaxed);
        let Some((kind, point)) = self.crash else { return Duration::ZERO };
        if at != point {
            return Duration::ZERO;
        }
        *self.crashed_at() = Some(what.to_owned());
        match kind {
            CrashKind::Kill => {
                self.dead.store(true, Ordering::Release);
                self.died.notify_one();
                pending().await
            }
            CrashKind::Stall => Config::default().ttl * 2,
            CrashKind::LoseData => {
                node.lose_data();
                Duration::ZERO
            }
            CrashKind::SkewClock => {
                node.jump_clock(SKEW);
                Duration::ZERO
            }
        }
    }
}

#[derive(Debug)]
struct CrashingNode {
    node: MemoryNode,
    env: Arc<TokioEnv>,
    life: Arc<Life>,
}

impl CrashingNode {
    async fn forward(&self, batch: Batch, deadline: Moment) -> Replies {
        let what = batch.ops.first().map_or("look", operation);
        let at = |side| format!("{side} {what} at {}", self.node.name());
        let stalls = self.life.pass(&at("before"), &self.node).await;
        if !stalls.is_zero() {
            // Long after the sender has stopped waiting for it.
            let node = self.node.clone();
            tokio::spawn(async move {
                sleep(stalls).await;
                node.call(batch, deadline).await
            });
            return pending().await;
        }
        let replies = self.node.call(batch, deadline).await;
        sleep(self.life.pass(&at("behind"), &self.node).await).await;
        replies
    }
}

impl LockNode for CrashingNode {
    fn call(&self, batch: Batch, deadline: Moment) -> BoxFuture<'_, Replies> {
        let n = batch.ops.len();
        Box::pin(async move {
            let limit = deadline.since(self.env.now());
            tokio::time::timeout(limit, self.forward(batch, deadline)).await.unwrap_or_else(|_| {
                Replies::fail(n, &NodeError::maybe_executed(NodeFault::Timeout, "no answer"))
            })
        })
    }

    fn barrier(
        &self,
        after: BarrierPoint,
        level: Durability,
        deadline: Moment,
    ) -> BoxFuture<'_, Result<u32, NodeError>> {
        self.node.barrier(after, level, deadline)
    }

    fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.node.events()
    }

    fn name(&self) -> Arc<str> {
        self.node.name()
    }
}

fn operation(op: &Op) -> &'static str {
    match op {
        Op::Acquire { .. } => "Acquire",
        Op::Raise { .. } => "Raise",
        Op::Extend { .. } => "Extend",
        Op::Release { .. } => "Release",
        Op::Inspect { .. } => "Inspect",
        Op::Enlist(_) => "Enlist",
        Op::Claim(_) => "Claim",
        Op::RaiseClaim { .. } => "RaiseClaim",
        Op::ExtendClaim { .. } => "ExtendClaim",
        Op::Complete { .. } => "Complete",
        Op::Steps { .. } => "Steps",
        Op::Unclaim { .. } => "Unclaim",
        Op::Lookup { .. } => "Lookup",
    }
}

impl CrashReport {
    /// Checks that in each trial the effect happened at most once and the message was done or
    /// parked. If the message was done, the effect must have happened.
    ///
    /// # Panics
    /// A trial fails this check. The message lists all such trials.
    pub fn assert_at_most_once(&self) {
        let broken = |t: &&Trial| {
            t.effects > 1 || t.ended.is_none() || t.ended == Some(Delivery::Done) && t.effects == 0
        };
        self.assert_none(broken);
    }

    /// Checks that in each trial the effect happened once and the message was done.
    ///
    /// # Panics
    /// A trial fails this check. The message lists all such trials.
    pub fn assert_exactly_once(&self) {
        self.assert_none(|t| t.effects != 1 || t.ended != Some(Delivery::Done));
    }

    fn assert_none(&self, broken: impl Fn(&&Trial) -> bool) {
        assert!(!self.trials.is_empty(), "the delivery reached no crash point");
        let broken: Vec<String> =
            self.trials.iter().filter(broken).map(ToString::to_string).collect();
        let (n, of) = (broken.len(), self.trials.len());
        assert!(n == 0, "{n} of {of} trials broke the promise:\n{}", broken.join("\n"));
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let point = self.point.as_deref().unwrap_or("nowhere");
        write!(f, "{:?} {point}: {} effects, ", self.kind, self.effects)?;
        match self.ended {
            Some(ended) => write!(f, "{ended:?} after {} deliveries", self.deliveries),
            None => write!(f, "no end within {} deliveries", self.deliveries),
        }
    }
}
