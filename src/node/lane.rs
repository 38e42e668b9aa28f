//! The lane: one queue per node, and as many batches in flight as the node keeps in order (group
//! commit).
//!
//! If nothing is in flight a request leaves at once; what arrives meanwhile leaves together as the
//! next batch. A node that keeps order takes further batches while it works on the first, so that
//! neither side waits for the other. A release never overtakes its own acquire.
//! The lane also
//! - drops requests whose deadline passed before they were sent (certainly not executed);
//! - keeps *owed* releases: a release that got no answer is repeated until the node answered (and
//!   once more a moment later, for a request that was frozen in an old connection), or until the
//!   ttl has ended whatever it should have deleted;
//! - holds a yes back until as many replicas have it as its asker wants (§5.6); others go on;
//! - watches the facts of each batch: clock steps, new generations, two nodes on one server (§6).

mod gather;
mod pace;
mod sink;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt as _, poll};
use tokio::sync::{broadcast, mpsc};

use self::gather::Gather;
use self::pace::{BATCH_MAX, Pace};
use self::sink::Asker;
pub(crate) use self::sink::Sink;
use crate::durability::{BarrierPoint, Durability};
use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::node::barrier::{confirm, must_last};
use crate::node::probe::Probe;
use crate::node::tally::{Count, NodeMetrics, Tally};
use crate::node::{BoxFuture, LockNode, NodeEvent};
use crate::op::{Batch, Facts, Holder, Op, Replies, Reply, Terms};
use crate::receipt::{Server, Written};
use crate::time::{Drift, Moment};

/// How much longer than its deadline a node's own answer is awaited before the lane gives up on it.
const GRACE: Duration = Duration::from_millis(250);
/// First and longest pause between tries of owed releases.
const OWED_WAIT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

struct Job {
    op: Op,
    deadline: Moment,
    asker: Asker,
}

/// Which server process answers for which node of one handle.
pub(crate) type Identities = Arc<Mutex<BTreeMap<usize, Arc<str>>>>;

/// Who is told which server a node says it is.
pub(crate) trait Witness: Send + Sync {
    /// Before the answers of a batch are handed out.
    fn hear(&self, node: usize, server: Server);

    /// Answers of this server were handed out, and it may have been replaced before.
    fn late(&self, node: usize, server: Server);
}

/// What the lanes of one handle share.
#[derive(Clone)]
pub(crate) struct LaneSettings {
    pub(crate) env: Arc<dyn Env>,
    /// How many nodes vote.
    pub(crate) nodes: usize,
    pub(crate) terms: Terms,
    pub(crate) drift: Drift,
    pub(crate) ttl: Duration,
    pub(crate) node_deadline: Duration,
    pub(crate) identities: Identities,
    /// What is told about the nodes, by name.
    pub(crate) events: broadcast::Sender<(Arc<str>, NodeEvent)>,
    pub(crate) witness: Arc<dyn Witness>,
}

/// The way to one node. Its task is started with the first request and ends with the lane.
pub(crate) struct Lane {
    node: Arc<dyn LockNode>,
    index: usize,
    settings: LaneSettings,
    tally: Arc<Tally>,
    queue: Mutex<Option<mpsc::UnboundedSender<Job>>>,
}

impl Lane {
    pub(crate) fn new(node: Arc<dyn LockNode>, index: usize, settings: LaneSettings) -> Self {
        Self { node, index, settings, tally: Arc::default(), queue: Mutex::new(None) }
    }

    pub(crate) fn node(&self) -> &Arc<dyn LockNode> {
        &self.node
    }

    /// What this lane has counted.
    pub(crate) fn metrics(&self) -> NodeMetrics {
        self.tally.snapshot(self.node.name())
    }

    /// Queues a request. Never blocks; the answer, also the refusal to send, goes to the sink.
    pub(crate) fn submit(&self, op: Op, deadline: Moment, sink: Sink) {
        let job = Job { op, deadline, asker: Asker::new(sink) };
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let job = match queue.as_ref() {
            Some(open) => match open.send(job) {
                Ok(()) => return,
                Err(rejected) => rejected.0,
            },
            None => job,
        };
        // First use, or the runtime of the earlier task is gone: start one where we are.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            let now = self.settings.env.now();
            return refuse(job, NodeFault::Closed, "no tokio runtime here", now);
        };
        let (tx, rx) = mpsc::unbounded_channel();
        let worker = Worker {
            node: Arc::clone(&self.node),
            index: self.index,
            probe: Probe::new(self.index, self.node.name(), &self.settings, &self.tally),
            settings: self.settings.clone(),
            tally: Arc::clone(&self.tally),
            rx,
            owed: Vec::new(),
            owed_at: None,
            owed_wait: OWED_WAIT.0,
            in_touch: false,
            pace: Pace::new(self.settings.nodes),
        };
        self.settings.env.spawn(&runtime, Box::pin(worker.run()));
        let _ = tx.send(job);
        *queue = Some(tx);
    }
}

