//! Where the replies of one attempt meet: one allocation, any number of lanes posting.
//!
//! It says at which durability an answer counts (the lanes see to it), and it remembers which nodes
//! may hold something of the attempt (`may_hold`), for a release must go to all of those and to no
//! other.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::durability::{Achieved, Durability};
use crate::error::NodeError;
use crate::op::Reply;
use crate::receipt::Written;
use crate::time::Moment;

/// A quarantine as a node told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quarantine {
    pub(crate) epoch: u64,
    /// When it ends, or later by the time that the answer took.
    pub(crate) ends: Moment,
}

/// When an answer came, and where in the node's history what it tells stands.
pub(crate) type Stamp = (Moment, Option<Written>);

/// Replies of one attempt, by node.
#[derive(Debug)]
pub(crate) struct Mailbox {
    level: Durability,
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
    forgot: Vec<(usize, Quarantine)>,
    /// How many replicas had what the node said yes to; nothing at `Primary`.
    kept: Vec<u32>,
    /// Where in a node's history its last yes stands.
    written: Vec<(usize, Written)>,
}

impl Mailbox {
    /// A mailbox for `n` nodes, all of which are about to be asked for a grant.
    pub(crate) fn new(n: usize) -> Arc<Self> {
        Self::at(n, Durability::Primary)
    }

    /// A mailbox for `n` nodes whose yes counts at this level.
    pub(crate) fn at(n: usize, level: Durability) -> Arc<Self> {
        let state = Mutex::new(State {
            inbox: VecDeque::with_capacity(n),
            waker: None,
            answered: 0,
            confirmed: 0,
            forgot: Vec::new(),
            kept: Vec::new(),
            written: Vec::new(),
            may_hold: if n >= 32 { u32::MAX } else { (1 << n) - 1 },
        });
        Arc::new(Self { level, state })
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

    /// A lane has an answer, received at `now`, from where `written` says.
    pub(crate) fn post(&self, node: usize, reply: Result<Reply, NodeError>, (now, written): Stamp) {
        let mut s = self.lock();
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
        if let Ok(Reply::Quarantined { remaining, epoch }) = &reply {
            s.forgot.push((node, Quarantine { epoch: *epoch, ends: now + *remaining }));
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

    /// The quarantine in which the node said no in this round, if it has not said yes since.
    pub(crate) fn forgot(&self, node: usize) -> Option<Quarantine> {
        let s = self.lock();
        let mut told = s.forgot.iter().rev().filter(|(n, _)| *n == node).map(|(_, q)| *q);
        if s.confirmed & (1 << node) == 0 { told.next() } else { None }
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
    use crate::error::NodeFault;

    #[test]
    fn a_late_refusal_does_not_clear_what_an_extension_may_have_written() {
        let mailbox = Mailbox::new(1);
        mailbox.mark(0);
        let refusal = NodeError::not_executed(NodeFault::Timeout, "not sent");
        mailbox.post(0, Err(refusal), (Moment::from_nanos(1), None));
        assert!(mailbox.may_hold(0), "the release would leave the key behind");
    }
}
