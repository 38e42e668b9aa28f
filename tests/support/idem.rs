//! Memory nodes under tokio's paused clock, handles (clients) whose links to the nodes can fail,
//! and a counter of the handlers' effects.
#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(unreachable_pub, missing_docs)]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use palisade::Moment;
use palisade::error::{NodeError, NodeFault};
use palisade::node::spi::Env;
use palisade::node::spi::Op;
use palisade::{Idempotency, MemoryNode, Redlock, RedlockBuilder, node::spi::LockNode};
use palisade_testing::fault::{Fault, FaultControl, Odds};
use tokio::time::Instant;

use crate::support::wrap::Wrap;

type Done = Result<u32, &'static str>;

pub fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

/// Returns the result of a failing handler.
pub fn boom() -> impl Future<Output = Done> {
    std::future::ready(Err("boom"))
}

/// Counter of handler starts. Each start counts as an effect.
#[derive(Clone, Default)]
pub struct Effects(Arc<AtomicU32>);

impl Effects {
    /// Counts an effect at once. The returned future completes after the time `after` with the
    /// number of this effect.
    pub fn act(&self, after: Duration) -> impl Future<Output = Done> + Send + use<> {
        let mine = self.0.fetch_add(1, SeqCst) + 1;
        async move {
            tokio::time::sleep(after).await;
            Ok(mine)
        }
    }

    pub fn count(&self) -> u32 {
        self.0.load(SeqCst)
    }
}

/// An environment in which all clocks follow tokio's paused clock. Its random numbers are
/// repeatable.
#[derive(Debug)]
struct Paused {
    start: Instant,
    dice: Arc<AtomicU64>,
    /// Milliseconds by which the wall clock is ahead of the true time.
    skew: i64,
}

/// Wall-clock time at the beginning, in milliseconds since 1970.
pub const BEGIN: u64 = 1_700_000_000_000;

impl Env for Paused {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.start.elapsed().as_nanos() as u64 + 1_000_000_000)
    }

    fn wall_micros(&self) -> u64 {
        let right = BEGIN * 1_000 + self.start.elapsed().as_micros() as u64;
        right.saturating_add_signed(self.skew * 1_000)
    }

    fn random(&self) -> u128 {
        let n = u128::from(self.dice.fetch_add(1, SeqCst)) + 1;
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
    }
}

pub struct World {
    pub nodes: Vec<MemoryNode>,
    pub redlock: Redlock,
    env: Arc<dyn Env>,
    start: Instant,
    dice: Arc<AtomicU64>,
}

/// A handle with its own links to the nodes, as a separate process has. The fault controls disturb
/// these links.
#[derive(Clone)]
pub struct Handle {
    pub redlock: Redlock,
    pub faults: Vec<FaultControl>,
}

impl World {
    pub fn new(n: usize) -> Self {
        Self::with_strangers(n, 0)
    }

    /// Creates `n` nodes. On the last `strangers` nodes, each record's key has a value of another
    /// program.
    pub fn with_strangers(n: usize, strangers: usize) -> Self {
        let (start, dice) = (Instant::now(), Arc::default());
        let env = env(start, &dice, 0);
        let node = |i| MemoryNode::builder().name(format!("node-{i}")).env(env.clone()).build();
        let nodes: Vec<_> = (0..n).map(node).collect();
        let mut builder = Redlock::builder().env(env.clone()).ttl(secs(10)).max_ttl(secs(30));
        for (i, node) in nodes.iter().enumerate() {
            builder = if i < n - strangers {
                builder.node(node.clone())
            } else {
                builder.node(stranger(node.clone()))
            };
        }
        Self { redlock: builder.build().unwrap(), nodes, env, start, dice }
    }

    /// Creates one node for each element of `skews`. The node's clock is ahead by this number of
    /// milliseconds. `window` is the nodes' failover window: the time in which a replaced master
    /// may still grant.
    pub fn with_nodes(skews: &[i64], window: Duration) -> Self {
        let (start, dice) = (Instant::now(), Arc::default());
        let node = |(i, skew): (usize, &i64)| {
            let node =
                MemoryNode::builder().name(format!("node-{i}")).env(env(start, &dice, *skew));
            node.failover_window(window).unwrap().build()
        };
        let nodes: Vec<_> = skews.iter().enumerate().map(node).collect();
        let env = env(start, &dice, 0);
        let redlock = builder(&nodes, &env).build().unwrap();
        Self { nodes, redlock, env, start, dice }
    }

