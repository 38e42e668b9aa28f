//! Where the replies of one attempt meet: one allocation, any number of lanes posting.
//!
//! It says at which durability an answer counts (the lanes see to it), and it remembers which nodes
//! may hold something of the attempt (`may_hold`), for a release must go to all of those and to no
//! other.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::durability::{Achieved, Durability};
use crate::error::{NodeError, NodeFault};
use crate::op::{QuarantineId, Reply};
use crate::receipt::Written;
use crate::time::Moment;

/// A quarantine as a node told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quarantine {
    pub(crate) id: QuarantineId,
    /// When it ends, or later by the time that the answer took.
    pub(crate) ends: Moment,
}

/// What belongs to an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stamp {
    /// When it came.
    pub(crate) at: Moment,
    /// Where in the node's history what it confirms stands.
    pub(crate) written: Option<Written>,
    /// Which server process gave it.
    pub(crate) server: Option<Arc<str>>,
}

impl Stamp {
    /// That of an answer which no server gave.
    pub(crate) fn nobodys(at: Moment) -> Self {
        Self { at, written: None, server: None }
    }
}

/// Replies of one attempt, by node.
#[derive(Debug)]
pub(crate) struct Mailbox {
    level: Durability,
    /// What is asked for takes something back. No vote is counted, so it does not matter that two
    /// nodes are one server, of which only one still finds something to take back.
    takes_back: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    inbox: VecDeque<(usize, Result<Reply, NodeError>)>,
    waker: Option<Waker>,
    /// Nodes whose first answer has come.
    answered: u32,
    /// Nodes that granted, or may have.
    may_hold: u32,
    /// Nodes that certainly granted or prolonged.
    confirmed: u32,
    /// Nodes that answered from a quarantine, with it; also those that answered late.
    quarantined: Vec<(usize, Quarantine)>,
    /// How many replicas had what the node said yes to; nothing at `Primary`.
    kept: Vec<u32>,
    /// Where in a node's history its last yes stands.
    written: Vec<(usize, Written)>,
    /// Which server process answers for which node.
    servers: Vec<(usize, Arc<str>)>,
}

impl State {
    /// The node for which the same server process has answered already: two addresses of one
    /// server are one vote, that of the first to answer.
    fn twin(&mut self, node: usize, server: Option<Arc<str>>) -> Option<usize> {
        let server = server?;
        let twin = self.servers.iter().find(|(n, s)| *n != node && *s == server).map(|(n, _)| *n);
        if twin.is_none() {
            self.servers.retain(|(n, _)| *n != node);
            self.servers.push((node, server));
        }
        twin
    }
}

impl Mailbox {
    /// A mailbox for `n` nodes, all of which are about to be asked for a grant.
    pub(crate) fn new(n: usize) -> Arc<Self> {
        Self::at(n, Durability::Primary)
    }

    /// A mailbox for `n` nodes that are asked to take something back.
    pub(crate) fn taking_back(n: usize) -> Arc<Self> {
        Arc::new(Self { takes_back: true, ..Self::empty(n, Durability::Primary) })
    }

    /// A mailbox for `n` nodes whose yes counts at this level.
    pub(crate) fn at(n: usize, level: Durability) -> Arc<Self> {
        Arc::new(Self::empty(n, level))
    }

    fn empty(n: usize, level: Durability) -> Self {
        let state = Mutex::new(State {
            inbox: VecDeque::with_capacity(n),
            waker: None,
            answered: 0,
            confirmed: 0,
            quarantined: Vec::new(),
            kept: Vec::new(),
            written: Vec::new(),
            servers: Vec::new(),
            may_hold: if n >= 32 { u32::MAX } else { (1 << n) - 1 },
        });
        Self { level, takes_back: false, state }
    }

    /// At which level an answer counts.
    pub(crate) fn level(&self) -> Durability {
        self.level
    }

    /// So many replicas have what a node is about to say yes to.
    pub(crate) fn keep(&self, replicas: u32) {
        self.lock().kept.push(replicas);
    }

