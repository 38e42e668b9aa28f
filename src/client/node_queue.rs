//! The requests of a handle to one node: a queue, and as many batches in flight as the node keeps
//! in order (group commit).
//!
//! If no batch is in flight, a request is sent at once; requests that arrive in the meantime are
//! sent together as the next batch. A node that keeps order takes further batches while it works on
//! the first, so that neither side waits for the other. A release never overtakes its own acquire:
//! a batch is sent when the node's `call` is made, and takes effect after the batches of earlier
//! calls. The queue's task polls the calls, so it also drives the connection to a server
//! (`dial/wire.rs`). The queue also
//! - drops requests whose deadline passed before they were sent (certainly not executed);
//! - sends with each batch the time until which it may take effect, by the node's own clock: a
//!   batch that was received by a frozen server is not executed when the server resumes. An idle
//!   queue asks for the node's time now and then, so that it knows that clock;
//! - keeps *owed* releases (`pending_releases`): a release is repeated until it is answered at a
//!   time at which no unanswered request can take effect any more;
//! - asks again, in a later batch, for results that a node put off because the batch had shown
//!   enough of them, and lets no batch grow beyond what may be stored at once;
//! - holds a grant back until as many replicas have it as its caller asked for (durability 1),
//!   without delaying other requests;
//! - watches the facts of each batch: clock steps, new histories, two nodes on one server (clocks
//!   4, quarantine 7, overview 8).

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

/// Extra time to wait for a node's answer after the deadline has passed.
pub(crate) const GRACE: Duration = Duration::from_millis(250);
/// Interval at which an idle queue asks the node for its facts: its clock, and its identity, which
/// shows if it is still the same server. The request also renews the note of the server's clock
/// (quarantine 13).
const HEARTBEAT: Duration = Duration::from_secs(2);

/// Most requests that wait to be sent; undo operations have the same number of places again.
const QUEUE_MAX: usize = 100_000;
/// Most batches that wait for replicas to confirm them; at this limit no new request is taken from
/// the queue.
const CONFIRMING_MAX: usize = 1_024;
/// Most bytes that one batch asks the node to store, except that it always takes one op. The limit
/// bounds how long other requests wait, and is the same as the node's limit for the results of one
/// answer (`Reply::Deferred`).
const BYTES_MAX: usize = 1 << 20;
/// Most ops in one batch, which bounds how long one script may occupy a server.
const BATCH_MAX: usize = 128;
/// Most batches under way: the next one has arrived when the server finishes the first.
const DEPTH: usize = 4;
/// Most ops of a batch that were put off before, so that other requests need not wait until all
/// large results are shown.
const AGAIN_MAX: usize = 16;

/// Callback for a node, by number, that has begun another data history, with its quarantine. It is
/// called before the answers of the batch that shows the new history are posted.
pub(crate) type OnSwitch = dyn Fn(usize, Quarantine) + Send + Sync;

/// Settings that the queues of one handle share.
#[derive(Clone)]
pub(crate) struct QueueSettings {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) terms: Terms,
    pub(crate) drift: Drift,
    pub(crate) ttl: Duration,
    pub(crate) node_deadline: Duration,
    /// The events of the nodes, by name.
    pub(crate) events: broadcast::Sender<NamedEvent>,
    pub(crate) on_switch: Arc<OnSwitch>,
    pub(crate) votes: Arc<VotingGauges>,
}

/// Queue of requests to one node. Its task starts with the first request and ends when the queue is
/// dropped.
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

    /// Returns the unfinished work of this queue.
    pub(crate) fn load(&self) -> &Load {
        &self.load
    }

    /// Returns the counters of this queue.
    pub(crate) fn metrics(&self) -> NodeMetrics {
        self.counters.snapshot()
    }

    /// Returns what the node's data may lack, as of its last answer.
    pub(crate) fn losses(&self) -> Arc<[Loss]> {
        self.counters.losses()
    }

    /// Asks the node for its facts, unless a batch is under way: the answer to any batch has them.
    pub(crate) fn look(&self) {
        self.look.notify_one();
    }

    /// Queues a request. Never blocks; the answer, which may be a refusal to send, goes to its
    /// collector.
    pub(crate) fn submit(&self, mut pending: Pending) {
        pending.count(&self.load);
        let full = || format!("{QUEUE_MAX} requests wait already");
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = match queues.as_ref().map(|queues| queues.of(&pending.op)) {
            // An undo operation is let in as long as there is any place: it frees a lock elsewhere.
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
        // First use, or the runtime of the earlier task is gone: the task is started on this
        // runtime.
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
        // Cannot fail: the new queue is empty.
        let _ = new.of(&pending.op).try_send(pending);
        *queues = Some(new);
    }

    /// Refuses a request, so that others are answered in time.
    pub(crate) fn refuse_busy(&self, pending: Pending, why: impl Into<Arc<str>>) {
        self.counters.count_refused(NodeFault::Busy);
        refuse(pending, NodeFault::Busy, why, self.settings.env.now());
    }
}

