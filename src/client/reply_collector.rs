//! Where the replies of one attempt meet: one allocation, any number of queues posting.
//!
//! It says at which durability an answer counts (the queues see to it), and it remembers which
//! nodes may hold something of the attempt (`may_hold`), for a release must go to all of those and
//! to no other.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::durability::{Achieved, Durability};
use crate::error::{NodeError, NodeFault};
use crate::op::{QuarantineId, Reply};
use crate::time::Moment;

/// A quarantine as a node reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quarantine {
    pub(crate) id: QuarantineId,
    /// When it ends, or later by the time that the answer took.
    pub(crate) ends: Moment,
}

/// What belongs to an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    /// When it came.
    pub(crate) at: Moment,
    /// The data history of the node that gave it.
    pub(crate) history: Option<QuarantineId>,
    /// Which server process gave it.
    pub(crate) server: Option<Arc<str>>,
}

impl Origin {
    /// That of an answer which no server gave.
    pub(crate) fn nobodys(at: Moment) -> Self {
        Self { at, ..Self::default() }
    }
}

/// Replies of one round of questions, by node.
#[derive(Debug)]
pub(crate) struct ReplyCollector {
    level: Durability,
    /// What is asked for takes something back. No vote is counted, so it does not matter that two
    /// nodes are one server, of which only one still finds something to take back.
    takes_back: bool,
    /// Until when a node that says yes in this round certainly keeps it.
    until: Moment,
    /// The replies of the grant, if this is a renewal of it, and which one.
    grant: Option<(Arc<ReplyCollector>, u64)>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    nodes: Vec<Node>,
    inbox: VecDeque<(usize, Result<Reply, NodeError>)>,
    waker: Option<Waker>,
    /// How many replicas had what was said yes to, the least of them; nothing at `Primary`.
    kept: Option<u32>,
    /// How often it was renewed.
    rounds: u64,
}

/// What one node has said: in this round, and in the replies of a grant also in its renewals, of
/// which answers may come late and in any order.
#[derive(Clone, Debug)]
struct Node {
    /// Its first answer has come, or would say nothing any more.
    answered: bool,
    /// Which server process answers for it.
    server: Option<Arc<str>>,
    /// It granted, or may have.
    may_hold: bool,
    /// Until when it certainly keeps what it granted or prolonged; zero if it never did.
    confirmed_until: Moment,
    /// The round of its last yes, and the data history that has it.
    confirmed_in: Option<(u64, QuarantineId)>,
    /// The last round in which it said that it is in quarantine, and which quarantine.
    quarantine: Option<(u64, Quarantine)>,
}

impl ReplyCollector {
    /// A replies for `n` nodes, all of which are about to be asked for a grant.
    pub(crate) fn new(n: usize) -> Arc<Self> {
        Self::at(n, Durability::Primary, Moment::default())
    }

    /// A replies for `n` nodes that are asked to take something back.
    pub(crate) fn taking_back(n: usize) -> Arc<Self> {
        let replies = Self::empty(n, Durability::Primary, Moment::default());
        Arc::new(Self { takes_back: true, ..replies })
    }

    /// A replies for `n` nodes whose yes counts at this level, and holds until then.
    pub(crate) fn at(n: usize, level: Durability, until: Moment) -> Arc<Self> {
        Arc::new(Self::empty(n, level, until))
    }

    /// A replies for the next renewal of this grant, until then.
    pub(crate) fn next_round(self: &Arc<Self>, until: Moment) -> Arc<Self> {
        let (n, round) = {
            let mut s = self.lock();
            s.rounds += 1;
            (s.nodes.len(), s.rounds)
        };
        let grant = Some((Arc::clone(self), round));
        Arc::new(Self { grant, ..Self::empty(n, self.level, until) })
    }

    fn empty(n: usize, level: Durability, until: Moment) -> Self {
        let node = Node {
            answered: false,
            server: None,
            may_hold: true,
            confirmed_until: Moment::default(),
            confirmed_in: None,
            quarantine: None,
        };
        let (nodes, inbox) = (vec![node; n], VecDeque::with_capacity(n));
        let state = Mutex::new(State { nodes, inbox, waker: None, kept: None, rounds: 0 });
        Self { level, takes_back: false, until, grant: None, state }
    }

    /// At which level an answer counts.
    pub(crate) fn level(&self) -> Durability {
        self.level
    }

    /// So many replicas have what a node is about to say yes to.
    pub(crate) fn keep(&self, replicas: u32) {
        let mut s = self.lock();
        s.kept = Some(s.kept.map_or(replicas, |least| least.min(replicas)));
    }

