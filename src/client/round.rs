//! One round of requests. What the nodes have of an attempt outlives it, in a [`Grant`], which the
//! inbox of a round tells each answer.

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

pub(super) struct Round<'a> {
    pub(super) inbox: &'a Arc<Inbox>,
    /// The only timer of the operation. It belongs to the runtime that polls the operation
    /// (overview 7).
    pub(super) timer: Sleep,
    /// No request of this round may take effect on a node after it.
    pub(super) until: Moment,
    pub(super) of: Option<&'a Lease>,
}

impl Core {
    pub(super) fn grant(&self, mode: LockMode, level: Durability) -> SharedGrant {
        Arc::new(SyncMutex::new(Grant::new(self.n(), mode, level)))
    }

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

    pub(super) fn send_all(&self, op: Op, deadline: Moment, inbox: &Arc<Inbox>) {
        let last = self.n() - 1;
        for node in 0..last {
            self.send(node, op.clone(), deadline, inbox);
        }
        self.send(last, op, deadline, inbox);
    }

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

    /// If the future is dropped, queued requests are still sent.
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

#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    pub(crate) at: Moment,
    pub(crate) history: Option<QuarantineId>,
    pub(crate) server: Option<Server>,
    pub(crate) replicas: Option<u32>,
}

impl Origin {
    pub(crate) fn local(at: Moment) -> Self {
        Self { at, ..Self::default() }
    }
}

/// Where the lock of a lease or of an inbox is held too, it is locked after that one.
pub(crate) type SharedGrant = Arc<SyncMutex<Grant>>;

#[derive(Debug)]
pub(crate) struct Inbox {
    level: Durability,
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
    awaits_replicas: u32,
}

impl Inbox {
    pub(crate) fn new(n: usize) -> Arc<Self> {
        Self::at(n, Durability::Primary)
    }

    pub(crate) fn at(n: usize, level: Durability) -> Arc<Self> {
        Self::with(n, level, None)
    }

    /// Round 0 requests the grant, [`next_round`](Grant::next_round) renews it.
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

    pub(crate) fn level(&self) -> Durability {
        self.level
    }

    pub(crate) fn awaits_replicas(&self, node: usize) {
        self.state.lock().awaits_replicas |= 1 << node;
    }

    /// A node whose replicas had not confirmed until then counts as not durable.
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

    pub(crate) fn replicas(&self) -> u32 {
        self.state.lock().replicas.unwrap_or(0)
    }

    /// The answer to an undo is no vote, so two nodes that are the same server may both give it.
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

    /// No answer is lost if the caller stops polling.
    pub(crate) fn poll_recv(&self, cx: &Context<'_>) -> Poll<(usize, Answer)> {
        let mut s = self.state.lock();
        if let Some(answer) = s.unread.pop_front() {
            return Poll::Ready(answer);
        }
        s.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(crate) fn may_overtake(&self, node: usize) -> bool {
        let renewed = self.of.as_ref().filter(|(_, round, _)| *round > 0);
        renewed.is_some_and(|(grant, ..)| grant.lock().may_overtake(node))
    }
}
