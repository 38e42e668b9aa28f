//! A node in this process's memory, for tests and embedded use: the reference of every op. It
//! answers at once, and its entries expire by the clock of its [`Env`].

mod builder;
#[cfg(feature = "test-util")]
mod faults;
mod lists;
mod locks;
mod quarantine;
mod records;
mod shelf;
#[cfg(test)]
mod tests;
#[cfg(feature = "test-util")]
mod value;

use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::sync::broadcast;

pub use self::builder::MemoryNodeBuilder;
#[cfg(feature = "test-util")]
pub use self::faults::{MemorySnapshot, SlotKeys};
use self::lists::Lists;
use self::locks::Locks;
use self::quarantine::{Clock, Kept, Nature, Windows};
use self::records::Records;
#[cfg(feature = "test-util")]
pub use self::value::NodeValue;
use super::{BoxFuture, LockNode, NodeSignal};
use crate::durability::{BarrierPoint, Durability};
use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::name::LockKeys;
use crate::node::lineage::{Marker, Process, ReplicationId};
use crate::op::{Ballot, Batch, Claim, Op, Replies, Reply};
use crate::rules::header::Header;
use crate::rules::locks::Wake;
#[cfg(feature = "test-util")]
pub use crate::rules::records::RecordChange;
use crate::sync::SyncMutex;
use crate::time::Moment;

const EVENTS: usize = 1024;

/// A lock server in memory. Cheap to clone; clones refer to the same node, so that several Redlock
/// handles of one process can share their nodes.
///
/// A new node has granted nothing before, so it cannot have forgotten a lease, and grants at once.
/// A memory node has no replicas. So it votes if the durability level is
/// [`Durability::AllReplicas`], because no replica can lack a write, and does not vote if the level
/// is `Replicas(k)`.
///
/// ```
/// use palisade::node::{MemoryNode};
/// use palisade::node::spi::{LockNode};
/// let node = MemoryNode::builder().name("left").build();
/// assert_eq!(&*node.name(), "left");
/// assert!(node.is_empty());
/// ```
#[derive(Clone)]
pub struct MemoryNode(Arc<Shared>);

struct Shared {
    name: Arc<str>,
    env: Arc<dyn Env>,
    events: broadcast::Sender<NodeSignal>,
    state: SyncMutex<State>,
}

#[derive(Clone, Debug)]
struct State {
    /// This node's clocks are ahead of those of its `Env` by this.
    offset: Duration,
    /// All identities and data histories of this node are made from it.
    seed: u64,
    lives: u64,
    windows: Windows,
    epoch: Option<u64>,
    /// The lowest epoch since which all words of a cluster's masters named this server.
    watched: Option<u64>,
    /// When keys of the slot were being moved, in µs.
    disturbed: Option<u64>,
    durable: bool,
    replid: ReplicationId,
    process: Process,
    evicted: u64,
    data: Data,
    /// Each client that remembers nothing counts as one that has seen earlier data: without data,
    /// the node's are lost and not new.
    is_known: bool,
}

#[derive(Clone, Debug, Default)]
struct Data {
    kept: Kept,
    locks: Locks,
    lists: Lists,
    records: Records,
}

impl Default for MemoryNode {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryNode").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl MemoryNode {
    /// Makes a fresh node with a unique name and the machine's clocks.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder for the settings of a new node.
    pub fn builder() -> MemoryNodeBuilder {
        MemoryNodeBuilder::new()
    }

    /// Returns the number of locks, records and lists of candidates in memory. Entries that have
    /// expired count until the node removes them.
    pub fn len(&self) -> usize {
        self.state().data.len()
    }

    /// Returns true if there is no lock, record or list of candidates in memory.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn tell(&self, event: impl Into<NodeSignal>) {
        // Fails only if nobody listens.
        let _ = self.0.events.send(event.into());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    fn clock(&self, state: &State) -> Clock {
        let ahead = u64::try_from(state.offset.as_micros()).unwrap_or(u64::MAX);
        Clock {
            // Never zero, because a `since` of zero marks a node that never lost data.
            now: (self.0.env.now() + state.offset).as_nanos().saturating_add(1),
            micros: self.0.env.wall_micros().saturating_add(ahead),
        }
    }

    fn execute(&self, batch: &Batch) -> Replies {
        let mut state = self.state();
        let clock = self.clock(&state);
        let (replies, hints) = state.execute(clock, self.0.env.random() as u64, batch);
        drop(state);
        for hint in hints {
            self.tell(hint);
        }
        replies
    }
}

impl State {
    fn new(seed: u64, window: Duration) -> Self {
        let mut state = Self {
            offset: Duration::ZERO,
            seed,
            lives: 0,
            windows: Windows { read: window, longest: window },
            epoch: None,
            watched: None,
            disturbed: None,
            durable: false,
            replid: ReplicationId::of(0),
            process: Process::fresh(),
            evicted: 0,
            data: Data::default(),
            is_known: false,
        };
        state.rename();
        state
    }

    /// Begins without a quarantine.
    fn mark(&mut self, (deployment, vote): (u64, u64), name: u64) {
        let born = Marker::born(deployment, vote, name, self.replid);
        self.data.kept.marker = Some(Marker { process: self.process, ..born });
    }

