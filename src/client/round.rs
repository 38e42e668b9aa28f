//! One round of requests to the nodes: the requests are sent, a [`ReplyCollector`] collects the
//! replies, and a loop runs the quorum machine, which is the state machine of one operation. The
//! loop passes each answer to the machine, sends the machine's requests, and sets the timer.
//!
//! Any number of node queues post replies to a collector. A collector is a single allocation. It
//! has the durability level at which an answer counts; the node queues enforce this level. The
//! collector also records, in [`Servers`], which server answered for which node, and in
//! [`Holdings`], which nodes may have the grant.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::time::{Instant, Sleep};

use crate::client::lease::Lease;
use crate::client::node_queue::Pending;
use crate::client::{Core, handle_closed};
use crate::durability::{Achieved, Durability};
use crate::error::{NodeError, NodeFault, NodeOutcome};
use crate::op::{Op, QuarantineId, Reply};
use crate::quorum::holdings::{Holdings, Known, Quarantine};
use crate::quorum::vote::{Server, Servers};
use crate::quorum::{Answer, Machine, Progress};
use crate::sync::SyncMutex;
use crate::time::Moment;

/// Inputs with which a quorum machine runs, that is, the state machine of one operation. The inputs
/// are the collector of the replies, a timer and limits.
pub(super) struct Round<'a> {
    /// Collector that receives the nodes' answers to this round of requests.
    pub(super) replies: &'a Arc<ReplyCollector>,
    /// The only timer of the operation. The timer belongs to the runtime that polls the operation
    /// (rule overview 7 in docs/design).
    pub(super) timer: Sleep,
    /// Time after which no request of this round of requests may take effect on a node.
    pub(super) until: Moment,
    /// The lease that this round of requests renews; `None` if it renews none. After the end of the
    /// lease no request is sent.
    pub(super) of: Option<&'a Lease>,
}

impl Core {
    /// Sends an op (a request) to one node. The node queue posts the answer to `replies`.
    pub(super) fn send(
        &self,
        node: usize,
        op: Op,
        deadline: Moment,
        replies: &Arc<ReplyCollector>,
    ) {
        self.renewer.keep_running();
        if self.closing.refuses(&op) {
            let origin = Origin::local(self.env.now());
            return replies.post(node, Err(handle_closed()), &origin);
        }
        let is_new = op.is_new_work();
        let request = Pending::new(op, deadline, node, replies);
        if is_new && self.renewer.is_late() {
            let why = "renewals of locks that are held come first, and they are late; \
                       hold fewer locks in one process, or give it more processor time";
            return self.queues[node].refuse_busy(request, why);
        }
        self.queues[node].submit(request);
    }

    /// Sends the same op (request) to all nodes.
    pub(super) fn send_all(&self, op: Op, deadline: Moment, replies: &Arc<ReplyCollector>) {
        let last = self.n() - 1;
        for node in 0..last {
            self.send(node, op.clone(), deadline, replies);
        }
        self.send(last, op, deadline, replies);
    }

    /// Runs a state machine of the module `quorum` until it decides one operation. The first
    /// requests were sent at `now`.
    ///
    /// # Cancellation safety
    /// If the future is dropped, requests that were queued are still sent, and their answers go to
    /// `replies`.
    pub(super) async fn run<M: Machine>(
        &self,
        mut now: Moment,
        machine: &mut M,
        Round { replies, timer, until, of }: Round<'_>,
    ) -> M::Decision {
        tokio::pin!(timer);
        let began = now;
        let mut set = None;
        let mut progress = machine.on_time(now);
        loop {
            let at = match progress {
                Progress::Decided(decision) => return decision,
                Progress::Wait(at) => at,
                Progress::Send(asks, at) => {
                    let deadline = self.node_deadline(now).min(until);
                    let send = |node, op| self.send(node, op, deadline, replies);
                    match of {
                        Some(lease) => drop(lease.send(now, false, asks, send)),
                        None => asks.into_iter().for_each(|(node, op)| send(node, op)),
                    }
                    at
                }
            };
            let mail = poll_fn(|cx| {
                // If an answer of a node has arrived, it is handled before a timer that has fired.
                if let Poll::Ready(mail) = replies.poll_recv(cx) {
                    return Poll::Ready(Some(mail));
                }
                if set != Some(at) {
                    set = Some(at);
                    timer.as_mut().reset(Instant::now() + at.since(now));
                }
                timer.as_mut().poll(cx).map(|()| None)
            });
            let mail = mail.await;
            now = self.env.now();
            progress = if let Some((node, reply)) = mail {
                tracing::debug!(
                    target: "palisade::verb",
                    node = &*self.names[node],
                    took_us = now.since(began).as_micros() as u64,
                    answer = word(&reply),
                    "answer"
                );
                machine.on_reply(now, node, &reply)
            } else {
                set = None;
                machine.on_time(now)
            };
        }
    }
}

