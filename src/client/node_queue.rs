//! Queue of a handle's requests to one node, with group commit: requests that wait are sent as one
//! batch. Its task polls the calls of `LockNode::call`, which also drives the connection.
//! - A release never overtakes the acquire of the same lock.
//! - A request that was not sent before its deadline is certainly not executed.
//! - Each batch has a time by the node's clock after which it has no effect, so a server that was
//!   frozen executes no old batch. An idle queue asks for that clock every two seconds.
//! - An *owed* release is repeated until the node answers it at a time when no unanswered request
//!   of the same owner can still take effect.

mod alarm;
mod in_flight;
mod order;
mod pace;
pub(crate) mod pending;
mod pending_releases;
mod replies;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::Either;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, broadcast, mpsc};
use tokio::time::timeout;

use self::alarm::Alarm;
use self::in_flight::{Answered, first_of};
use self::order::BatchOrder;
use self::pace::{Pace, let_others_run};
pub(crate) use self::pending::Pending;
use self::pending::{Incoming, Load, Queues};
use self::pending_releases::{InDoubt, PendingReleases};
use crate::client::node_counters::{Counters, VotingGauges};
use crate::client::node_monitor::NodeMonitor;
use crate::client::round::Origin;
use crate::durability::Durability;
use crate::env::Env;
use crate::error::{Commands, NodeError, NodeFault};
use crate::metrics::NodeMetrics;
use crate::node::{LockNode, NamedEvent};
use crate::op::{
    Batch, Loss, NotAfter, QuarantineId, Remembered, Replies, Reply, Terms, TimedFacts,
};
use crate::quorum::grant::Quarantine;
use crate::quorum::vote::Deployments;
use crate::sync::SyncMutex;
use crate::time::{Drift, Moment, NodeClock};

pub(crate) const GRACE: Duration = Duration::from_millis(250);
/// Empty batches read the node's clock and make it renew its note (quarantine 13).
const HEARTBEAT: Duration = Duration::from_secs(2);
/// A part of a node that nobody has used for so long gets none (cluster 5).
const PART_IDLE: Duration = Duration::from_secs(60);

/// In one channel. There are as many places for undo operations in addition.
const QUEUE_MAX: usize = 100_000;
const CONFIRMING_MAX: usize = 1_024;
/// An op with more bytes is sent alone. The node limits its answers alike (`Reply::Deferred`).
const BYTES_MAX: usize = 1 << 20;
/// Bounds the time for which one script occupies a server.
const BATCH_MAX: usize = 128;
const DEPTH: usize = 4;
const AGAIN_MAX: usize = 16;

/// Called before the callers receive the answer that shows the new data history.
pub(crate) type OnSwitch = dyn Fn((usize, Option<u16>), Quarantine) + Send + Sync;

#[derive(Clone)]
pub(crate) struct QueueSettings {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) terms: Terms,
    pub(crate) drift: Drift,
    pub(crate) ttl: Duration,
    pub(crate) node_deadline: Duration,
    pub(crate) remembers: Remembered,
    pub(crate) events: broadcast::Sender<NamedEvent>,
    pub(crate) commands: Commands,
    pub(crate) on_switch: Arc<OnSwitch>,
    pub(crate) votes: Arc<VotingGauges>,
    pub(crate) deployments: Arc<SyncMutex<Deployments>>,
}

/// The task starts with the first request, and ends when this is dropped.
pub(crate) struct NodeQueue {
    node: Arc<dyn LockNode>,
    index: usize,
    settings: QueueSettings,
    counters: Arc<Counters>,
    load: Arc<Load>,
    look: Arc<Notify>,
    remembers: Arc<SyncMutex<Remembered>>,
    queues: Arc<SyncMutex<Option<Queues>>>,
    /// Set in the queue of a part.
    part: Option<u16>,
    parts: SyncMutex<BTreeMap<u16, Arc<NodeQueue>>>,
}

impl NodeQueue {
    pub(crate) fn new(node: Arc<dyn LockNode>, index: usize, settings: QueueSettings) -> Self {
        let counters = Arc::new(Counters::new(node.name()));
        let (load, look, queues) = (Arc::default(), Arc::default(), Arc::default());
        let remembers = Arc::new(SyncMutex::new(settings.remembers));
        let (part, parts) = (None, SyncMutex::default());
        Self { node, index, settings, counters, load, look, remembers, queues, part, parts }
    }

    /// Of one of the node's parts, which are counted together.
    fn of_part(&self, part: u16) -> Arc<Self> {
        let new = || {
            let node = self.node.part(part).unwrap_or_else(|| Arc::clone(&self.node));
            let (counters, load) = (Arc::clone(&self.counters), Arc::clone(&self.load));
            let whole = Self::new(node, self.index, self.settings.clone());
            Arc::new(Self { counters, load, part: Some(part), ..whole })
        };
        Arc::clone(self.parts.lock().entry(part).or_insert_with(new))
    }