fn refuse(job: Job, fault: NodeFault, detail: &'static str, now: Moment) {
    job.asker.post(Err(NodeError::not_executed(fault, detail)), (now, None));
}

/// A clean-up that the node still owes us an answer to.
struct Owed {
    op: Op,
    until: Moment,
    /// Answered once; repeated once more, for what an old connection may still deliver.
    confirmed: bool,
}

/// Who asked for an op of a batch, and what is owed if no answer comes.
struct Asked {
    asker: Option<Asker>,
    owed: Option<Owed>,
    vote: bool,
    /// Its answer counts as one more node that keeps a result.
    copy: bool,
    /// A sitting holder puts its own back into a node in quarantine.
    reasserts: bool,
}

/// A batch that came back.
struct Answered {
    asked: Vec<Asked>,
    replies: Replies,
    deadline: Moment,
    sent: Moment,
    received: Moment,
}

/// Yeses of one batch that count only at this level.
type Unsure = BTreeMap<Durability, Vec<(Asker, Reply)>>;

struct Worker {
    node: Arc<dyn LockNode>,
    index: usize,
    probe: Probe,
    settings: LaneSettings,
    tally: Arc<Tally>,
    rx: mpsc::UnboundedReceiver<Job>,
    owed: Vec<Owed>,
    owed_at: Option<Moment>,
    owed_wait: Duration,
    /// The node answered the last batch, so its connection stands.
    in_touch: bool,
    pace: Pace,
}

impl Worker {
    async fn run(mut self) {
        let mut under_way = FuturesUnordered::new();
        let mut confirming = FuturesUnordered::new();
        loop {
            let depth = self.pace.depth(&*self.node, self.in_touch);
            let owed_in = self.owed_at.map(|at| at.since(self.settings.env.now()));
            if owed_in == Some(Duration::ZERO) && under_way.len() < depth {
                // Before what is queued: on a busy lane there is always something.
                let call = self.launch_owed();
                confirming.extend(self.begin(call, &mut under_way).await);
                continue;
            }
            tokio::select! {
                biased;
                job = self.rx.recv(), if under_way.len() < depth => match job {
                    Some(job) => {
                        let call = self.launch(job, depth);
                        confirming.extend(self.begin(call, &mut under_way).await);
                    }
                    None => break,
                },
                Some(answered) = under_way.next(), if !under_way.is_empty() => {
                    confirming.extend(self.settle(answered));
                    if self.pace.is_lone() && !under_way.is_empty() {
                        // Who got an answer asks the next thing now, and it leaves before the next
                        // answer is handed out.
                        tokio::task::yield_now().await;
                    }
                }
                Some(()) = confirming.next(), if !confirming.is_empty() => {}
                () = sleep_or_forever(owed_in), if under_way.len() < depth => {}
            }
        }
        // The handle is gone. What is under way is awaited, what is owed tried once more; then the
        // ttl ends it.
        while let Some(answered) = under_way.next().await {
            // With the handle everybody is gone who could want to know what replicas have.
            self.settle(answered);
        }
        if let Some(last) = self.launch_owed() {
            self.settle(last.await);
        }
    }

