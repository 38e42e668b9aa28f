//! The lane: one queue and one batch in flight per node (group commit).
//!
//! If nothing is in flight a request leaves at once; what arrives meanwhile leaves together as the
//! next batch. Order is kept, so a release never overtakes its own acquire. The lane also
//! - drops requests whose deadline passed before they were sent (certainly not executed);
//! - keeps *owed* releases: a release that got no answer is repeated until the node answered (and
//!   once more a moment later, for a request that was frozen in an old connection), or until the
//!   ttl has ended whatever it should have deleted;
//! - watches the facts of each batch: clock steps, new generations, two nodes on one server (§6).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::env::Env;
use crate::error::{NodeError, NodeFault};
use crate::node::LockNode;
use crate::node::mailbox::Mailbox;
use crate::node::probe::Probe;
use crate::op::{Batch, Op, Replies, Reply, Terms};
use crate::time::{Drift, Moment};

/// Most ops in one batch: bounds how long one script may occupy a server.
const BATCH_MAX: usize = 128;
/// How much longer than its deadline a node's own answer is awaited before the lane gives up on it.
const GRACE: Duration = Duration::from_millis(250);
/// First and longest pause between tries of owed releases.
const OWED_WAIT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Who wants the answer.
pub(crate) enum Sink {
    /// An attempt that listens, as node number so-and-so.
    Mail(Arc<Mailbox>, usize),
    /// Nobody: a clean-up that is owed until this moment.
    Owed(Moment),
    /// Both: somebody listens, and without an answer the clean-up is owed until this moment.
    MailOwed(Arc<Mailbox>, usize, Moment),
}

impl Sink {
    /// Until when the op is owed although nobody listens any more.
    fn owed_until(&self) -> Option<Moment> {
        match self {
            Self::Mail(..) => None,
            Self::Owed(until) | Self::MailOwed(_, _, until) => Some(*until),
        }
    }

    fn post(self, reply: Result<Reply, NodeError>) {
        match self {
            Self::Mail(mailbox, node) | Self::MailOwed(mailbox, node, _) => {
                mailbox.post(node, reply);
            }
            Self::Owed(_) => {}
        }
    }
}

struct Job {
    op: Op,
    deadline: Moment,
    sink: Sink,
}

/// Which server process answers for which node of one handle.
pub(crate) type Identities = Arc<Mutex<BTreeMap<usize, Arc<str>>>>;

/// What the lanes of one handle share.
#[derive(Clone)]
pub(crate) struct LaneSettings {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) terms: Terms,
    pub(crate) drift: Drift,
    pub(crate) ttl: Duration,
    pub(crate) node_deadline: Duration,
    pub(crate) identities: Identities,
}

/// The way to one node. Its task is started with the first request and ends with the lane.
pub(crate) struct Lane {
    node: Arc<dyn LockNode>,
    index: usize,
    settings: LaneSettings,
    queue: Mutex<Option<mpsc::UnboundedSender<Job>>>,
}

impl Lane {
    pub(crate) fn new(node: Arc<dyn LockNode>, index: usize, settings: LaneSettings) -> Self {
        Self { node, index, settings, queue: Mutex::new(None) }
    }

    pub(crate) fn node(&self) -> &Arc<dyn LockNode> {
        &self.node
    }

    /// Queues a request. Never blocks; the answer, also the refusal to send, goes to the sink.
    pub(crate) fn submit(&self, op: Op, deadline: Moment, sink: Sink) {
        let job = Job { op, deadline, sink };
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
            return refuse(job, NodeFault::Closed, "no tokio runtime here");
        };
        let (tx, rx) = mpsc::unbounded_channel();
        let worker = Worker {
            node: Arc::clone(&self.node),
            probe: Probe::new(self.index, self.node.name(), &self.settings),
            settings: self.settings.clone(),
            rx,
            owed: Vec::new(),
            owed_at: None,
            owed_wait: OWED_WAIT.0,
        };
        self.settings.env.spawn(&runtime, Box::pin(worker.run()));
        let _ = tx.send(job);
        *queue = Some(tx);
    }
}

fn refuse(job: Job, fault: NodeFault, detail: &'static str) {
    job.sink.post(Err(NodeError::not_executed(fault, detail)));
}

/// A clean-up that the node still owes us an answer to.
struct Owed {
    op: Op,
    until: Moment,
    /// Answered once; repeated once more, for what an old connection may still deliver.
    confirmed: bool,
}

struct Worker {
    node: Arc<dyn LockNode>,
    probe: Probe,
    settings: LaneSettings,
    rx: mpsc::UnboundedReceiver<Job>,
    owed: Vec<Owed>,
    owed_at: Option<Moment>,
    owed_wait: Duration,
}

impl Worker {
    async fn run(mut self) {
        loop {
            let owed_in = self.owed_at.map(|at| at.since(self.settings.env.now()));
            let first = tokio::select! {
                biased;
                job = self.rx.recv() => match job {
                    Some(job) => Some(job),
                    // The handle is gone. What is owed is tried once more, then left to the ttl.
                    None => break self.pay().await,
                },
                () = sleep_or_forever(owed_in) => None,
            };
            match first {
                Some(job) => self.turn(job).await,
                None => self.pay().await,
            }
        }
    }