    pub(crate) fn node(&self) -> &Arc<dyn LockNode> {
        &self.node
    }

    pub(crate) fn load(&self) -> &Load {
        &self.load
    }

    pub(crate) fn metrics(&self) -> NodeMetrics {
        self.counters.snapshot()
    }

    pub(crate) fn losses(&self) -> Arc<[Loss]> {
        self.counters.losses()
    }

    pub(crate) fn durable_refuted(&self) -> bool {
        self.counters.refuted.load(Ordering::Relaxed)
    }

    pub(crate) fn count_failed_login(&self) {
        self.counters.tallies.logins_failed.add(1);
    }

    pub(crate) fn look(&self) {
        self.look.notify_one();
        self.parts.lock().values().for_each(|part| part.look());
    }

    pub(crate) fn submit(&self, pending: Pending) {
        match self.node.part_of(&pending.op) {
            None => self.take(pending),
            Some(Ok(part)) => self.of_part(part).take(pending),
            Some(Err(e)) => pending.answer(Err(e), &Origin::local(self.settings.env.now())),
        }
    }

    fn take(&self, mut pending: Pending) {
        pending.count(&self.load);
        let full = || format!("{QUEUE_MAX} requests wait already");
        let mut queues = self.queues.lock();
        let pending = match queues.as_ref().map(|queues| queues.of(&pending)) {
            // Undo operations free a lock or a claim for others.
            Some(open)
                if !pending.op.is_undo()
                    && (open.capacity() <= QUEUE_MAX
                        || self.part.is_some() && self.load.unanswered() > QUEUE_MAX) =>
            {
                return self.refuse_busy(pending, full());
            }
            Some(open) => match open.try_send(pending) {
                Ok(()) => return,
                Err(mpsc::error::TrySendError::Full(refused)) => {
                    return self.refuse_busy(refused, full());
                }
                Err(mpsc::error::TrySendError::Closed(pending)) => pending,
            },
            None => pending,
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            let now = self.settings.env.now();
            return refuse(
                pending,
                NodeFault::Closed,
                "polled outside of a tokio runtime; await it on one with time and IO enabled",
                now,
            );
        };
        let (new, incoming) = Queues::new(2 * QUEUE_MAX);
        let worker = Worker {
            node: Arc::clone(&self.node),
            index: self.index,
            part: self.part,
            queues: Arc::downgrade(&self.queues),
            worked: self.settings.env.now(),
            monitor: NodeMonitor::new(
                self.node.name(),
                &self.settings,
                &self.counters,
                &self.remembers,
            ),
            settings: self.settings.clone(),
            counters: Arc::clone(&self.counters),
            load: Arc::clone(&self.load),
            look: Arc::clone(&self.look),
            incoming,
            again: VecDeque::new(),
            owed: PendingReleases::default(),
            in_doubt: InDoubt::default(),
            clock: None,
            names_server: false,
            history: None,
            pace: Pace::default(),
            spoke: self.settings.env.now(),
            in_touch: false,
        };
        self.settings.env.spawn(&runtime, Box::pin(worker.run()));
        let _ = new.of(&pending).try_send(pending);
        *queues = Some(new);
    }

    pub(crate) fn refuse_busy(&self, pending: Pending, why: impl Into<Arc<str>>) {
        self.counters.count_refused(NodeFault::Busy);
        refuse(pending, NodeFault::Busy, why, self.settings.env.now());
    }
}

fn refuse(pending: Pending, fault: NodeFault, detail: impl Into<Arc<str>>, now: Moment) {
    pending.answer(Err(NodeError::not_executed(fault, detail)), &Origin::local(now));
}

type Unconfirmed = BTreeMap<Durability, Vec<(Pending, Reply)>>;

struct Worker {
    node: Arc<dyn LockNode>,
    index: usize,
    part: Option<u16>,
    queues: Weak<SyncMutex<Option<Queues>>>,
    /// When the last op was sent.
    worked: Moment,
    monitor: NodeMonitor,
    settings: QueueSettings,
    counters: Arc<Counters>,
    load: Arc<Load>,
    look: Arc<Notify>,
    incoming: Incoming,
    /// They go ahead of the queued requests.
    again: VecDeque<Pending>,
    owed: PendingReleases,
    in_doubt: InDoubt,
    clock: Option<(NodeClock, Arc<str>)>,
    names_server: bool,
    history: Option<QuarantineId>,
    pace: Pace,
    spoke: Moment,
    in_touch: bool,
}