    /// `name` is random, for a data history that begins with this batch.
    fn execute(&mut self, clock: Clock, name: u64, batch: &Batch) -> (Replies, Vec<NodeSignal>) {
        let mut hints = Vec::new();
        let (nature, identity) = (self.nature(name), self.identity());
        let mut batch = batch.clone();
        let remembers = &mut batch.remembers;
        remembers.known_since = remembers.known_since.or(self.is_known.then_some(0));
        let data = &mut self.data;
        let h = match quarantine::open(&mut data.kept, nature, &identity, clock, &batch) {
            Ok(h) => h,
            Err(error) => return (Replies::fail(batch.ops.len(), &error), hints),
        };
        let items = batch
            .ops
            .iter()
            .map(|op| {
                if h.late && !op.is_undo() {
                    return Err(NodeError::past_deadline());
                }
                match op.own_key().filter(|key| data.is_foreign(&h, key)) {
                    Some(key) => Err(NodeError::foreign(key)),
                    None => Ok(data.apply(&h, op, &mut hints)),
                }
            })
            .collect();
        (Replies { facts: Some(h.facts), items }, hints)
    }

    #[cfg(feature = "test-util")]
    fn reborn(&mut self, change: impl FnOnce(&mut Self)) {
        change(self);
        self.lives += 1;
        self.evicted = 0;
        self.rename();
    }

    fn nature(&self, name: u64) -> Nature {
        let Self { replid, process, evicted, windows, epoch, watched, .. } = *self;
        let Self { disturbed, durable, .. } = *self;
        let name = name.wrapping_add(self.lives);
        Nature { replid, process, evicted, windows, epoch, watched, disturbed, durable, name }
    }

    fn rename(&mut self) {
        self.replid = ReplicationId::of(self.seed.wrapping_add(self.lives));
        self.process = Process { run: self.seed.wrapping_add(self.lives), ..Process::fresh() };
    }

    fn identity(&self) -> Arc<str> {
        Arc::from(format!("{:016x}-{}", self.seed, self.lives))
    }
}

impl Data {
    fn len(&self) -> usize {
        self.locks.len() + self.lists.len() + self.records.len()
    }

    fn is_foreign(&mut self, h: &Header, key: &str) -> bool {
        self.locks.is_foreign(key, h.now)
    }

    fn apply(&mut self, h: &Header, op: &Op, hints: &mut Vec<NodeSignal>) -> Reply {
        match op {
            Op::Acquire { keys, .. }
            | Op::Raise { keys, .. }
            | Op::Extend { keys, .. }
            | Op::Release { keys, .. }
            | Op::Inspect { keys, .. } => {
                let (reply, wakes) = self.locks.execute(h, keys, op);
                for (name, wake) in keys.all().zip(wakes) {
                    wake_up(hints, name, wake);
                }
                reply
            }
            Op::Enlist(enlist) => {
                let (reply, tells) = self.lists.enlist(h, enlist);
                hints.extend(tells.then(|| NodeSignal::Changed(Arc::clone(&enlist.key))));
                reply
            }
            Op::Claim(Claim { key, .. })
            | Op::RaiseClaim { key, .. }
            | Op::ExtendClaim { ballot: Ballot { key, .. }, .. }
            | Op::Complete { ballot: Ballot { key, .. }, .. }
            | Op::Steps { ballot: Ballot { key, .. }, .. }
            | Op::Unclaim { key, .. }
            | Op::Lookup { key, .. } => {
                let (reply, wakes) = self.records.execute(h, key, op);
                hints.extend(wakes.then(|| NodeSignal::Changed(Arc::clone(key))));
                reply
            }
        }
    }
}

fn wake_up(hints: &mut Vec<NodeSignal>, keys: &LockKeys, Wake { watchers, waiters, .. }: Wake) {
    let key = || Arc::from(keys.lock());
    hints.extend(waiters.into_iter().map(|waiter| NodeSignal::Turn { key: key(), waiter }));
    hints.extend(watchers.then(|| NodeSignal::Changed(key())));
}

impl LockNode for MemoryNode {
    /// At the first poll, without interruption, so it cannot miss the deadline.
    fn call(&self, batch: Batch, _deadline: Moment) -> BoxFuture<'_, Replies> {
        Box::pin(async move { self.execute(&batch) })
    }

    /// There are no replicas: [`Durability::AllReplicas`] always succeeds, and `Replicas(k)` always
    /// fails.
    fn barrier(
        &self,
        after: BarrierPoint,
        level: Durability,
        _deadline: Moment,
    ) -> BoxFuture<'_, Result<u32, NodeError>> {
        Box::pin(async move {
            let state = self.state();
            let now = (state.identity(), state.replid.digest());
            drop(state);
            let (fault, detail) = if now != (after.identity, after.replication) {
                (NodeFault::NotDurable, "the node was restarted since".to_owned())
            } else if level > Durability::Primary && level != Durability::AllReplicas {
                (NodeFault::Unsupported, format!("a node in memory has no replicas, not {level}"))
            } else {
                return Ok(0);
            };
            Err(NodeError::maybe_executed(fault, detail))
        })
    }

    fn events(&self) -> broadcast::Receiver<NodeSignal> {
        self.0.events.subscribe()
    }

    fn name(&self) -> Arc<str> {
        self.0.name.clone()
    }

    fn server(&self) -> Option<Arc<str>> {
        Some(self.state().identity())
    }
}