/// Returns the kind of an answer as a word for the log, without the contents of the answer.
fn word(answer: &Answer) -> &'static str {
    match answer {
        Ok(reply) if reply.is_grant() => "yes",
        Ok(Reply::Held { .. } | Reply::Queued { .. }) => "held",
        Ok(Reply::Quarantined { .. }) => "quarantined",
        Ok(Reply::NotOwner) => "not_owner",
        Ok(Reply::InFlight { .. }) => "in_flight",
        Ok(Reply::Mismatch) => "mismatch",
        Ok(_) => "read",
        Err(_) => "fault",
    }
}

/// Time of an answer, and the server that answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// Time at which the answer arrived at this process.
    pub(crate) at: Moment,
    /// The node's data history at the time of the answer; `None` if the node did not report it. A
    /// failover, a restart or a loss of data begins another history.
    pub(crate) history: Option<QuarantineId>,
    /// The server that answered; `None` if the answer is not from a server.
    pub(crate) server: Option<Server>,
}

impl Origin {
    /// Creates the origin of an answer that is not from a server, for example of a refusal to send.
    pub(crate) fn local(at: Moment) -> Self {
        Self { at, ..Self::default() }
    }
}

/// Collector of the replies of all nodes to one round of requests.
#[derive(Debug)]
pub(crate) struct ReplyCollector {
    level: Durability,
    /// True if the requests are undo operations (releases or unclaims). Their answers are no votes,
    /// so the answers of two nodes that are the same server are both accepted: the second request
    /// finds nothing to undo.
    takes_back: bool,
    /// Earliest time until which a node keeps a grant that it gives in this round of requests.
    until: Moment,
    /// For a round that renews a grant: the collector of the replies to the grant, and the number
    /// of the renewal.
    grant: Option<(Arc<ReplyCollector>, u64)>,
    state: SyncMutex<State>,
}

#[derive(Debug)]
struct State {
    servers: Servers,
    /// For each node, whether the node may have the grant, and until when the node has confirmed
    /// it. A renewal records its answers in the collector of the grant.
    holdings: Holdings,
    inbox: VecDeque<(usize, Answer)>,
    waker: Option<Waker>,
    /// Smallest number of replicas that have a grant of this round of requests; `None` at the
    /// durability level `Primary`, which needs no replica.
    kept: Option<u32>,
    /// Bit set of the nodes that granted, and whose replicas were then asked.
    awaits_replicas: u32,
}

impl ReplyCollector {
    /// Creates a collector of the replies of `n` nodes to requests at level `Primary`.
    pub(crate) fn new(n: usize) -> Arc<Self> {
        Self::at(n, Durability::Primary, Moment::default())
    }

    /// Creates a collector of the replies of `n` nodes to undo operations (releases or unclaims).
    pub(crate) fn taking_back(n: usize) -> Arc<Self> {
        let collector = Self::empty(n, n, Durability::Primary, Moment::default());
        Arc::new(Self { takes_back: true, ..collector })
    }

    /// Creates a collector of the replies of `n` nodes to requests for a grant. The grant counts at
    /// this durability level and lasts until `until`.
    pub(crate) fn at(n: usize, level: Durability, until: Moment) -> Arc<Self> {
        Arc::new(Self::empty(n, n, level, until))
    }

    /// Creates a collector of the replies to the next renewal of this grant. The renewed grant
    /// lasts until `until`.
    pub(crate) fn next_round(self: &Arc<Self>, n: usize, until: Moment) -> Arc<Self> {
        let round = self.state.lock().holdings.next_round();
        let grant = Some((Arc::clone(self), round));
        Arc::new(Self { grant, ..Self::empty(n, 0, self.level, until) })
    }