impl Worker {
    async fn run(mut self) {
        let (node, env) = (Arc::clone(&self.node), Arc::clone(&self.settings.env));
        let (node, env) = (&*node, &*env);
        let look = Arc::clone(&self.look);
        let mut looks = false;
        let mut under_way = Vec::with_capacity(DEPTH);
        let mut confirming = FuturesUnordered::new();
        let mut alarm = Alarm::new();
        let (mut last, mut yielded) = (0, false);
        loop {
            let now = env.now();
            // The connection's first facts are used only while no batch is in flight: one may still
            // wait for the clock before it sends its ops, and the next would overtake it.
            let mut known = self.known_clock(now).is_some();
            if (looks || !known) && under_way.is_empty() && self.take_first_facts() {
                looks = false;
                known = self.known_clock(now).is_some();
            }
            // Two empty batches that read the clock first could overtake each other.
            let depth = if known { self.node.depth().clamp(1, DEPTH) } else { 1 };
            let room = under_way.len() < depth;
            let open = room && confirming.len() < CONFIRMING_MAX;
            // The queue of a busy node is never empty: owed releases behind it would never leave.
            let mut next = if room { self.owed_batch(now) } else { None };
            // Callers that were answered just now run first, so that their next requests are sent
            // in one batch. A single caller and a renewal are not delayed.
            let crowded = last > 1 || !under_way.is_empty();
            let waits = self.incoming.len() > 0 && !self.incoming.has_renewal();
            if next.is_none() && open && crowded && waits && !yielded {
                yielded = true;
                let_others_run().await;
                continue;
            }
            yielded = false;
            if next.is_none() && open {
                let waiting = self.incoming.len();
                let most = self.pace.most(waiting, under_way.is_empty() && depth > 1);
                next = self.next_batch(now, most.min(BATCH_MAX));
            }
            let is_idle = self.part.is_some() && now > self.worked + PART_IDLE;
            let beat = Some(self.spoke + HEARTBEAT).filter(|_| !is_idle);
            looks &= under_way.is_empty() && !is_idle;
            let is_due = looks || beat.is_some_and(|beat| beat <= now);
            if next.is_none() && under_way.is_empty() && is_due {
                next = Some((Vec::new(), now + self.settings.node_deadline));
            }
            let is_over = next.is_none() && under_way.is_empty() && confirming.is_empty();
            if is_idle && is_over && self.leaves(now) {
                break;
            }
            if let Some((batch, deadline)) = next {
                last = batch.len();
                under_way.push(Box::pin(self.send(batch, deadline, node, env)));
                continue;
            }
            let owed = self.owed.due().filter(|_| room);
            let beat = beat.filter(|_| under_way.is_empty());
            let end = Some(self.end()).filter(|_| is_idle);
            alarm.set_for(owed.into_iter().chain(beat).chain(end).min(), now);
            tokio::select! {
                biased;
                more = self.incoming.wait(), if open => if !more { break },
                answered = first_of(&mut under_way), if !under_way.is_empty() => {
                    confirming.extend(self.settle(answered));
                }
                Some(()) = confirming.next() => {}
                () = look.notified(), if under_way.is_empty() => looks = true,
                () = &mut alarm => {}
            }
        }
        // The handle was dropped: owed releases are sent once more. Other grants end by their ttl.
        while !under_way.is_empty() {
            let answered = first_of(&mut under_way).await;
            self.settle(answered);
        }
        if let Some((last, deadline)) = self.owed_batch(env.now()) {
            let answered = self.send(last, deadline, node, env).await;
            self.settle(answered);
        }
    }

    /// Of the last lease of an idle part that a change of its data could concern.
    fn end(&self) -> Moment {
        self.worked + PART_IDLE + self.settings.terms.max_ttl
    }

    /// The next request starts another task.
    fn leaves(&self, now: Moment) -> bool {
        let has_work =
            self.incoming.len() > 0 || !self.again.is_empty() || self.owed.due().is_some();
        if has_work || now < self.end() {
            return false;
        }
        let Some(queues) = self.queues.upgrade() else { return false };
        let mut queues = queues.lock();
        let leaves = self.incoming.len() == 0;
        if leaves {
            *queues = None;
        }
        leaves
    }

    fn take_first_facts(&mut self) -> bool {
        let Some(first) = self.node.first_facts() else { return false };
        self.observe(&first);
        self.in_touch = true;
        true
    }

