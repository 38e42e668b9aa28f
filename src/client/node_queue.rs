//! Queue of a handle's requests to one node. It has as many batches in flight as the node executes
//! in order (group commit).
//!
//! If no batch is in flight, a request is sent at once. Requests that arrive while a batch is in
//! flight are sent together as the next one. A node that executes its batches in order is sent
//! further batches while it works on the first, so that neither side waits for the other. A release
//! never overtakes its own acquire, because a batch is sent when the node's `call` is made, and
//! takes effect after the batches of earlier calls. The queue's task polls the futures of these
//! calls, and so also drives the connection to a server (`dial/wire.rs`). The queue also
//! - drops requests whose deadline passed before they were sent, so that they were certainly not
//!   executed;
//! - sends with each batch the time, by the node's own clock, until which it may take effect, so
//!   that a frozen server that has received a batch does not execute it when it resumes. To know
//!   that clock, an idle queue asks for the node's time every two seconds;
//! - keeps *owed* releases (`pending_releases`): a release is repeated until the node has answered
//!   it at a time at which no unanswered request of the same owner can take effect any more;
//! - sends an op again if the node put it off (`Deferred`) because its answer held enough stored
//!   bytes already, and limits the bytes that one batch asks the node to store;
//! - holds a grant back until as many replicas have it as its caller asked for (durability 1),
//!   without delaying other requests;
//! - watches the facts that the node reports with each batch: steps of its clock, new data
//!   histories, and two nodes on one server (clocks 4, quarantine 7, overview 8).

mod alarm;
mod incoming;
mod order;
mod pace;
pub(crate) mod pending;
mod pending_releases;
mod replies;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::Either;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, broadcast, mpsc};
use tokio::time::timeout;

use self::alarm::Alarm;
use self::incoming::{Incoming, Queues};
use self::order::BatchOrder;
use self::pace::Pace;
use self::pending::Load;
pub(crate) use self::pending::Pending;
use self::pending_releases::{InDoubt, PendingReleases};
use crate::client::node_counters::Counters;
use crate::client::node_monitor::NodeMonitor;
use crate::client::reply_collector::Origin;
use crate::client::voting_gauges::VotingGauges;
use crate::durability::Durability;
use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::metrics::NodeMetrics;
use crate::node::{LockNode, NamedEvent};
use crate::op::{Batch, Loss, NotAfter, QuarantineId, Replies, Reply, Terms, TimedFacts};
use crate::quorum::holdings::Quarantine;
use crate::time::{Drift, Moment, NodeClock};

/// Time after a request's deadline for which a node's answer is still awaited.
pub(crate) const GRACE: Duration = Duration::from_millis(250);
/// Interval at which an idle queue sends a batch without ops, in order to read the node's clock and
/// to see if the node is still the same server. Such a batch also makes the server store its clock
/// in the marker key, which limits what counts as lost after a crash (quarantine 13).
const HEARTBEAT: Duration = Duration::from_secs(2);

/// Most requests that wait to be sent in one channel of the queue. Releases and unclaims have the
/// same number of places again.
const QUEUE_MAX: usize = 100_000;
/// Most batches with grants that wait for the confirmation of replicas. At this limit no new
/// request is taken from the queue.
const CONFIRMING_MAX: usize = 1_024;
/// Most bytes that one batch asks the node to store; an op with more bytes is sent alone. The limit
/// bounds how long other requests wait. It is the same as the node's limit for the results that one
/// answer shows (`Reply::Deferred`).
const BYTES_MAX: usize = 1 << 20;
/// Most ops in one batch, which bounds how long one script may occupy a server.
const BATCH_MAX: usize = 128;
/// Most batches in flight. With several the next batch has arrived at the server when the server
/// finishes the first.
const DEPTH: usize = 4;
/// Most ops in one batch that the node had put off before (`Deferred`), so that other requests need
/// not wait until all large results have been shown.
const AGAIN_MAX: usize = 16;

/// Called with a node's number and its new quarantine when the node turns out to serve other data
/// than before (it failed over, or was restarted). Callers receive the answers of the batch that
/// revealed the change after this call.
pub(crate) type OnSwitch = dyn Fn(usize, Quarantine) + Send + Sync;

