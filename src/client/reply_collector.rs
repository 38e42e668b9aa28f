//! The collector of the replies to one round of requests: one allocation, to which any number of
//! node queues post.
//!
//! It carries the durability at which an answer counts (the node queues enforce it), and the pure
//! records of what the answers show: [`Servers`] and [`Holdings`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::durability::{Achieved, Durability};
use crate::op::QuarantineId;
use crate::quorum::Answer;
use crate::quorum::holdings::{Holdings, Known, Quarantine};
use crate::quorum::vote::Servers;
use crate::time::Moment;

/// Origin of an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// Time of the answer.
    pub(crate) at: Moment,
    /// Data history of the node that gave it.
    pub(crate) history: Option<QuarantineId>,
    /// Server process that gave it.
    pub(crate) server: Option<Arc<str>>,
}

impl Origin {
    /// Origin of an answer which no server gave.
    pub(crate) fn local(at: Moment) -> Self {
        Self { at, ..Self::default() }
    }
}

/// Replies of one round of requests, by node.
#[derive(Debug)]
pub(crate) struct ReplyCollector {
    level: Durability,
    /// The requests are undo operations. No vote is counted, so it does not matter if two nodes are
    /// one server, on which only the first request finds something to take back.
    takes_back: bool,
    /// Time until which a node that grants in this round certainly keeps the grant.
    until: Moment,
    /// The collector of the grant, if this is a renewal of it, and the number of the renewal.
    grant: Option<(Arc<ReplyCollector>, u64)>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    servers: Servers,
    /// Records of a grant; the answers of its renewals are recorded there, too.
    holdings: Holdings,
    inbox: VecDeque<(usize, Answer)>,
    waker: Option<Waker>,
    /// Least number of replicas that have a grant of this round; `None` at `Primary`.
    kept: Option<u32>,
}

impl ReplyCollector {
    /// Makes a collector for `n` nodes, all of which are about to be asked for a grant.
    pub(crate) fn new(n: usize) -> Arc<Self> {
        Self::at(n, Durability::Primary, Moment::default())
    }

    /// Makes a collector for undo operations on `n` nodes.
    pub(crate) fn taking_back(n: usize) -> Arc<Self> {
        let collector = Self::empty(n, n, Durability::Primary, Moment::default());
        Arc::new(Self { takes_back: true, ..collector })
    }

    /// Makes a collector for `n` nodes whose grant counts at this level and holds until `until`.
    pub(crate) fn at(n: usize, level: Durability, until: Moment) -> Arc<Self> {
        Arc::new(Self::empty(n, n, level, until))
    }

    /// Makes a collector for the next renewal of this grant, which holds until `until`.
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
        // A panic elsewhere cannot leave this state inconsistent: each change is one statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the level at which an answer counts.
    pub(crate) fn level(&self) -> Durability {
        self.level
    }

    /// Records the number of replicas that have the next grant.
    pub(crate) fn keep(&self, replicas: u32) {
        let mut s = self.lock();
        s.kept = Some(s.kept.map_or(replicas, |least| least.min(replicas)));
    }

    /// Returns the durability of every grant of this round: the least of them, so never too much.
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

    /// Returns the next answer. An answer is taken only when it is returned.
    pub(crate) fn poll_recv(&self, cx: &Context<'_>) -> Poll<(usize, Answer)> {
        let mut s = self.lock();
        if let Some(mail) = s.inbox.pop_front() {
            return Poll::Ready(mail);
        }
        s.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// See [`Holdings::may_hold`].
    pub(crate) fn may_hold(&self, node: usize) -> bool {
        self.lock().holdings.may_hold(node)
    }

    /// See [`Holdings::known`].
    pub(crate) fn known(&self, node: usize, until: Moment) -> Known {
        self.lock().holdings.known(node, until)
    }

    /// See [`Holdings::switched`].
    pub(crate) fn switched(&self, node: usize, quarantine: Quarantine) -> bool {
        self.lock().holdings.switched(node, quarantine)
    }

    /// See [`Holdings::extended`].
    pub(crate) fn extended(&self, node: usize) {
        self.lock().holdings.extended(node);
    }
}