    /// Puts a call on its way, before answers are handed out or anything else leaves; what its
    /// answer leaves to be confirmed, should that be there already.
    async fn begin(
        &mut self,
        call: Option<BoxFuture<'static, Answered>>,
        under_way: &mut FuturesUnordered<BoxFuture<'static, Answered>>,
    ) -> Vec<BoxFuture<'static, ()>> {
        let Some(mut call) = call else { return Vec::new() };
        match poll!(&mut call) {
            Poll::Ready(answered) => self.settle(answered),
            Poll::Pending => {
                under_way.push(call);
                Vec::new()
            }
        }
    }

    /// Takes what is queued into one batch and sends it.
    fn launch(&mut self, first: Job, depth: usize) -> Option<BoxFuture<'static, Answered>> {
        let now = self.settings.env.now();
        // Never less than a node may take: who asks may want the answer sooner, but a time-out ends
        // the connection that everybody shares.
        let mut deadline = now + self.settings.node_deadline;
        let mut next = Some(first);
        let mut gathered = Gather::default();
        let most = self.pace.most(1 + self.rx.len(), depth);
        while let Some(job) = next {
            if job.deadline > now || job.asker.owed_until().is_some() {
                deadline = deadline.max(job.deadline);
                gathered.take(job.op, job.asker);
            } else {
                let why = "not sent: the lane was busy until the deadline";
                refuse(job, NodeFault::Timeout, why, now);
            }
            next = if gathered.len() < most { self.rx.try_recv().ok() } else { None };
        }
        let (ops, asked) = gathered.finish();
        self.send(ops, asked, deadline)
    }

    /// Sends what is owed again.
    fn launch_owed(&mut self) -> Option<BoxFuture<'static, Answered>> {
        let now = self.settings.env.now();
        self.owed_at = None;
        let mut due: Vec<Owed> = std::mem::take(&mut self.owed);
        due.retain(|o| o.until > now);
        for o in due.split_off(due.len().min(BATCH_MAX)) {
            self.owe(o);
        }
        if due.is_empty() {
            self.owed_wait = OWED_WAIT.0;
        }
        let ops = due.iter().map(|o| o.op.clone()).collect();
        let asked = due.into_iter().map(|o| Asked {
            owed: Some(o),
            vote: false,
            copy: false,
            reasserts: false,
            asker: None,
        });
        self.send(ops, asked.collect(), now + self.settings.node_deadline)
    }

    /// One call of the node; always one reply per op, always by the deadline plus grace.
    fn send(
        &mut self,
        ops: Vec<Op>,
        asked: Vec<Asked>,
        deadline: Moment,
    ) -> Option<BoxFuture<'static, Answered>> {
        if ops.is_empty() {
            return None;
        }
        self.pace.sent(ops.len());
        let (node, env) = (Arc::clone(&self.node), Arc::clone(&self.settings.env));
        let batch = Batch { terms: self.settings.terms, ops };
        Some(Box::pin(async move {
            let sent = env.now();
            let limit = deadline.since(sent) + GRACE;
            let answer = tokio::time::timeout(limit, node.call(batch, deadline)).await;
            let mut replies = answer.unwrap_or_else(|_| {
                let detail = "node overran its deadline";
                let error = NodeError::maybe_executed(NodeFault::Timeout, detail);
                Replies::fail(asked.len(), &error)
            });
            if replies.items.len() != asked.len() {
                let detail = "wrong number of replies";
                let error = NodeError::maybe_executed(NodeFault::Protocol, detail);
                replies = Replies::fail(asked.len(), &error);
            }
            Answered { asked, replies, deadline, sent, received: env.now() }
        }))
    }

    /// Judges the node's facts and hands out the answers, those that count only when replicas have
    /// them by the futures it gives back.
    fn settle(&mut self, answered: Answered) -> Vec<BoxFuture<'static, ()>> {
        let Answered { asked, replies, deadline, sent, received } = answered;
        self.pace.came_back(asked.len());
        let mut unsure = Unsure::new();
        self.in_touch = replies.facts.is_some();
        let address = || self.node.address();
        let objection = replies
            .facts
            .as_ref()
            .and_then(|facts| self.probe.judge(facts, sent, received, &address));
        let mut count = Count::default();
        let max_ttl = self.settings.terms.max_ttl;
        let at = (received, replies.facts.as_ref().map(written));
        // First: what was confirmed before is judged before a new confirmation takes its place.
        if let Some(facts) = &replies.facts {
            self.settings.witness.hear(self.index, server(facts));
        }
        let failed = replies.items.first().is_some_and(Result::is_err);
        self.owed_wait = if failed { (self.owed_wait * 2).min(OWED_WAIT.1) } else { OWED_WAIT.0 };
        for (asked, mut reply) in asked.into_iter().zip(replies.items) {
            match (&reply, &objection) {
                // The node did what it was asked, but its word does not count as a vote (§6).
                (Ok(_), Some(error))
                    if asked.vote || asked.copy && error.fault() == NodeFault::SameServer =>
                {
                    reply = Err(error.clone());
                }
                (Ok(Reply::Holder(holder)), None) => {
                    if let Some(remaining) =
                        old_news(holder.as_ref(), replies.facts.as_ref(), max_ttl)
                    {
                        reply = Ok(Reply::Quarantined { remaining, epoch: 0 });
                    }
                }
                _ => {}
            }
            count.reply(&reply, asked.reasserts);
            match (asked.owed, reply.is_ok()) {
                (Some(o), false) => self.owe(Owed { confirmed: false, ..o }),
                // Once more a moment later, for what an old connection may still deliver.
                (Some(o), true) if asked.asker.is_none() && !o.confirmed => {
                    self.owe(Owed { confirmed: true, ..o });
                }
                _ => {}
            }
            if let Some(asker) = asked.asker {
                match (asker.level(), reply) {
                    (Durability::Primary, reply) => asker.post(reply, at),
                    (level, Ok(reply)) if must_last(&reply) => {
                        unsure.entry(level).or_default().push((asker, reply));
                    }
                    (_, reply) => asker.post(reply, at),
                }
            }
        }
        self.probe.reasserted(count.reassertions());
        self.tally.add(count);
        if let Some(facts) = &replies.facts {
            self.settings.witness.late(self.index, server(facts));
        }
        let after = replies.facts.as_ref();
        unsure.into_iter().map(|(level, held)| self.confirm(after, level, deadline, held)).collect()
    }

    /// Hands out yeses when enough replicas have them, or that they have not.
    fn confirm(
        &self,
        replied: Option<&Facts>,
        level: Durability,
        deadline: Moment,
        held: Vec<(Asker, Reply)>,
    ) -> BoxFuture<'static, ()> {
        let (node, env) = (Arc::clone(&self.node), Arc::clone(&self.settings.env));
        let after = replied.map(|facts| BarrierPoint {
            identity: Arc::clone(&facts.identity),
            generation: facts.generation,
        });
        let written = replied.map(written);
        let (server, witness) = (replied.map(server), Arc::clone(&self.settings.witness));
        let (index, tally) = (self.index, Arc::clone(&self.tally));
        Box::pin(async move {
            let confirmed = confirm(&*node, &*env, after, level, deadline).await;
            tally.waited(confirmed.is_ok());
            let now = env.now();
            for (asker, reply) in held {
                asker.post_kept(reply, confirmed.clone(), (now, written));
            }
            // Not news of the node: it may have become another server meanwhile.
            if let Some(server) = server {
                witness.late(index, server);
            }
        })
    }

    fn owe(&mut self, owed: Owed) {
        let now = self.settings.env.now();
        if now < owed.until {
            self.owed.push(owed);
            self.owed_at.get_or_insert(now + self.owed_wait);
        }
    }
}

