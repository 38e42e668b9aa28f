//! The client side. Only it connects the pure state machines, the nodes and tokio. `acquire`,
//! `claim`, `extend` and `release` make the ops, `round` runs a machine with their answers, and
//! `node_queue` batches what is sent; `lease`, `renewer` and `failover` keep what was won.

use std::fmt;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::{Semaphore, broadcast};
use tokio::task::JoinHandle;

use crate::client::node_counters::VotingGauges;
use crate::client::node_queue::{GRACE, NodeQueue, QueueSettings};
use crate::client::round::Inbox;
use crate::config::Config;
use crate::durability::Durability;
use crate::env::Env;
use crate::error::{Commands, NoQuorum, NodeError, NodeFault, NodeOutcome};
use crate::metrics::Meters;
use crate::name::LockKeys;
use crate::node::{LockNode, NamedEvent, NodeEvent, NodeEvents, NodeMetrics, NodeSignal};
use crate::op::{Holder, LockMode, Op, Place, Remembered, Terms};
use crate::quorum::leader::{Leading, Sight};
use crate::quorum::majority;
use crate::quorum::vote::Deployments;
use crate::sync::SyncMutex;
use crate::time::Moment;
use crate::token::OwnerToken;

pub(crate) mod acquire;
mod barrier;
pub(crate) mod claim;
pub(crate) mod close;
mod extend;
pub(crate) mod failover;
pub(crate) mod fair;
pub(crate) mod health;
pub(crate) mod hints;
mod inspect;
pub(crate) mod lease;
pub(crate) mod local_locks;
mod node_counters;
mod node_monitor;
mod node_queue;
pub(crate) mod outage;
mod proposal;
mod release;
mod renewal_queue;
mod renewer;
pub(crate) mod retry;
mod round;
pub(crate) mod runtime;
#[cfg(test)]
mod tests;
mod ttl_warning;

use close::Closing;
use failover::Failovers;
use hints::{Hints, Line};
use local_locks::LocalLocks;
use outage::Outage;
use proposal::FencesAhead;
use renewer::Renewer;
pub(crate) use renewer::WATCH;
use ttl_warning::TtlWarning;

pub(crate) struct Core {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) config: Config,
    pub(crate) hints: Arc<Hints>,
    pub(crate) renewer: Arc<Renewer>,
    pub(crate) failovers: Arc<Failovers>,
    pub(crate) closing: Closing,
    pub(crate) commands: Commands,
    pub(crate) meters: Meters,
    pub(crate) local_locks: Arc<LocalLocks>,
    pub(crate) fair_lines: Arc<LocalLocks>,
    outage: SyncMutex<Outage>,
    attempt_permits: Semaphore,
    ttl_warning: TtlWarning,
    queues: Vec<NodeQueue>,
    names: Vec<Arc<str>>,
    fences_ahead: SyncMutex<FencesAhead>,
    listeners: SyncMutex<Vec<JoinHandle<()>>>,
    events: broadcast::Sender<NamedEvent>,
    /// For each node, the end of the time in which it cannot decide whether keys without
    /// `created_at` are new, as the last event reported it.
    forgetful: SyncMutex<Vec<Option<Moment>>>,
}

/// A smaller change comes from the loss of data that was reported before.
const FORGETFUL_SLACK: Duration = Duration::from_secs(60);

/// More than a queue of one node has in flight, but it can still send all in time.
const ATTEMPTS_MAX: usize = 1_024;