/// Settings that the queues of one handle share.
#[derive(Clone)]
pub(crate) struct QueueSettings {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) terms: Terms,
    pub(crate) drift: Drift,
    pub(crate) ttl: Duration,
    pub(crate) node_deadline: Duration,
    /// Sender of the nodes' events to the handle's subscribers.
    pub(crate) events: broadcast::Sender<NamedEvent>,
    pub(crate) on_switch: Arc<OnSwitch>,
    pub(crate) votes: Arc<VotingGauges>,
}

/// Queue of requests to one node. Its task starts with the first request, and ends when the queue
/// is dropped.
pub(crate) struct NodeQueue {
    node: Arc<dyn LockNode>,
    index: usize,
    settings: QueueSettings,
    counters: Arc<Counters>,
    load: Arc<Load>,
    look: Arc<Notify>,
    queues: Mutex<Option<Queues>>,
}

impl NodeQueue {
    pub(crate) fn new(node: Arc<dyn LockNode>, index: usize, settings: QueueSettings) -> Self {
        let counters = Arc::new(Counters::new(node.name()));
        let (load, look, queues) = (Arc::default(), Arc::default(), Mutex::default());
        Self { node, index, settings, counters, load, look, queues }
    }

    pub(crate) fn node(&self) -> &Arc<dyn LockNode> {
        &self.node
    }

    /// Returns the numbers of unanswered requests and unconfirmed releases of this queue.
    pub(crate) fn load(&self) -> &Load {
        &self.load
    }

    /// Returns the counters of this queue.
    pub(crate) fn metrics(&self) -> NodeMetrics {
        self.counters.snapshot()
    }

    /// Returns the ranges of writes that the node may have lost, as of its last answer.
    pub(crate) fn losses(&self) -> Arc<[Loss]> {
        self.counters.losses()
    }

    /// Makes the queue's task ask the node for its facts (clock, identity, data history), unless a
    /// batch is in flight, because each answer contains them.
    pub(crate) fn look(&self) {
        self.look.notify_one();
    }

