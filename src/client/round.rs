//! One round of requests to the nodes: the requests are sent, the node queues post the answers to
//! an [`Inbox`], and a loop runs the quorum machine, which is the state machine of one operation.
//! The loop passes each answer to the machine, sends the machine's requests, and sets the timer.
//!
//! An inbox is of one round. What the nodes have of an attempt and of its lease outlives the round:
//! that is a [`Grant`], and the inbox of a round that requests or renews it tells it each answer.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::client::lease::Lease;
use crate::client::node_queue::Pending;
use crate::client::{Core, handle_closed};
use crate::durability::Durability;
use crate::error::{NodeError, NodeFault, NodeOutcome};
use crate::op::{LockMode, Op, QuarantineId, Reply};
use crate::quorum::grant::Grant;
use crate::quorum::vote::{Server, Servers};
use crate::quorum::{Answer, Machine, Progress};
use crate::sync::SyncMutex;
use crate::time::Moment;

/// What a quorum machine runs with.
pub(super) struct Round<'a> {
    pub(super) inbox: &'a Arc<Inbox>,
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
    /// Makes the grant of an attempt whose request is about to be sent to all nodes.
    pub(super) fn grant(&self, mode: LockMode, level: Durability) -> SharedGrant {
        Arc::new(SyncMutex::new(Grant::new(self.n(), mode, level)))
    }

    /// Sends an op to one node. The node queue posts the answer to `inbox`.
    pub(super) fn send(&self, node: usize, op: Op, deadline: Moment, inbox: &Arc<Inbox>) {
        self.renewer.keep_running();
        if self.closing.refuses(&op) {
            let origin = Origin::local(self.env.now());
            return inbox.post(node, Err(handle_closed()), &origin, false);
        }
        let is_new = op.is_new_work();
        let request = Pending::new(op, deadline, node, inbox);
        if is_new && self.renewer.is_late() {
            let why = "renewals of locks that are held come first, and they are late; \
                       hold fewer locks in one process, or give it more processor time";
            return self.queues[node].refuse_busy(request, why);
        }
        self.queues[node].submit(request);
    }

    /// Sends the same op to all nodes.
    pub(super) fn send_all(&self, op: Op, deadline: Moment, inbox: &Arc<Inbox>) {
        let last = self.n() - 1;
        for node in 0..last {
            self.send(node, op.clone(), deadline, inbox);
        }
        self.send(last, op, deadline, inbox);
    }

    /// Sends a read to all nodes, and runs the machine that `decides` makes for the number of nodes
    /// and the end of its wait: `grace` after the deadline of the requests. An answer counts at
    /// `level`.
    ///
    /// # Errors
    /// There is no runtime with timers.
    pub(super) async fn read<M: Machine>(
        &self,
        op: Op,
        level: Durability,
        grace: Duration,
        decides: impl FnOnce(usize, Moment) -> M,
    ) -> Result<M::Decision, Vec<NodeOutcome>> {
        let timer = self.timer()?;
        let now = self.env.now();
        let deadline = self.node_deadline(now);
        let until = deadline + grace;
        let inbox = Inbox::at(self.n(), level);
        self.send_all(op, deadline, &inbox);
        let round = Round { inbox: &inbox, timer, until, of: None };
        Ok(self.run(now, &mut decides(self.n(), until), round).await)
    }

    /// Runs a state machine of the module `quorum` until it decides one operation. The first
    /// requests were sent at `now`.
    ///
    /// # Cancellation safety
    /// If the future is dropped, requests that were queued are still sent, and their answers go to
    /// the inbox.
    pub(super) async fn run<M: Machine>(
        &self,
        mut now: Moment,
        machine: &mut M,
        Round { inbox, timer, until, of }: Round<'_>,
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
                    let send = |node, op| self.send(node, op, deadline, inbox);
                    match of {
                        Some(lease) => drop(lease.send(now, false, asks, send)),
                        None => asks.into_iter().for_each(|(node, op)| send(node, op)),
                    }
                    at
                }
            };
            let mail = poll_fn(|cx| {
                // If an answer of a node has arrived, it is handled before a timer that has fired.
                if let Poll::Ready(mail) = inbox.poll_recv(cx) {
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

/// What is known of an answer besides the reply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// Time at which the answer arrived at this process.
    pub(crate) at: Moment,
    /// The node's data history at the time of the answer; `None` if the node did not report it. A
    /// failover, a restart or a loss of data begins another history.
    pub(crate) history: Option<QuarantineId>,
    /// The server that answered; `None` if the answer is not from a server.
    pub(crate) server: Option<Server>,
    /// Number of replicas that have confirmed the grant; `None` if none were asked.
    pub(crate) replicas: Option<u32>,
}

impl Origin {
    /// Creates the origin of an answer that is not from a server, for example of a refusal to send.
    pub(crate) fn local(at: Moment) -> Self {
        Self { at, ..Self::default() }
    }
}

/// A grant of an attempt, of its lease, and of the undo that is still owed for it. Where the lock
/// of a lease or of an inbox is held too, it is locked after that one.
pub(crate) type SharedGrant = Arc<SyncMutex<Grant>>;

/// The answers of the nodes to one round of requests.
#[derive(Debug)]
pub(crate) struct Inbox {
    level: Durability,
    /// The grant that this round requests or renews, the number of the round in it, and the
    /// earliest time until which a node keeps what it grants in this round.
    of: Option<(SharedGrant, u64, Moment)>,
    state: SyncMutex<State>,
}

#[derive(Debug)]
struct State {
    servers: Servers,
    unread: VecDeque<(usize, Answer)>,
    waker: Option<Waker>,
    /// Smallest number of replicas that have a grant of this round; `None` if none were asked.
    replicas: Option<u32>,
    /// Bit set of the nodes that granted, and whose replicas were then asked.
    awaits_replicas: u32,
}

impl Inbox {
    /// Creates the inbox of a round in which no answer has to be durable.
    pub(crate) fn new(n: usize) -> Arc<Self> {
        Self::at(n, Durability::Primary)
    }

    /// Creates the inbox of a round in which an answer counts at this level.
    pub(crate) fn at(n: usize, level: Durability) -> Arc<Self> {
        Self::with(n, level, None)
    }

    /// Creates the inbox of a round of this grant: round 0 requests it, and
    /// [`next_round`](Grant::next_round) renews it. A node keeps what it grants in the round at
    /// least until `until`.
    pub(crate) fn of(grant: &SharedGrant, round: u64, until: Moment) -> Arc<Self> {
        let (n, level) = {
            let grant = grant.lock();
            (grant.n(), grant.durability.level)
        };
        Self::with(n, level, Some((Arc::clone(grant), round, until)))
    }

    fn with(n: usize, level: Durability, of: Option<(SharedGrant, u64, Moment)>) -> Arc<Self> {
        let state = State {
            servers: Servers::new(n),
            unread: VecDeque::with_capacity(n),
            waker: None,
            replicas: None,
            awaits_replicas: 0,
        };
        Arc::new(Self { level, of, state: SyncMutex::new(state) })
    }

    /// Returns the durability level at which an answer counts. The node queues enforce it.
    pub(crate) fn level(&self) -> Durability {
        self.level
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

    /// Returns the number of replicas that have every grant of this round.
    pub(crate) fn replicas(&self) -> u32 {
        self.state.lock().replicas.unwrap_or(0)
    }

    /// Stores the answer of a node, and wakes the task that waits for it. The answer to an undo is
    /// no vote, so two nodes that are the same server may both give it: the second undo finds
    /// nothing.
    pub(crate) fn post(&self, node: usize, reply: Answer, origin: &Origin, is_undo: bool) {
        let mut s = self.state.lock();
        let server = origin.server.as_ref().filter(|_| !is_undo);
        let reply = s.servers.admit(node, server, reply);
        s.replicas = s.replicas.into_iter().chain(origin.replicas).min();
        if let Some((grant, round, until)) = &self.of {
            let when = (origin.at, origin.history);
            grant.lock().answered(node, &reply, (*round, *until), when);
        }
        s.unread.push_back((node, reply));
        let waker = s.waker.take();
        drop(s);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns the next answer and the number of its node. No answer is lost if the caller stops
    /// polling.
    pub(crate) fn poll_recv(&self, cx: &Context<'_>) -> Poll<(usize, Answer)> {
        let mut s = self.state.lock();
        if let Some(answer) = s.unread.pop_front() {
            return Poll::Ready(answer);
        }
        s.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Returns true if the round renews a grant, and its request to the node may overtake the
    /// others; see [`Grant::may_overtake`].
    pub(crate) fn may_overtake(&self, node: usize) -> bool {
        let renewed = self.of.as_ref().filter(|(_, round, _)| *round > 0);
        renewed.is_some_and(|(grant, ..)| grant.lock().may_overtake(node))
    }
}