fn refuse(pending: Pending, fault: NodeFault, detail: impl Into<Arc<str>>, now: Moment) {
    pending.answer(Err(NodeError::not_executed(fault, detail)), &Origin::local(now));
}

/// A batch that was sent, with its answer.
struct Answered {
    requests: Vec<Pending>,
    /// Facts that the node was asked for first, if its clock was not known.
    greeting: Option<TimedFacts>,
    replies: Replies,
    deadline: Moment,
    /// Time until which the batch could take effect, by the node's clock in µs.
    not_after: u64,
    sent: Moment,
    received: Moment,
}

/// Grants of one batch, by the durability level at which they count.
type Unconfirmed = BTreeMap<Durability, Vec<(Pending, Reply)>>;

struct Worker {
    node: Arc<dyn LockNode>,
    index: usize,
    monitor: NodeMonitor,
    settings: QueueSettings,
    counters: Arc<Counters>,
    /// Notified when the node should be asked for its facts.
    look: Arc<Notify>,
    incoming: Incoming,
    /// Requests that were taken from the queue and go into a later batch, before what is queued.
    again: VecDeque<Pending>,
    owed: PendingReleases,
    in_doubt: InDoubt,
    /// Clock of the server that answered last, and the identity of that server.
    clock: Option<(NodeClock, Arc<str>)>,
    /// True once the node has reported which server it is connected to.
    names_server: bool,
    /// Data history in the node's last answer.
    history: Option<QuarantineId>,
    pace: Pace,
    /// Time at which the last batch was sent.
    spoke: Moment,
    /// The node answered the last batch, so its connection works.
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
        // Ops of the last batch; true if the other tasks have run since a request was seen.
        let (mut last, mut yielded) = (0, false);
        loop {
            let now = env.now();
            // A batch under way may still be asking for the clock: another batch would overtake
            // that question.
            let mut known = self.known_clock(now).is_some();
            if (looks || !known) && under_way.is_empty() && self.take_first_facts() {
                looks = false;
                known = self.known_clock(now).is_some();
            }
            // Two batches that both ask for the clock first could overtake each other.
            let depth = if known { self.node.depth().clamp(1, DEPTH) } else { 1 };
            let room = under_way.len() < depth;
            let open = room && confirming.len() < CONFIRMING_MAX;
            // Owed releases are sent before queued requests: a busy queue is never empty.
            let mut next = if room { self.owed_batch(now) } else { None };
            // Callers that were answered just now run first where there are several, so that
            // their next requests leave in the same batch. Neither a caller that is alone nor an
            // extension is held up.
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
        // The handle is gone. Batches under way are awaited and owed releases are sent once more;
        // the ttl ends what then remains.
        while let Some(answered) = under_way.next().await {
            // With the handle all callers are gone that could wait for a durability level.
            self.settle(answered);
        }
        if let Some((last, deadline)) = self.owed_batch(env.now()) {
            let answered = self.send(last, deadline, node, env).await;
            self.settle(answered);
        }
    }

    /// Takes in the facts that the node's connection received when it was opened. Returns false if
    /// there are none: then a batch has to ask for them.
    fn take_first_facts(&mut self) -> bool {
        let Some(first) = self.node.first_facts() else { return false };
        self.observe(&first);
        self.in_touch = true;
        true
    }

    /// Takes the next batch out of the queue, at most `most` requests, and returns it with its
    /// deadline.
    fn next_batch(&mut self, now: Moment, most: usize) -> Option<(Vec<Pending>, Moment)> {
        // At least `node_deadline`: a caller may want the answer sooner, but a time-out ends the
        // connection that all callers share.
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

    /// Returns the clock of the server that a batch would reach now, if it was read so recently
    /// that its possible drift since is small compared with a deadline.
    fn known_clock(&self, now: Moment) -> Option<&(NodeClock, Arc<str>)> {
        let most = self.settings.node_deadline / 4;
        let (clock, server) = self.clock.as_ref().filter(|_| self.in_touch)?;
        let drifted = self.settings.drift.of(now.since(clock.read));
        // If the node reported a server before and reports none now, it has no connection: the next
        // server may be another one.
        let same = || self.node.server().map_or(!self.names_server, |now| now == *server);
        self.clock.as_ref().filter(|_| drifted <= most && same())
    }

    /// Takes the owed releases that are due, and returns them with the deadline of their batch.
    fn owed_batch(&mut self, now: Moment) -> Option<(Vec<Pending>, Moment)> {
        let due = self.owed.take(now, BATCH_MAX);
        (!due.is_empty()).then_some((due, now + self.settings.node_deadline))
    }

    /// Sends one batch, now. The answer has one reply per op and is there by the deadline plus
    /// grace.
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
        // False until this batch is answered, even if the node reconnects meanwhile: the next batch
        // must not overtake one that asks for the clock first.
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
        // A node whose clock is not known gets the batch all the same: to learn its fault, and to
        // run the ops that may be executed at any time.
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

/// Lets the tasks that can run now run first: wakes this task at once, behind them.
/// `tokio::task::yield_now` would wait for a turn of the runtime's driver, on this very thread.
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

/// Asks a node whose clock is not known for its facts.
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