    /// Queues a request, and never blocks. The request's collector receives the answer, which may
    /// be that the request was refused and not sent.
    pub(crate) fn submit(&self, mut pending: Pending) {
        pending.count(&self.load);
        let full = || format!("{QUEUE_MAX} requests wait already");
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = match queues.as_ref().map(|queues| queues.of(&pending.op)) {
            // An undo operation is accepted as long as there is any place in the channel, because
            // it frees a lock or a claim for others.
            Some(open) if open.capacity() <= QUEUE_MAX && !pending.op.is_undo() => {
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
        // The queue is used for the first time, or the runtime of its earlier task is gone. The
        // task is started on the runtime of this caller.
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
            monitor: NodeMonitor::new(self.node.name(), &self.settings, &self.counters),
            settings: self.settings.clone(),
            counters: Arc::clone(&self.counters),
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
        // This cannot fail, because the new channel is empty.
        let _ = new.of(&pending.op).try_send(pending);
        *queues = Some(new);
    }

    /// Refuses a request as `Busy`, so that the requests before it are answered in time.
    pub(crate) fn refuse_busy(&self, pending: Pending, why: impl Into<Arc<str>>) {
        self.counters.count_refused(NodeFault::Busy);
        refuse(pending, NodeFault::Busy, why, self.settings.env.now());
    }
}

fn refuse(pending: Pending, fault: NodeFault, detail: impl Into<Arc<str>>, now: Moment) {
    pending.answer(Err(NodeError::not_executed(fault, detail)), &Origin::local(now));
}

/// A batch that was sent, with the node's answer to it.
struct Answered {
    requests: Vec<Pending>,
    /// Facts that the node reported in answer to an empty batch, which was sent first because the
    /// node's clock was not known; otherwise `None`.
    greeting: Option<TimedFacts>,
    replies: Replies,
    deadline: Moment,
    /// Time until which the batch could take effect, in µs by the node's clock.
    not_after: u64,
    sent: Moment,
    received: Moment,
}

/// Grants of one batch that count only once replicas have them, by the durability level that they
/// need.
type Unconfirmed = BTreeMap<Durability, Vec<(Pending, Reply)>>;

struct Worker {
    node: Arc<dyn LockNode>,
    index: usize,
    monitor: NodeMonitor,
    settings: QueueSettings,
    counters: Arc<Counters>,
    /// Notified when the task should ask the node for its facts (clock, identity, data history).
    look: Arc<Notify>,
    incoming: Incoming,
    /// Requests that were taken from the queue once and go into a later batch, before the requests
    /// that are still queued.
    again: VecDeque<Pending>,
    owed: PendingReleases,
    in_doubt: InDoubt,
    /// Clock of the server that answered last, as it was read then, and the identity of that
    /// server.
    clock: Option<(NodeClock, Arc<str>)>,
    /// True once the node has reported which server it is connected to.
    names_server: bool,
    /// Data history that the node reported in its last answer.
    history: Option<QuarantineId>,
    pace: Pace,
    /// Time at which the last batch was sent.
    spoke: Moment,
    /// True if the node answered the last batch, so that its connection works.
    in_touch: bool,
}

impl Worker {
    async fn run(mut self) {
        let (node, env) = (Arc::clone(&self.node), Arc::clone(&self.settings.env));
        let (node, env) = (&*node, &*env);
        let look = Arc::clone(&self.look);
        let mut looks = false;
        let mut under_way = FuturesUnordered::new();
        let mut confirming = FuturesUnordered::new();
        let mut alarm = Alarm::new();
        // `last` is the number of ops in the last batch. `yielded` is true if other tasks have just
        // been let run, so that they are not let run twice before a batch.
        let (mut last, mut yielded) = (0, false);
        loop {
            let now = env.now();
            // The first facts make the clock known, so they are taken only while no batch is in
            // flight. A batch in flight may still be asking for the clock before it sends its ops,
            // and the next batch would overtake it.
            let mut known = self.known_clock(now).is_some();
            if (looks || !known) && under_way.is_empty() && self.take_first_facts() {
                looks = false;
                known = self.known_clock(now).is_some();
            }
            // Without a known clock, a batch first asks for the clock and then sends its ops. Two
            // such batches could overtake each other, so only one may be in flight.
            let depth = if known { self.node.depth().clamp(1, DEPTH) } else { 1 };
            let room = under_way.len() < depth;
            let open = room && confirming.len() < CONFIRMING_MAX;
            // Owed releases are sent before the queued requests, because the queue of a busy node
            // is never empty.
            let mut next = if room { self.owed_batch(now) } else { None };
            // If several callers were answered just now, they run first, so that their next
            // requests leave in the same batch. This holds up neither a caller that is alone nor an
            // extension.
            let crowded = last > 1 || !under_way.is_empty();
            let waits = self.incoming.len() > 0 && !self.incoming.has_extension();
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
            let beat = self.spoke + HEARTBEAT;
            looks &= under_way.is_empty();
            if next.is_none() && under_way.is_empty() && (looks || beat <= now) {
                next = Some((Vec::new(), now + self.settings.node_deadline));
            }
            if let Some((batch, deadline)) = next {
                last = batch.len();
                under_way.push(self.send(batch, deadline, node, env));
                continue;
            }
            let owed = self.owed.due().filter(|_| room);
            let beat = Some(beat).filter(|_| under_way.is_empty());
            alarm.set_for(owed.into_iter().chain(beat).min(), now);
            tokio::select! {
                biased;
                more = self.incoming.wait(), if open => if !more { break },
                Some(answered) = under_way.next() => confirming.extend(self.settle(answered)),
                Some(()) = confirming.next() => {}
                () = look.notified(), if under_way.is_empty() => looks = true,
                () = &mut alarm => {}
            }
        }
        // The handle is gone. The batches in flight are awaited, and owed releases are sent once
        // more. What then remains on the node ends by its ttl.
        while let Some(answered) = under_way.next().await {
            // `settle` returns waits for replicas. They are dropped, because the callers that could
            // wait for a durability level are gone with the handle.
            self.settle(answered);
        }
        if let Some((last, deadline)) = self.owed_batch(env.now()) {
            let answered = self.send(last, deadline, node, env).await;
            self.settle(answered);
        }
    }

    /// Takes in the facts that the node's connection received when it was opened. Returns false if
    /// there are none, so that a batch has to ask for them.
    fn take_first_facts(&mut self) -> bool {
        let Some(first) = self.node.first_facts() else { return false };
        self.observe(&first);
        self.in_touch = true;
        true
    }

    /// Takes the next batch out of the queue, which has at most `most` requests, and returns it
    /// with its deadline.
    fn next_batch(&mut self, now: Moment, most: usize) -> Option<(Vec<Pending>, Moment)> {
        // The deadline is at least `node_deadline` away, even if a caller wants its answer sooner:
        // a time-out ends the connection, which all callers share.
        let mut deadline = now + self.settings.node_deadline;
        let mut again = self.again.len().min(AGAIN_MAX);
        let waiting = again + self.incoming.len();
        let (mut gathered, mut bytes) = (BatchOrder::for_up_to(waiting.min(most)), 0);
        while gathered.len() < most {
            let next = if again > 0 {
                again -= 1;
                self.again.pop_front()
            } else {
                self.incoming.next()
            };
            let Some(pending) = next else { break };
            if pending.deadline <= now && !pending.is_owed() {
                let why = "not sent: the queue was busy until the deadline";
                gathered.leave_out(&pending.op);
                refuse(pending, NodeFault::Timeout, why, now);
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

    /// Returns the clock and the identity of the server that a batch would reach now. `None` if the
    /// last batch got no answer, if the server may be another one than the one that answered it, or
    /// if the clock may have drifted by more than a quarter of `node_deadline` since it was read.
    fn known_clock(&self, now: Moment) -> Option<&(NodeClock, Arc<str>)> {
        let most = self.settings.node_deadline / 4;
        let (clock, server) = self.clock.as_ref().filter(|_| self.in_touch)?;
        let drifted = self.settings.drift.of(now.since(clock.read));
        // If the node named its server before and names none now, it has no connection, and its
        // next connection may lead to another server.
        let same = || self.node.server().map_or(!self.names_server, |now| now == *server);
        self.clock.as_ref().filter(|_| drifted <= most && same())
    }

    /// Takes the owed releases that are due, and returns them with the deadline of their batch.
    fn owed_batch(&mut self, now: Moment) -> Option<(Vec<Pending>, Moment)> {
        let due = self.owed.take(now, BATCH_MAX);
        (!due.is_empty()).then_some((due, now + self.settings.node_deadline))
    }

    /// Sends one batch; if the node's clock is not known, it asks for the clock first. The answer
    /// has one reply per op, and is there by the deadline plus `GRACE`.
    fn send<'n>(
        &mut self,
        requests: Vec<Pending>,
        deadline: Moment,
        node: &'n dyn LockNode,
        env: &'n dyn Env,
    ) -> impl Future<Output = Answered> + use<'n> {
        let (terms, drift) = (self.settings.terms, self.settings.drift);
        let known_since = self.monitor.known_since();
        let sent = env.now();
        self.spoke = sent;
        let ops: Vec<_> = requests.iter().map(|pending| pending.op.clone()).collect();
        // If the connection is lost, the clock counts as not known until this batch is answered,
        // even if the node reconnects in the meantime. Otherwise the next batch could overtake this
        // one, which first asks for the clock.
        self.in_touch &= !self.names_server || self.node.server().is_some();
        let by = move |(clock, server): &(NodeClock, Arc<str>)| NotAfter {
            server: Arc::clone(server),
            micros: clock.at(deadline, drift),
        };
        let known = self.known_clock(sent).map(by);
        let call = move |ops, by| {
            node.call(Batch { terms, not_after: Some(by), known_since, ops }, deadline)
        };
        let greets = known.is_none() && !ops.is_empty();
        // A node whose clock could not be read gets the batch all the same. The answer shows what
        // is wrong with the node, and releases and unclaims are executed at any time.
        let mut not_after = known.unwrap_or_else(NotAfter::over);
        let begun =
            if greets { Either::Right(ops) } else { Either::Left(call(ops, not_after.clone())) };
        async move {
            let mut greeting = None;
            let answer = timeout(deadline.since(sent) + GRACE, async {
                match begun {
                    Either::Left(begun) => begun.await,
                    Either::Right(ops) => {
                        greeting = greet(node, env, (terms, known_since), deadline).await;
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

/// Lets all tasks run first that can run now: this task wakes itself at once and is queued behind
/// them. `tokio::task::yield_now` would also wait until the IO driver of the runtime has had its
/// turn on this thread.
async fn let_others_run() {
    let mut woken = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut woken, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Asks a node whose clock is not known for its facts, with a batch without ops.
async fn greet(
    node: &dyn LockNode,
    env: &dyn Env,
    (terms, known_since): (Terms, Option<u64>),
    deadline: Moment,
) -> Option<TimedFacts> {
    let sent = env.now();
    let nothing = Batch { terms, not_after: None, known_since, ops: Vec::new() };
    let facts = node.call(nothing, deadline).await.facts?;
    Some(TimedFacts { facts, sent, received: env.now() })
}