fn server(facts: &Facts) -> Server {
    Server { generation: facts.generation, predecessor: facts.predecessor }
}

fn written(facts: &Facts) -> Written {
    Written { generation: facts.generation, offset: facts.offset }
}

/// Whether a node in quarantine may be telling of an earlier life; then the rest of the quarantine.
/// It may have forgotten who holds the name, so "nobody" is no word, and a holder is one only if
/// the key was certainly written since: no lease is longer than `max_ttl`.
fn old_news(holder: Option<&Holder>, facts: Option<&Facts>, max_ttl: Duration) -> Option<Duration> {
    let facts = facts.filter(|f| !f.quarantine.is_zero())?;
    let age = facts.quarantine_len.saturating_sub(facts.quarantine);
    let rest = holder.and_then(|h| h.remaining);
    let written_since = rest.is_some_and(|rest| rest + age >= max_ttl);
    (!written_since).then_some(facts.quarantine)
}

async fn sleep_or_forever(wait: Option<Duration>) {
    match wait {
        Some(d) => tokio::time::sleep(d).await,
        None => std::future::pending().await,
    }
}

/// Forwards a node's hints until the receiver is gone; nothing where some were missed.
pub(crate) async fn forward_hints<T>(
    node: Weak<dyn LockNode>,
    target: Weak<T>,
    deliver: impl Fn(&T, Option<NodeEvent>),
) {
    let Some(mut events) = node.upgrade().map(|n| n.events()) else { return };
    loop {
        let event = match events.recv().await {
            Ok(event) => Some(event),
            // Hints may be lost, the waiters' own timers stand behind them.
            Err(broadcast::error::RecvError::Lagged(_)) => None,
            Err(broadcast::error::RecvError::Closed) => return,
        };
        match target.upgrade() {
            Some(target) => deliver(&target, event),
            None => return,
        }
    }
}