    fn next_batch(&mut self, now: Moment, most: usize) -> Option<(Vec<Pending>, Moment)> {
        // A time-out closes the connection, which all callers share.
        let mut deadline = now + self.settings.node_deadline;
        let mut again = self.again.len().min(AGAIN_MAX);
        let waiting = again + self.incoming.len();
        let (mut gathered, mut bytes) = (BatchOrder::for_up_to(waiting.min(most)), 0);
        while gathered.len() < most {
            let is_again = again > 0;
            let next = if is_again {
                again -= 1;
                self.again.pop_front()
            } else {
                self.incoming.next()
            };
            let Some(pending) = next else { break };
            if pending.deadline <= now && !pending.is_owed() {
                // If the last batch was answered, the request waited for requests of this process.
                let (fault, why) = if self.in_touch {
                    (NodeFault::Busy, "not sent: the queue was busy until the deadline")
                } else {
                    (NodeFault::Timeout, "not sent: the requests before it got no answer")
                };
                // An extension may have passed a claim that the node deferred.
                if !is_again {
                    gathered.leave_out(&pending.op);
                }
                refuse(pending, fault, why, now);
                continue;
            }
            bytes += pending.op.payload();
            if bytes > BYTES_MAX && gathered.len() > 0 {
                self.again.push_front(pending);
                break;
            }
            deadline = deadline.max(pending.deadline);
            gathered.take(pending);
        }
        let batch = gathered.finish();
        (!batch.is_empty()).then_some((batch, deadline))
    }

    fn known_clock(&self, now: Moment) -> Option<&(NodeClock, Arc<str>)> {
        let most = self.settings.node_deadline / 4;
        let (clock, server) = self.clock.as_ref().filter(|_| self.in_touch)?;
        let drifted = self.settings.drift.of(now.since(clock.read));
        // A node that named its server and names none now has no connection. The next may reach
        // another server.
        let same = || self.node.server().map_or(!self.names_server, |now| now == *server);
        self.clock.as_ref().filter(|_| drifted <= most && same())
    }

    fn owed_batch(&mut self, now: Moment) -> Option<(Vec<Pending>, Moment)> {
        let due = self.owed.take(now, BATCH_MAX);
        (!due.is_empty()).then_some((due, now + self.settings.node_deadline))
    }

    /// Resolves before the deadline plus `GRACE`, with one reply for each op.
    fn send<'n>(
        &mut self,
        requests: Vec<Pending>,
        deadline: Moment,
        node: &'n dyn LockNode,
        env: &'n dyn Env,
    ) -> impl Future<Output = Answered> + use<'n> {
        let (terms, drift) = (self.settings.terms, self.settings.drift);
        let remembers = self.remembered();
        let sent = env.now();
        self.spoke = sent;
        if !requests.is_empty() {
            self.worked = sent;
        }
        let ops: Vec<_> = requests.iter().map(|pending| pending.op.clone()).collect();
        // Even if the node reconnects earlier: the next batch could overtake this one.
        self.in_touch &= !self.names_server || self.node.server().is_some();
        let by = move |(clock, server): &(NodeClock, Arc<str>)| NotAfter {
            server: Arc::clone(server),
            micros: clock.at(deadline, drift),
        };
        let known = self.known_clock(sent).map(by);
        let call = move |ops, by| {
            node.call(Batch { terms, not_after: Some(by), remembers, ops }, deadline)
        };
        let greets = known.is_none() && !ops.is_empty();
        // Then the node executes only releases and unclaims, and its answer shows its clock's
        // fault.
        let mut not_after = known.unwrap_or_else(NotAfter::over);
        let begun =
            if greets { Either::Right(ops) } else { Either::Left(call(ops, not_after.clone())) };
        async move {
            let mut greeting = None;
            let answer = timeout(deadline.since(sent) + GRACE, async {
                match begun {
                    Either::Left(begun) => begun.await,
                    Either::Right(ops) => {
                        greeting = greet(node, env, (terms, remembers), deadline).await;
                        if let Some(spoken) = &greeting {
                            not_after = by(&spoken.clock());
                        }
                        call(ops, not_after.clone()).await
                    }
                }
            });
            let answer = answer.await;
            let not_after = not_after.micros;
            let mut replies = answer.unwrap_or_else(|_| {
                let detail = "node overran its deadline";
                let error = NodeError::maybe_executed(NodeFault::Timeout, detail);
                Replies::fail(requests.len(), &error)
            });
            if replies.items.len() != requests.len() {
                let detail = "wrong number of replies";
                let error = NodeError::maybe_executed(NodeFault::Protocol, detail);
                replies = Replies::fail(requests.len(), &error);
            }
            let received = env.now();
            Answered { requests, greeting, replies, deadline, not_after, sent, received }
        }
    }
}

async fn greet(
    node: &dyn LockNode,
    env: &dyn Env,
    (terms, remembers): (Terms, Remembered),
    deadline: Moment,
) -> Option<TimedFacts> {
    let sent = env.now();
    let nothing = Batch { terms, not_after: None, remembers, ops: Vec::new() };
    let facts = node.call(nothing, deadline).await.facts?;
    Some(TimedFacts { facts, sent, received: env.now() })
}
