//! Collector of the replies to one round of requests. Any number of node queues post to it, and it
//! is a single allocation.
//!
//! It knows the durability level at which an answer counts, which the node queues enforce, and
//! keeps two records of what the answers show: [`Servers`] and [`Holdings`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::durability::{Achieved, Durability};
use crate::op::QuarantineId;
use crate::quorum::Answer;
use crate::quorum::holdings::{Holdings, Known, Quarantine};
use crate::quorum::vote::Servers;
use crate::time::Moment;

/// Time of an answer, and the server that gave it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// Time at which the answer arrived.
    pub(crate) at: Moment,
    /// Data history of the node when it answered; `None` if the node did not report it.
    pub(crate) history: Option<QuarantineId>,
    /// Identity of the server process that answered; `None` if no server did.
    pub(crate) server: Option<Arc<str>>,
}

impl Origin {
    /// Makes the origin of an answer that no server gave, for example of a refusal to send.
    pub(crate) fn local(at: Moment) -> Self {
        Self { at, ..Self::default() }
    }
}

/// Collector of the replies of all nodes to one round of requests.
#[derive(Debug)]
pub(crate) struct ReplyCollector {
    level: Durability,
    /// True if the requests are undo operations. Their answers are no votes, so it does no harm if
    /// two nodes are the same server, where only the first request finds something to take back.
    takes_back: bool,
    /// Time until which a node that grants in this round certainly keeps the grant.
    until: Moment,
    /// If this round renews a grant: the collector of the grant, and the number of the renewal.
    grant: Option<(Arc<ReplyCollector>, u64)>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    servers: Servers,
    /// Parts of a grant that each node holds. A renewal records its answers in the collector of the
    /// grant.
    holdings: Holdings,
    inbox: VecDeque<(usize, Answer)>,
    waker: Option<Waker>,
    /// Least number of replicas that have a grant of this round; `None` at level `Primary`.
    kept: Option<u32>,
}

impl ReplyCollector {
    /// Makes a collector of the replies of `n` nodes to requests at level `Primary`.
    pub(crate) fn new(n: usize) -> Arc<Self> {
        Self::at(n, Durability::Primary, Moment::default())
    }

    /// Makes a collector of the replies of `n` nodes to undo operations.
    pub(crate) fn taking_back(n: usize) -> Arc<Self> {
        let collector = Self::empty(n, n, Durability::Primary, Moment::default());
        Arc::new(Self { takes_back: true, ..collector })
    }

    /// Makes a collector of the replies of `n` nodes to requests for a grant, which counts at this
    /// durability level and lasts until `until`.
    pub(crate) fn at(n: usize, level: Durability, until: Moment) -> Arc<Self> {
        Arc::new(Self::empty(n, n, level, until))
    }

    /// Makes a collector of the replies to the next renewal of this grant, which lasts until
    /// `until`.
    pub(crate) fn next_round(self: &Arc<Self>, n: usize, until: Moment) -> Arc<Self> {
        let round = self.lock().holdings.next_round();
        let grant = Some((Arc::clone(self), round));
        Arc::new(Self { grant, ..Self::empty(n, 0, self.level, until) })
    }

    fn empty(n: usize, holdings: usize, level: Durability, until: Moment) -> Self {
        let state = Mutex::new(State {
            servers: Servers::new(n),
            holdings: Holdings::new(holdings),
            inbox: VecDeque::with_capacity(n),
            waker: None,
            kept: None,
        });
        Self { level, takes_back: false, until, grant: None, state }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // If another thread panicked while it held the mutex, the state is used all the same,
        // because no part of it relies on another part.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the durability level at which an answer counts.
    pub(crate) fn level(&self) -> Durability {
        self.level
    }

    /// Records that this number of replicas have a grant of this round. The least number is kept.
    pub(crate) fn keep(&self, replicas: u32) {
        let mut s = self.lock();
        s.kept = Some(s.kept.map_or(replicas, |least| least.min(replicas)));
    }

    /// Returns the durability that every grant of this round has at least.
    pub(crate) fn achieved(&self) -> Achieved {
        let replicas = self.lock().kept.unwrap_or(0);
        Achieved { replicas, ..Achieved::at_least(self.level) }
    }

    /// Takes in the answer of a node, and wakes the round that waits for it.
    pub(crate) fn post(&self, node: usize, reply: Answer, origin: &Origin) {
        let mut s = self.lock();
        let server = origin.server.as_ref().filter(|_| !self.takes_back);
        let reply = s.servers.admit(node, server, reply);
        let when = (origin.at, origin.history);
        if let Some((grant, round)) = &self.grant {
            grant.lock().holdings.answered(node, &reply, (*round, self.until), when);
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

    /// Returns the next answer, with the number of its node. An answer is taken only when it is
    /// returned.
    pub(crate) fn poll_recv(&self, cx: &Context<'_>) -> Poll<(usize, Answer)> {
        let mut s = self.lock();
        if let Some(mail) = s.inbox.pop_front() {
            return Poll::Ready(mail);
        }
        s.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Returns true if the node may hold something of the attempt; see [`Holdings::may_hold`].
    pub(crate) fn may_hold(&self, node: usize) -> bool {
        self.lock().holdings.may_hold(node)
    }

    /// Returns what is known of the node, for a lease that is valid until `until`; see
    /// [`Holdings::known`].
    pub(crate) fn known(&self, node: usize, until: Moment) -> Known {
        self.lock().holdings.known(node, until)
    }

    /// Records that the node has begun another data history. Returns true if it last confirmed the
    /// lease in an earlier one; see [`Holdings::switched`].
    pub(crate) fn switched(&self, node: usize, quarantine: Quarantine) -> bool {
        self.lock().holdings.switched(node, quarantine)
    }

    /// Records that an extension is sent to the node; see [`Holdings::extended`].
    pub(crate) fn extended(&self, node: usize) {
        self.lock().holdings.extended(node);
    }
}