    fn empty(n: usize, holdings: usize, level: Durability, until: Moment) -> Self {
        let state = SyncMutex::new(State {
            servers: Servers::new(n),
            holdings: Holdings::new(holdings),
            inbox: VecDeque::with_capacity(n),
            waker: None,
            kept: None,
            awaits_replicas: 0,
        });
        Self { level, takes_back: false, until, grant: None, state }
    }

    /// Returns the durability level at which an answer counts.
    pub(crate) fn level(&self) -> Durability {
        self.level
    }

    /// Records that `replicas` replicas have confirmed a grant of this round of requests. Only the
    /// smallest number of all calls is kept.
    pub(crate) fn keep(&self, replicas: u32) {
        let mut s = self.state.lock();
        s.kept = Some(s.kept.map_or(replicas, |least| least.min(replicas)));
    }

    pub(crate) fn awaits_replicas(&self, node: usize) {
        self.state.lock().awaits_replicas |= 1 << node;
    }

    /// Returns the outcomes of a round that ended at its deadline, in which a node whose replicas
    /// had not confirmed until then counts as not durable.
    pub(crate) fn at_deadline(&self, mut outcomes: Vec<NodeOutcome>) -> Vec<NodeOutcome> {
        let awaits = self.state.lock().awaits_replicas;
        for (node, outcome) in outcomes.iter_mut().enumerate() {
            if awaits & 1 << node != 0 && *outcome == NodeOutcome::no_answer() {
                let detail = "the replicas had not confirmed it in time";
                let error = NodeError::maybe_executed(NodeFault::NotDurable, detail);
                *outcome = NodeOutcome::Failed(error);
            }
        }
        outcomes
    }

    /// Returns the durability that every grant of this round of requests has reached.
    pub(crate) fn achieved(&self) -> Achieved {
        let replicas = self.state.lock().kept.unwrap_or(0);
        Achieved { replicas, ..Achieved::at_least(self.level) }
    }

    /// Stores the answer of a node, and wakes the task that waits for the answers of this round of
    /// requests.
    pub(crate) fn post(&self, node: usize, reply: Answer, origin: &Origin) {
        let mut s = self.state.lock();
        let server = origin.server.as_ref().filter(|_| !self.takes_back);
        let reply = s.servers.admit(node, server, reply);
        let when = (origin.at, origin.history);
        if let Some((grant, round)) = &self.grant {
            grant.state.lock().holdings.answered(node, &reply, (*round, self.until), when);
        } else {
            s.holdings.answered(node, &reply, (0, self.until), when);
        }
        s.inbox.push_back((node, reply));
        let waker = s.waker.take();
        drop(s);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns the next answer and the number of its node. The collector loses no answer if the
    /// caller stops polling.
    pub(crate) fn poll_recv(&self, cx: &Context<'_>) -> Poll<(usize, Answer)> {
        let mut s = self.state.lock();
        if let Some(mail) = s.inbox.pop_front() {
            return Poll::Ready(mail);
        }
        s.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Returns true if the node may have a grant of the attempt whose replies are collected here;
    /// see [`Holdings::may_hold`].
    pub(crate) fn may_hold(&self, node: usize) -> bool {
        self.state.lock().holdings.may_hold(node)
    }

    /// Returns the node's state for a lease that is valid until `until`; see [`Holdings::known`].
    pub(crate) fn known(&self, node: usize, until: Moment) -> Known {
        self.state.lock().holdings.known(node, until)
    }

    /// Records that the attempt won this slot (permit) of a semaphore; see [`Holdings::won_with`].
    pub(crate) fn won_with(&self, slot: u16) {
        self.state.lock().holdings.won_with(slot);
    }

    /// Records that the node has begun another data history. Returns true if the node's last
    /// confirmation of the lease was in an earlier history; see [`Holdings::switched`].
    pub(crate) fn switched(&self, node: usize, quarantine: Quarantine) -> bool {
        self.state.lock().holdings.switched(node, quarantine)
    }

    /// Returns true if the requests collected here renew a grant, and may overtake the other
    /// requests to the node; see [`Holdings::may_overtake`].
    pub(crate) fn may_overtake(&self, node: usize) -> bool {
        let grant = self.grant.as_ref().map(|(grant, _)| grant);
        grant.is_some_and(|grant| grant.state.lock().holdings.may_overtake(node))
    }

    /// Records that a request to extend the lease is sent to the node; see [`Holdings::extended`].
    pub(crate) fn extended(&self, node: usize) {
        self.state.lock().holdings.extended(node);
    }
}