    /// What every yes so far is good for: the least of them, so never too much.
    pub(crate) fn achieved(&self) -> Achieved {
        let replicas = self.lock().kept.unwrap_or(0);
        Achieved { replicas, ..Achieved::at_least(self.level) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere cannot leave this state half-changed: each change is one statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue has an answer.
    pub(crate) fn post(&self, node: usize, reply: Result<Reply, NodeError>, stamp: Origin) {
        let Origin { at, history, server } = stamp;
        let mut s = self.lock();
        // Two addresses of one server are one vote, that of the first to answer.
        let server = server.filter(|_| !self.takes_back);
        let same = |(i, n): &(usize, &Node)| *i != node && server.is_some() && n.server == server;
        let twin = s.nodes.iter().enumerate().find(same).map(|(i, _)| i);
        let reply = match twin {
            Some(twin) if reply.is_ok() => Err(NodeError::maybe_executed(
                NodeFault::SameServer,
                format!("same run_id as node number {}", twin + 1),
            )),
            _ => reply,
        };
        let of = &mut s.nodes[node];
        if server.is_some() && twin.is_none() {
            of.server = server;
        }
        let first = !std::mem::replace(&mut of.answered, true);
        if let Some((grant, round)) = &self.grant {
            grant.lock().nodes[node].learn(*round, self.until, &reply, (at, history));
        } else {
            of.may_hold &= !first || may_hold(&reply);
            of.learn(0, self.until, &reply, (at, history));
        }
        s.inbox.push_back((node, reply));
        let waker = s.waker.take();
        drop(s);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next answer. It is taken only when it is returned.
    pub(crate) fn poll_recv(&self, cx: &Context<'_>) -> Poll<(usize, Result<Reply, NodeError>)> {
        let mut s = self.lock();
        if let Some(mail) = s.inbox.pop_front() {
            return Poll::Ready(mail);
        }
        s.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Whether the node may hold something of this attempt.
    pub(crate) fn may_hold(&self, node: usize) -> bool {
        let s = self.lock();
        #[cfg(feature = "sim-bugs")]
        if crate::bugs::on(crate::bugs::Bug::LateGrantsStay) {
            return s.nodes[node].confirmed_until > Moment::default();
        }
        s.nodes[node].may_hold
    }

    /// Until when the node certainly keeps what it granted or prolonged; zero if it never did.
    pub(crate) fn confirmed_until(&self, node: usize) -> Moment {
        self.lock().nodes[node].confirmed_until
    }

    /// The node has begun the data history of this quarantine. Returns whether its last yes is of
    /// an earlier one; if so, the next extension names the quarantine, where it may.
    pub(crate) fn switched(&self, node: usize, quarantine: Quarantine) -> bool {
        let mut s = self.lock();
        let rounds = s.rounds;
        let of = &mut s.nodes[node];
        let before = of.confirmed_in.is_some_and(|(_, history)| history != quarantine.id);
        if before {
            of.quarantine = Some((rounds, quarantine));
        }
        before
    }

    /// The quarantine out of which the node answered last.
    pub(crate) fn quarantine(&self, node: usize) -> Option<Quarantine> {
        self.lock().nodes[node].quarantine.map(|(_, quarantine)| quarantine)
    }

    /// An extension was sent to the node: it may re-create the key there, and a first answer that
    /// comes after this says nothing about what the extension did.
    pub(crate) fn mark(&self, node: usize) {
        let mut s = self.lock();
        (s.nodes[node].may_hold, s.nodes[node].answered) = (true, true);
    }
}

fn is_yes(reply: &Result<Reply, NodeError>) -> bool {
    matches!(reply, Ok(Reply::Granted { .. } | Reply::Claimed { .. } | Reply::Done))
}

/// Whether who is asked first, and says this, may hold something now.
fn may_hold(reply: &Result<Reply, NodeError>) -> bool {
    is_yes(reply) || matches!(reply, Err(e) if e.is_ambiguous())
}

impl Node {
    /// It answered in this round, at `at`.
    fn learn(
        &mut self,
        round: u64,
        until: Moment,
        reply: &Result<Reply, NodeError>,
        (at, history): (Moment, Option<QuarantineId>),
    ) {
        if is_yes(reply) {
            self.confirmed_until = self.confirmed_until.max(until);
            if self.confirmed_in.is_none_or(|(last, _)| last <= round) {
                self.confirmed_in = history.map(|history| (round, history));
            }
        }
        if let Ok(Reply::Quarantined { remaining, id, .. }) = reply
            && self.quarantine.is_none_or(|(last, _)| last <= round)
        {
            self.quarantine = Some((round, Quarantine { id: *id, ends: at + *remaining }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_refusal_does_not_clear_what_an_extension_may_have_written() {
        let replies = ReplyCollector::new(1);
        replies.mark(0);
        let refusal = NodeError::not_executed(NodeFault::Timeout, "not sent");
        replies.post(0, Err(refusal), Origin::nobodys(Moment::from_nanos(1)));
        assert!(replies.may_hold(0), "the release would leave the key behind");
    }

    #[test]
    fn two_addresses_of_one_server_are_one_vote_whichever_answers_first() {
        let replies = ReplyCollector::at(3, Durability::Primary, Moment::from_nanos(1));
        let from = |server: &str| Origin { server: Some(server.into()), ..Origin::default() };
        replies.post(1, Ok(Reply::Done), from("x"));
        replies.post(0, Ok(Reply::Done), from("x"));
        replies.post(2, Ok(Reply::Done), from("y"));
        assert_eq!(
            [0, 1, 2].map(|n| replies.confirmed_until(n) > Moment::default()),
            [false, true, true]
        );
        let answers: Vec<_> = replies.lock().inbox.drain(..).collect();
        assert_eq!(answers[0].1, Ok(Reply::Done));
        assert_eq!(answers[1].1.as_ref().unwrap_err().fault(), NodeFault::SameServer);
        assert!(replies.may_hold(0), "it may have executed it");
        // The node has become another server.
        replies.post(1, Ok(Reply::Done), from("z"));
        assert!(replies.confirmed_until(1) > Moment::default());
    }
}
