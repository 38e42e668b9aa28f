//! The client side: the code that sends requests to the nodes and renews leases. Only this code
//! connects the pure state machines, the nodes and tokio.
//!
//! Each `Redlock` handle has one [`Core`]. All locks, keys and elections of the handle share the
//! `Core`. The `Core` passes requests (ops) to the node queues, passes replies to the quorum
//! machines (state machines, one for each operation), and cleans up after dropped futures. A
//! majority decides, so no operation waits for the slowest node.
//!
//! These modules handle a request: `acquire`, `claim`, `extend` or `release` makes the op; `round`
//! sends the ops, has their inbox and runs the quorum machine; `node_queue` batches the ops.
//! These modules handle a lease: `lease` has its state; `renewer` renews it before its deadline;
//! `failover` renews it immediately after a failover; `release` and `pending_releases` give back.

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

/// State that a `Redlock` handle and its clones share.
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
    /// For each lock, the fair callers in this process that wait for it (a line), in the order of
    /// their calls. Only the first caller of a line sends requests to the nodes.
    pub(crate) fair_lines: Arc<LocalLocks>,
    outage: SyncMutex<Outage>,
    /// Permits for attempts to acquire a lock. There are `ATTEMPTS_MAX` permits.
    attempt_permits: Semaphore,
    ttl_warning: TtlWarning,
    queues: Vec<NodeQueue>,
    names: Vec<Arc<str>>,
    fences_ahead: SyncMutex<FencesAhead>,
    listeners: SyncMutex<Vec<JoinHandle<()>>>,
    events: broadcast::Sender<NamedEvent>,
    /// For each node, the end of the time in which the node cannot decide, after a loss of data, if
    /// idempotency keys without `created_at` are new, as the last event reported it. `None` if no
    /// event has reported a time.
    forgetful: SyncMutex<Vec<Option<Moment>>>,
}

/// Smallest growth for which another event is sent: the growth of the time in which a node cannot
/// decide if keys are new ([`Core::forgetful`]). A smaller change comes from the loss of data that
/// was reported before.
const FORGETFUL_SLACK: Duration = Duration::from_secs(60);

/// Largest number of attempts to acquire that a `Redlock` handle has under way. It is larger than
/// the number of requests that the queue of one node can have in flight, but the queue can still
/// send all these requests in time. Further attempts wait for a permit, in the order of their
/// calls.
const ATTEMPTS_MAX: usize = 1_024;