    /// What every yes so far is good for: the least of them, so never too much.
    pub(crate) fn achieved(&self) -> Achieved {
        let replicas = self.lock().kept.iter().min().copied().unwrap_or(0);
        Achieved { replicas, ..Achieved::at_least(self.level) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere cannot leave this state half-changed: each change is one statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lane has an answer.
    pub(crate) fn post(&self, node: usize, reply: Result<Reply, NodeError>, stamp: Stamp) {
        let mut s = self.lock();
        let Stamp { at, written, server } = stamp;
        let reply = match s.twin(node, server.filter(|_| !self.takes_back)) {
            Some(twin) if reply.is_ok() => Err(NodeError::maybe_executed(
                NodeFault::SameServer,
                format!("same run_id as node number {}", twin + 1),
            )),
            _ => reply,
        };
        let bit = 1 << node;
        if s.answered & bit == 0 {
            s.answered |= bit;
            let refused = match &reply {
                Ok(Reply::Granted { .. } | Reply::Claimed { .. } | Reply::Done) => false,
                Ok(_) => true,
                Err(e) => !e.is_ambiguous(),
            };
            if refused {
                s.may_hold &= !bit;
            }
        }
        if matches!(&reply, Ok(Reply::Granted { .. } | Reply::Claimed { .. } | Reply::Done)) {
            s.confirmed |= bit;
            s.written.retain(|(n, _)| *n != node);
            s.written.extend(written.map(|w| (node, w)));
        }
        if let Ok(Reply::Quarantined { remaining, id, .. }) = &reply {
            s.quarantined.push((node, Quarantine { id: *id, ends: at + *remaining }));
        }
        s.inbox.push_back((node, reply));
        if let Some(waker) = s.waker.take() {
            drop(s);
            waker.wake();
        }
    }

    /// The next answer.
    ///
    /// # Cancellation safety
    /// Dropping the future loses nothing: an answer is taken only when it is returned.
    pub(crate) async fn recv(&self) -> (usize, Result<Reply, NodeError>) {
        std::future::poll_fn(|cx| {
            let mut s = self.lock();
            if let Some(mail) = s.inbox.pop_front() {
                return Poll::Ready(mail);
            }
            s.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Whether the node may hold something of this attempt.
    pub(crate) fn may_hold(&self, node: usize) -> bool {
        #[cfg(feature = "sim-bugs")]
        if crate::bugs::on(crate::bugs::Bug::LateGrantsStay) {
            return self.lock().confirmed & (1 << node) != 0;
        }
        self.lock().may_hold & (1 << node) != 0
    }

    /// Whether the node said yes in this round.
    pub(crate) fn confirmed(&self, node: usize) -> bool {
        self.lock().confirmed & (1 << node) != 0
    }

    /// Where in the node's history its last yes of this round stands.
    pub(crate) fn written(&self, node: usize) -> Option<Written> {
        self.lock().written.iter().find(|(n, _)| *n == node).map(|(_, w)| *w)
    }

    /// The same of all nodes.
    pub(crate) fn all_written(&self) -> Vec<(usize, Written)> {
        self.lock().written.clone()
    }

    /// The quarantine out of which the node answered last in this round.
    pub(crate) fn quarantine(&self, node: usize) -> Option<Quarantine> {
        let s = self.lock();
        s.quarantined.iter().rev().find(|(n, _)| *n == node).map(|(_, q)| *q)
    }

    /// An extension was sent to the node: it may re-create the key there.
    pub(crate) fn mark(&self, node: usize) {
        let mut s = self.lock();
        s.may_hold |= 1 << node;
        // A first answer that comes after this says nothing about what the extension did.
        s.answered |= 1 << node;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_refusal_does_not_clear_what_an_extension_may_have_written() {
        let mailbox = Mailbox::new(1);
        mailbox.mark(0);
        let refusal = NodeError::not_executed(NodeFault::Timeout, "not sent");
        mailbox.post(0, Err(refusal), Stamp::nobodys(Moment::from_nanos(1)));
        assert!(mailbox.may_hold(0), "the release would leave the key behind");
    }

    #[test]
    fn two_addresses_of_one_server_are_one_vote_whichever_answers_first() {
        let mailbox = Mailbox::new(3);
        let from = |server: &str| Stamp { server: Some(server.into()), ..Stamp::default() };
        mailbox.post(1, Ok(Reply::Done), from("x"));
        mailbox.post(0, Ok(Reply::Done), from("x"));
        mailbox.post(2, Ok(Reply::Done), from("y"));
        assert_eq!([0, 1, 2].map(|n| mailbox.confirmed(n)), [false, true, true]);
        let answers: Vec<_> = mailbox.lock().inbox.drain(..).collect();
        assert_eq!(answers[0].1, Ok(Reply::Done));
        assert_eq!(answers[1].1.as_ref().unwrap_err().fault(), NodeFault::SameServer);
        assert!(mailbox.may_hold(0), "it may have executed it");
        // The node has become another server.
        mailbox.post(1, Ok(Reply::Done), from("z"));
        assert!(mailbox.confirmed(1));
    }
}