const EVENTS: usize = 1_024;

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("nodes", &self.names)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(
        nodes: Vec<Arc<dyn LockNode>>,
        config: Config,
        env: Arc<dyn Env>,
        meters: Meters,
        deployment: u64,
    ) -> Self {
        let events = broadcast::Sender::new(EVENTS);
        let names: Vec<_> = nodes.iter().map(|n| n.name()).collect();
        let commands = Commands::new(nodes.iter().map(|n| n.url()), &config.prefix);
        let commands = commands.with_terms(config.max_ttl, config.clock_error);
        let renewer = Arc::<Renewer>::default();
        let failovers = Arc::new(Failovers::new(Arc::clone(&renewer), Arc::clone(&env)));
        let switched = Arc::clone(&failovers);
        let settings = QueueSettings {
            env: Arc::clone(&env),
            terms: Terms { max_ttl: config.max_ttl, clock_error: config.clock_error },
            drift: config.drift,
            ttl: config.ttl,
            node_deadline: config.node_deadline,
            remembers: Remembered::of(deployment),
            events: events.clone(),
            commands: commands.clone(),
            votes: Arc::new(VotingGauges::new(&names)),
            deployments: Arc::new(SyncMutex::new(Deployments::new(names.len()))),
            on_switch: Arc::new(move |part, quarantine| switched.switched(part, quarantine)),
        };
        let queue = |(i, node)| NodeQueue::new(node, i, settings.clone());
        let hints = Arc::new(Hints::new(nodes.len(), env.random() as u64));
        Self {
            env,
            hints,
            renewer,
            failovers,
            closing: Closing::default(),
            commands,
            meters,
            local_locks: Arc::default(),
            fair_lines: Arc::default(),
            outage: SyncMutex::default(),
            attempt_permits: Semaphore::new(ATTEMPTS_MAX),
            ttl_warning: TtlWarning::new(nodes.len()),
            queues: nodes.into_iter().enumerate().map(queue).collect(),
            forgetful: SyncMutex::new(vec![None; names.len()]),
            names,
            config,
            fences_ahead: SyncMutex::default(),
            listeners: SyncMutex::default(),
            events,
        }
    }

    pub(crate) fn events(self: &Arc<Self>) -> NodeEvents {
        let events = self.events.subscribe();
        self.listen();
        NodeEvents::new(events)
    }

    pub(crate) fn metrics(&self) -> Vec<NodeMetrics> {
        self.queues.iter().map(NodeQueue::metrics).collect()
    }

    pub(crate) fn outage(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock()
    }

    pub(crate) fn n(&self) -> usize {
        self.queues.len()
    }

    pub(crate) fn node_deadline(&self, now: Moment) -> Moment {
        now + self.config.node_deadline
    }

    /// The node queue posts an answer or an error before this, unless its task is not polled.
    pub(crate) fn patience(&self) -> Duration {
        self.config.node_deadline + GRACE
    }

    /// In µs: the wall clock or, if larger, one more than the last token of a node for the key
    /// (locks 4).
    pub(crate) fn proposal(&self, key: &str) -> u64 {
        let clock = self.env.wall_micros();
        let ahead = self.fences_ahead.lock();
        ahead.of(key).map_or(clock, |seen| clock.max(seen + 1))
    }

    fn saw(&self, key: &str, fence: Option<u64>, proposal: u64) {
        let Some(fence) = fence else { return };
        let mut ahead = self.fences_ahead.lock();
        if fence <= proposal && ahead.is_empty() {
            // The common case.
            return;
        }
        if fence >= self.env.wall_micros() {
            ahead.saw(key, fence);
        } else {
            ahead.forget(key);
        }
    }

    pub(crate) fn keys_forgotten(&self, nodes: impl Iterator<Item = (usize, Duration)>) {
        let now = self.env.now();
        for (node, remaining) in nodes {
            let until = now + remaining;
            {
                let mut known = self.forgetful.lock();
                // The same loss, measured by another clock or for another retention.
                if known[node].is_some_and(|known| until <= known + FORGETFUL_SLACK) {
                    continue;
                }
                known[node] = Some(until);
            }
            let event = NodeEvent::KeysForgotten { remaining };
            event.log(&self.names[node], &self.commands);
            self.tell(node, event);
        }
    }

    pub(crate) async fn inspect<W: Clone>(
        &self,
        keys: &LockKeys,
        wait: bool,
        read: impl Fn(OwnerToken, &Holder) -> Option<(u64, W)>,
    ) -> Sight<W> {
        let op = Op::Inspect { keys: keys.clone(), wait };
        let decides = |n, by| Leading::new(n, by, read);
        let sight = self.read(op, Durability::Primary, Duration::ZERO, decides).await;
        sight.unwrap_or_else(Sight::NoQuorum)
    }

    pub(crate) fn name(&self, node: usize) -> Arc<str> {
        Arc::clone(&self.names[node])
    }

    pub(crate) fn no_quorum(&self, outcomes: Vec<NodeOutcome>) -> NoQuorum {
        let nodes = self.names.iter().cloned().zip(outcomes).collect();
        let commands = self.commands.clone();
        NoQuorum { of: None, needed: majority(self.n()), nodes, waited: None, commands }
    }

    pub(crate) fn closed(&self) -> Vec<NodeOutcome> {
        vec![NodeOutcome::Failed(handle_closed()); self.n()]
    }

    pub(crate) fn listen(self: &Arc<Self>) {
        let mut listeners = self.listeners.lock();
        listeners.retain(|l| !l.is_finished());
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !listeners.is_empty() {
            return;
        }
        for (i, queue) in self.queues.iter().enumerate() {
            let (node, core) = (Arc::downgrade(queue.node()), Arc::downgrade(self));
            let task = forward_hints(node, core, move |core, event| match event {
                None => core.look_at(i),
                Some(NodeSignal::Changed(key)) => core.hints.changed(i, &key),
                Some(NodeSignal::Turn { key, waiter }) => {
                    if let Some(line) = core.hints.turn(i, &key, waiter) {
                        core.pass_on(i, &key, line, line.mode());
                    }
                }
                Some(NodeSignal::Event(event)) => {
                    if event == NodeEvent::Up {
                        core.look_at(i);
                    }
                    if matches!(event, NodeEvent::LoginFailed { .. }) {
                        core.queues[i].count_failed_login();
                    }
                    core.tell(i, event);
                }
            });
            listeners.push(self.env.spawn(&runtime, Box::pin(task)));
        }
    }

    fn tell(&self, node: usize, event: NodeEvent) {
        let _ = self.events.send(NamedEvent { node: Arc::clone(&self.names[node]), event });
    }

    /// For a lock that a node reserved and no caller waits for any more. A fair caller gives up its
    /// place too (fair 4).
    pub(crate) fn pass_on(self: &Arc<Self>, node: usize, key: &str, line: Line, mode: LockMode) {
        let (owner, meta) = (self.hints.reservation(line), line == Line::Fair);
        let mode = match mode {
            LockMode::Exclusive | LockMode::Shared => LockMode::Exclusive,
            LockMode::Slot(slots) => LockMode::Slot(slots),
        };
        let op = Op::Release { mode, keys: LockKeys::new(key), owner, meta };
        let give = move |core: &Self| {
            let deadline = core.node_deadline(core.env.now());
            core.send(node, op, deadline, &Inbox::new(core.n()));
        };
        if line != Line::Shared {
            return give(self);
        }
        // The name is reserved for the readers of all handles: this release comes when that is over
        // (readers 10).
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let core = Arc::downgrade(self);
        let later = async move {
            tokio::time::sleep(Place::RESERVED_MAX).await;
            if let Some(core) = core.upgrade() {
                give(&core);
            }
        };
        self.env.spawn(&runtime, Box::pin(later));
    }

    fn look_at(&self, node: usize) {
        if !self.renewer.is_empty() {
            self.queues[node].look();
        }
    }
}

/// After missed signals, calls `deliver` with `None`.
async fn forward_hints<T>(
    node: Weak<dyn LockNode>,
    target: Weak<T>,
    deliver: impl Fn(&Arc<T>, Option<NodeSignal>),
) {
    let Some(mut events) = node.upgrade().map(|n| n.events()) else { return };
    loop {
        let event = match events.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(_)) => None,
            Err(broadcast::error::RecvError::Closed) => return,
        };
        match target.upgrade() {
            Some(target) => deliver(&target, event),
            None => return,
        }
    }
}

fn handle_closed() -> NodeError {
    NodeError::not_executed(NodeFault::Closed, "the handle was closed")
}

impl Drop for Core {
    fn drop(&mut self) {
        self.renewer.wake();
        for l in self.listeners.lock().drain(..) {
            l.abort();
        }
    }
}
