//! Collector of the replies to one round of requests. Any number of node queues post replies to it.
//! A collector is a single allocation.
//!
//! The collector has the durability level at which an answer counts; the node queues enforce this
//! level. The collector also has two records of the answers: [`Servers`] and [`Holdings`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::durability::{Achieved, Durability};
use crate::op::QuarantineId;
use crate::quorum::Answer;
use crate::quorum::holdings::{Holdings, Known, Quarantine};
use crate::quorum::vote::Servers;
use crate::sync::SyncMutex;
use crate::time::Moment;

/// Time of an answer, and the server that answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// Time at which the answer arrived.
    pub(crate) at: Moment,
    /// The node's data history at the time of the answer; `None` if the node did not report it.
    pub(crate) history: Option<QuarantineId>,
    /// Identity of the server process that answered; `None` if the answer is not from a server.
    pub(crate) server: Option<Arc<str>>,
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
    /// True if the requests are undo operations. Their answers are no votes, so two nodes may be
    /// the same server. The second request then finds nothing to undo.
    takes_back: bool,
    /// Time until which a node keeps a grant of this round, in any case.
    until: Moment,
    /// For a round that renews a grant: the collector of the grant, and the number of the renewal.
    grant: Option<(Arc<ReplyCollector>, u64)>,
    state: SyncMutex<State>,
}

#[derive(Debug)]
struct State {
    servers: Servers,
    /// The nodes' parts of a grant. A renewal records its answers in the collector of the grant.
    holdings: Holdings,
    inbox: VecDeque<(usize, Answer)>,
    waker: Option<Waker>,
    /// Smallest number of replicas that have a grant of this round; `None` at level `Primary`.
    kept: Option<u32>,
}

impl ReplyCollector {
    /// Creates a collector of the replies of `n` nodes to requests at level `Primary`.
    pub(crate) fn new(n: usize) -> Arc<Self> {
        Self::at(n, Durability::Primary, Moment::default())
    }

    /// Creates a collector of the replies of `n` nodes to undo operations.
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
        });
        Self { level, takes_back: false, until, grant: None, state }
    }

    /// Returns the durability level at which an answer counts.
    pub(crate) fn level(&self) -> Durability {
        self.level
    }

    /// Records that `replicas` replicas have a grant of this round. Only the smallest number is
    /// kept.
    pub(crate) fn keep(&self, replicas: u32) {
        let mut s = self.state.lock();
        s.kept = Some(s.kept.map_or(replicas, |least| least.min(replicas)));
    }

    /// Returns the durability that every grant of this round has reached.
    pub(crate) fn achieved(&self) -> Achieved {
        let replicas = self.state.lock().kept.unwrap_or(0);
        Achieved { replicas, ..Achieved::at_least(self.level) }
    }

    /// Stores the answer of a node, and wakes the round that waits for answers.
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

    /// Returns true if the node may have a grant of the attempt; see [`Holdings::may_hold`].
    pub(crate) fn may_hold(&self, node: usize) -> bool {
        self.state.lock().holdings.may_hold(node)
    }

    /// Returns the node's state for a lease that is valid until `until`; see [`Holdings::known`].
    pub(crate) fn known(&self, node: usize, until: Moment) -> Known {
        self.state.lock().holdings.known(node, until)
    }

    /// Records that the attempt was won with this slot; see [`Holdings::won_with`].
    pub(crate) fn won_with(&self, slot: u16) {
        self.state.lock().holdings.won_with(slot);
    }

    /// Records that the node has begun another data history. Returns true if the node's last
    /// confirmation of the lease was in an earlier history; see [`Holdings::switched`].
    pub(crate) fn switched(&self, node: usize, quarantine: Quarantine) -> bool {
        self.state.lock().holdings.switched(node, quarantine)
    }

    /// Records that an extension is sent to the node; see [`Holdings::extended`].
    pub(crate) fn extended(&self, node: usize) {
        self.state.lock().holdings.extended(node);
    }
}