/// Largest number of events that wait for a slow subscriber. After that the subscriber misses the
/// oldest events.
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
            on_switch: Arc::new(move |node, quarantine| switched.switched(node, quarantine)),
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

    /// Subscribes to the events of the nodes.
    pub(crate) fn events(self: &Arc<Self>) -> NodeEvents {
        let events = self.events.subscribe();
        self.listen();
        NodeEvents::new(events)
    }

    /// Returns the counters of each node's queue of requests.
    pub(crate) fn metrics(&self) -> Vec<NodeMetrics> {
        self.queues.iter().map(NodeQueue::metrics).collect()
    }

    /// Returns the outage state of the nodes. It is used by locks that may degrade, which means
    /// that a caller may do its work without the lock during an outage.
    pub(crate) fn outage(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock()
    }

    /// Returns the number of nodes of the `Redlock` handle.
    pub(crate) fn n(&self) -> usize {
        self.queues.len()
    }

    /// Returns the deadline of a request that is sent to a node at `now`.
    pub(crate) fn node_deadline(&self, now: Moment) -> Moment {
        now + self.config.node_deadline
    }

    /// Returns the time to wait for a node's answer to a request. The node queue posts an answer or
    /// an error before the end of this time, unless the runtime does not poll the task of the
    /// queue.
    pub(crate) fn patience(&self) -> Duration {
        self.config.node_deadline + GRACE
    }

    /// Returns the fencing token to propose for a key: this machine's wall clock in µs or, if that
    /// is larger, one more than the last token that a node returned for the key
    /// (rule locks 4 in docs/design).
    pub(crate) fn proposal(&self, key: &str) -> u64 {
        let clock = self.env.wall_micros();
        let ahead = self.fences_ahead.lock();
        ahead.of(key).map_or(clock, |seen| clock.max(seen + 1))
    }

    /// Stores `fence`, the largest fencing token in the answers to `proposal`, if `fence` is ahead
    /// of this machine's wall clock. Otherwise removes the stored token of the key, because the
    /// next proposal is the wall clock, which is larger than `fence`.
    fn saw(&self, key: &str, fence: Option<u64>, proposal: u64) {
        let Some(fence) = fence else { return };
        let mut ahead = self.fences_ahead.lock();
        if fence <= proposal && ahead.is_empty() {
            // This is the common case: the proposed fencing token was the wall clock, no node
            // answered with a larger token, and the clock has advanced since.
            return;
        }
        if fence >= self.env.wall_micros() {
            ahead.saw(key, fence);
        } else {
            ahead.forget(key);
        }
    }

    /// Sends an event for each node that cannot decide if idempotency keys without `created_at` are
    /// new, because the node lost data. The event contains the time for which the node cannot
    /// decide. One loss of data is reported once.
    pub(crate) fn keys_forgotten(&self, nodes: impl Iterator<Item = (usize, Duration)>) {
        let now = self.env.now();
        for (node, remaining) in nodes {
            let until = now + remaining;
            {
                let mut known = self.forgetful.lock();
                // `until` is at most a little later than the end that an earlier event reported. So
                // both come from the same loss of data, measured by another clock or for another
                // retention.
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

    /// Reads the holder of a lock or of an election from a majority of nodes. `read` decodes the
    /// holder's metadata. It returns the decoded value and its number, which is larger for newer
    /// metadata.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the nodes keep nothing of the read, except that with `wait` they
    /// keep the registration of this handle for a hint (a wake-up message).
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

    /// Returns the name of the node with this number.
    pub(crate) fn name(&self, node: usize) -> Arc<str> {
        Arc::clone(&self.names[node])
    }

    /// Creates a [`NoQuorum`] error from the outcomes of all nodes, with the nodes' names.
    pub(crate) fn no_quorum(&self, outcomes: Vec<NodeOutcome>) -> NoQuorum {
        let nodes = self.names.iter().cloned().zip(outcomes).collect();
        let commands = self.commands.clone();
        NoQuorum { of: None, needed: majority(self.n()), nodes, waited: None, commands }
    }

    /// Returns, for each node, the outcome of a request to a closed `Redlock` handle. Such a
    /// request is not sent.
    pub(crate) fn closed(&self) -> Vec<NodeOutcome> {
        vec![NodeOutcome::Failed(handle_closed()); self.n()]
    }

    /// Starts to listen to the nodes' signals (wake-up messages and events), unless a task listens
    /// already. Called as soon as a caller waits for a lock or holds a lock.
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
                    core.tell(i, event);
                }
            });
            listeners.push(self.env.spawn(&runtime, Box::pin(task)));
        }
    }

    /// Sends an event of a node to the subscribers.
    fn tell(&self, node: usize, event: NodeEvent) {
        // If no program subscribes to events, the event is dropped, which is no error.
        let _ = self.events.send(NamedEvent { node: Arc::clone(&self.names[node]), event });
    }

    /// Gives back a lock that a node has reserved for this `Redlock` handle, because no caller of
    /// this handle waits for the lock any more. The next handle in the node's queue then gets the
    /// lock. A fair caller also gives up its place (rule fair 4 in docs/design).
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
        // The name is reserved for the readers of all handles. So this release comes when that is
        // over, and wakes the next waiter if no reader came (readers 10).
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

    /// Requests the facts (clock, identity, data history) of a node that may have become another
    /// server. The facts show if the server changed. Does nothing if no lease is held.
    fn look_at(&self, node: usize) {
        if !self.renewer.is_empty() {
            self.queues[node].look();
        }
    }
}

/// Calls `deliver` with each signal (wake-up message or event) of a node, until the node or
/// `target` is dropped. After missed signals, calls `deliver` with `None`.
async fn forward_hints<T>(
    node: Weak<dyn LockNode>,
    target: Weak<T>,
    deliver: impl Fn(&Arc<T>, Option<NodeSignal>),
) {
    let Some(mut events) = node.upgrade().map(|n| n.events()) else { return };
    loop {
        let event = match events.recv().await {
            Ok(event) => Some(event),
            // Signals that this task missed are no error, because each waiter also has a timer.
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
        // The renewer's task wakes up, finds that the `Redlock` handle is dropped, and ends.
        self.renewer.wake();
        for l in self.listeners.lock().drain(..) {
            l.abort();
        }
    }
}