    /// Returns the builder of a `Redlock` handle whose wall clock is ahead by `skew` milliseconds.
    pub fn builder(&self, skew: i64) -> RedlockBuilder {
        self.over(&self.nodes, skew)
    }

    /// Returns the builder of a handle on these nodes. The handle's wall clock is ahead by `skew`
    /// milliseconds.
    pub fn over(&self, nodes: &[MemoryNode], skew: i64) -> RedlockBuilder {
        builder(nodes, &env(self.start, &self.dice, skew))
    }

    /// Returns the true time, in milliseconds since 1970.
    pub fn now(&self) -> u64 {
        BEGIN + self.start.elapsed().as_millis() as u64
    }

    /// Returns the builder of a handle with its own links to the nodes, and the fault controls of
    /// the links. The handle's wall clock is ahead by `skew` milliseconds.
    pub fn faulty(&self, skew: i64) -> (RedlockBuilder, Vec<FaultControl>) {
        let env = env(self.start, &self.dice, skew);
        let mut builder = builder(&[], &env);
        let mut faults = Vec::new();
        for node in &self.nodes {
            let fault = Fault::new(node.clone()).env(env.clone());
            faults.push(fault.control());
            builder = builder.node(fault);
        }
        (builder, faults)
    }

    /// Returns a handle of a new process. Its first `i` requests to one of the nodes are delayed by
    /// `i` milliseconds each, so that processes with different `i` interleave differently.
    pub fn handle(&self, i: u64) -> Handle {
        let (builder, faults) = self.faulty(0);
        if let Some(far) = faults.get(i as usize % self.nodes.len()) {
            let far = far.clone();
            far.script(
                (0..i).map(|_| palisade_testing::fault::Step::delay(Duration::from_millis(i))),
            );
        }
        Handle { redlock: builder.build().unwrap(), faults }
    }

    pub fn orders(&self) -> Idempotency {
        orders(&self.redlock)
    }

    /// Makes these nodes lose data by `how`, and waits until their quarantine has ended, in which
    /// they grant nothing.
    pub async fn lose(&self, nodes: &[usize], how: impl Fn(&MemoryNode)) {
        // A handle (client) recognises a loss of data only on a node that it has used before.
        let _ = self.orders().key("look").lookup::<u32>().await;
        for i in nodes {
            how(&self.nodes[*i]);
        }
        let _ = self.orders().key("look").lookup::<u32>().await;
        tokio::time::sleep(secs(31)).await;
    }
}

impl Handle {
    pub fn orders(&self) -> Idempotency {
        orders(&self.redlock)
    }
}

fn env(start: Instant, dice: &Arc<AtomicU64>, skew: i64) -> Arc<dyn Env> {
    Arc::new(Paused { start, dice: Arc::clone(dice), skew })
}

fn builder(nodes: &[MemoryNode], env: &Arc<dyn Env>) -> RedlockBuilder {
    let begun = Redlock::builder().env(Arc::clone(env)).ttl(secs(10)).max_ttl(secs(30));
    let begun = begun.allow_even_nodes();
    nodes.iter().fold(begun, |b, node| b.node(node.clone()))
}

/// Converts a time in milliseconds since 1970 to a `SystemTime`.
pub fn at(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

fn orders(redlock: &Redlock) -> Idempotency {
    redlock.idempotency("orders").at_most_once().build().unwrap()
}

/// Returns a node that fails each op on a record, as if another program had stored a value under
/// the record's key. Acquires succeed.
fn stranger(node: MemoryNode) -> Wrap {
    Wrap::new(node, |node, batch, deadline| async move {
        let ours: Vec<bool> = batch.ops.iter().map(|op| matches!(op, Op::Acquire { .. })).collect();
        let mut replies = node.call(batch, deadline).await;
        for (reply, _) in replies.items.iter_mut().zip(ours).filter(|(_, ours)| !ours) {
            *reply = Err(NodeError::not_executed(NodeFault::Server, "WRONGTYPE"));
        }
        replies
    })
}

/// Returns the fault odds of a bad network: a tenth of the requests and a tenth of the replies are
/// lost. Many others are delayed or duplicated.
pub fn bad() -> Odds {
    Odds {
        lose_request: 0.1,
        lose_reply: 0.1,
        duplicate: 0.1,
        delay: 0.5,
        max_delay: Duration::from_millis(300),
        ..Odds::default()
    }
}