    /// Sends one batch and hands out the answers.
    async fn turn(&mut self, first: Job) {
        let now = self.settings.env.now();
        let mut jobs = Vec::with_capacity(8);
        let mut next = Some(first);
        while let Some(job) = next {
            if job.deadline > now || job.sink.owed_until().is_some() {
                jobs.push(job);
            } else {
                refuse(job, NodeFault::Timeout, "not sent: the lane was busy until the deadline");
            }
            next = if jobs.len() < BATCH_MAX { self.rx.try_recv().ok() } else { None };
        }
        if jobs.is_empty() {
            return;
        }
        let deadline = jobs.iter().map(|j| j.deadline).max().unwrap_or(now);
        let deadline = deadline.max(now + Duration::from_millis(1));
        let (ops, sinks): (Vec<Op>, Vec<Sink>) = jobs.into_iter().map(|j| (j.op, j.sink)).unzip();
        let owed: Vec<Option<Op>> = ops
            .iter()
            .zip(&sinks)
            .map(|(op, sink)| sink.owed_until().map(|_| op.clone()))
            .collect();
        let replies = self.call(ops, deadline).await;
        for ((sink, op), reply) in sinks.into_iter().zip(owed).zip(replies) {
            if let (Err(_), Some(op), Some(until)) = (&reply, op, sink.owed_until()) {
                self.owe(op, until, false);
            }
            sink.post(reply);
        }
    }

    /// Calls the node; always one reply per op, always by the deadline plus grace.
    async fn call(&mut self, ops: Vec<Op>, deadline: Moment) -> Vec<Result<Reply, NodeError>> {
        let kinds: Vec<bool> = ops.iter().map(is_vote).collect();
        let sent = self.settings.env.now();
        let limit = deadline.since(sent) + GRACE;
        let batch = Batch { terms: self.settings.terms, ops };
        let answer = tokio::time::timeout(limit, self.node.call(batch, deadline)).await;
        let mut replies = answer.unwrap_or_else(|_| {
            let error = NodeError::maybe_executed(NodeFault::Timeout, "node overran its deadline");
            Replies::fail(kinds.len(), &error)
        });
        if replies.items.len() != kinds.len() {
            let error = NodeError::maybe_executed(NodeFault::Protocol, "wrong number of replies");
            replies = Replies::fail(kinds.len(), &error);
        }
        let received = self.settings.env.now();
        let objection = match &replies.facts {
            Some(facts) => self.probe.judge(facts, sent, received),
            None => None,
        };
        if let Some(error) = objection {
            // The node did what it was asked, but its word does not count as a vote (§6).
            for (reply, vote) in replies.items.iter_mut().zip(kinds) {
                if vote && reply.is_ok() {
                    *reply = Err(error.clone());
                }
            }
        }
        if let Some(rest) = replies.facts.as_ref().map(|f| f.quarantine).filter(|d| !d.is_zero()) {
            // A node in quarantine may have forgotten who holds the name: its "nobody" is no word.
            for reply in replies.items.iter_mut().filter(|r| **r == Ok(Reply::Holder(None))) {
                *reply = Ok(Reply::Quarantined { remaining: rest, epoch: 0 });
            }
        }
        replies.items
    }

    fn owe(&mut self, op: Op, until: Moment, confirmed: bool) {
        let now = self.settings.env.now();
        if now < until {
            self.owed.push(Owed { op, until, confirmed });
            self.owed_at.get_or_insert(now + self.owed_wait);
        }
    }

    /// Tries what is owed again.
    async fn pay(&mut self) {
        let now = self.settings.env.now();
        self.owed_at = None;
        let mut due: Vec<Owed> = std::mem::take(&mut self.owed);
        due.retain(|o| o.until > now);
        let later = due.split_off(due.len().min(BATCH_MAX));
        if due.is_empty() {
            self.owed_wait = OWED_WAIT.0;
            return;
        }
        let ops = due.iter().map(|o| o.op.clone()).collect();
        let replies = self.call(ops, now + self.settings.node_deadline).await;
        let failed = replies.first().is_some_and(Result::is_err);
        self.owed_wait = if failed { (self.owed_wait * 2).min(OWED_WAIT.1) } else { OWED_WAIT.0 };
        for o in later {
            self.owe(o.op, o.until, o.confirmed);
        }
        for (o, reply) in due.into_iter().zip(replies) {
            match reply {
                Err(_) => self.owe(o.op, o.until, false),
                Ok(_) if !o.confirmed => self.owe(o.op, o.until, true),
                Ok(_) => {}
            }
        }
    }
}

/// Ops whose yes counts as a vote for a holder.
fn is_vote(op: &Op) -> bool {
    matches!(
        op,
        Op::Acquire { .. }
            | Op::Raise { .. }
            | Op::Extend { .. }
            | Op::Claim(_)
            | Op::RaiseClaim { .. }
            | Op::ExtendClaim { .. }
    )
}

async fn sleep_or_forever(wait: Option<Duration>) {
    match wait {
        Some(d) => tokio::time::sleep(d).await,
        None => std::future::pending().await,
    }
}

/// Forwards a node's hints until the receiver is gone.
pub(crate) async fn forward_hints<T>(
    node: Weak<dyn LockNode>,
    target: Weak<T>,
    deliver: impl Fn(&T, crate::node::NodeEvent),
) {
    let Some(mut events) = node.upgrade().map(|n| n.events()) else { return };
    loop {
        match events.recv().await {
            Ok(event) => match target.upgrade() {
                Some(target) => deliver(&target, event),
                None => return,
            },
            // Missed some: hints may be lost, the waiters' own timers stand behind them.
            Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => {}
            Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
        }
    }
}
