//! A request to one node, and the two channels of a node queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::client::round::{Inbox, Origin, SharedGrant};
use crate::durability::Durability;
use crate::error::{NodeError, NodeFault};
use crate::op::Op;
use crate::quorum::Answer;
use crate::time::Moment;
use crate::token::OwnerToken;

/// It has not even answered the heartbeat of an idle queue.
const AWAY: Duration = Duration::from_secs(1).saturating_add(super::HEARTBEAT);

#[derive(Debug, Default)]
pub(crate) struct Load {
    unanswered: AtomicUsize,
    owed: AtomicUsize,
    /// Nanoseconds of a [`Moment`]; zero before the first answer.
    heard: AtomicU64,
}

impl Load {
    pub(super) fn hear(&self, at: Moment) {
        self.heard.store(at.as_nanos(), Ordering::Relaxed);
    }

    /// A request without an answer only lacked time.
    pub(crate) fn answers(&self, now: Moment, node_deadline: Duration) -> bool {
        let heard = self.heard.load(Ordering::Relaxed);
        heard > 0 && now.since(Moment::from_nanos(heard)) < AWAY + node_deadline
    }

    pub(super) fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::SeqCst)
    }

    pub(crate) fn owed(&self) -> usize {
        self.owed.load(Ordering::SeqCst)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.unanswered() == 0 && self.owed() == 0
    }
}

#[derive(Debug)]
struct Counted {
    load: Arc<Load>,
    part: fn(&Load) -> &AtomicUsize,
}

impl Counted {
    fn new(load: &Arc<Load>, part: fn(&Load) -> &AtomicUsize) -> Self {
        part(load).fetch_add(1, Ordering::SeqCst);
        Self { load: Arc::clone(load), part }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.part)(&self.load).fetch_sub(1, Ordering::SeqCst);
    }
}

/// The caller always gets an answer, even if the queue's runtime ends or the node's code panics. An
/// *owed* request is repeated (renewal 6).
pub(crate) struct Pending {
    pub(super) op: Op,
    pub(super) deadline: Moment,
    node: usize,
    inbox: Option<Arc<Inbox>>,
    owed_until: Option<Moment>,
    /// Dropped as soon as an answer shows that the node has no grant of the attempt.
    undoes: Option<SharedGrant>,
    unanswered: Option<Counted>,
    owed: Option<Counted>,
}

impl Pending {
    pub(crate) fn new(op: Op, deadline: Moment, node: usize, inbox: &Arc<Inbox>) -> Self {
        let mut pending = Self::silent(op, deadline, node);
        pending.inbox = Some(Arc::clone(inbox));
        pending
    }

    pub(crate) fn release(
        op: Op,
        deadline: Moment,
        node: usize,
        undoes: Option<&SharedGrant>,
        until: Moment,
    ) -> Self {
        let mut pending = Self::silent(op, deadline, node).owed(until);
        pending.undoes = undoes.cloned();
        pending
    }

    fn silent(op: Op, deadline: Moment, node: usize) -> Self {
        let (inbox, undoes, owed_until) = (None, None, None);
        Self { op, deadline, node, inbox, owed_until, undoes, unanswered: None, owed: None }
    }

    pub(crate) fn owed(mut self, until: Moment) -> Self {
        self.owed_until = Some(until);
        self
    }

    pub(super) fn count(&mut self, load: &Arc<Load>) {
        self.unanswered = Some(Counted::new(load, |load| &load.unanswered));
        self.owed = self.owed_until.map(|_| Counted::new(load, |load| &load.owed));
    }

    pub(super) fn is_owed(&self) -> bool {
        self.owed_until.is_some()
    }

    pub(super) fn is_needed(&self, now: Moment) -> bool {
        self.owed_until.is_some_and(|until| now < until)
            && self.undoes.as_ref().is_none_or(|grant| grant.lock().may_hold(self.node))
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.inbox.is_some()
    }

    fn may_overtake(&self) -> bool {
        self.op.is_extension()
            && self.inbox.as_ref().is_some_and(|inbox| inbox.may_overtake(self.node))
    }

    pub(super) fn doer(&self) -> Option<OwnerToken> {
        self.op.owner().filter(|_| self.is_awaited() && !self.op.is_undo()).copied()
    }

    pub(super) fn level(&self) -> Durability {
        self.inbox.as_ref().map_or(Durability::Primary, |inbox| inbox.level())
    }

    pub(super) fn take_owed(&mut self) -> Option<Self> {
        let until = self.owed_until.take()?;
        let mut owed = Self::silent(self.op.clone(), self.deadline, self.node).owed(until);
        (owed.undoes, owed.owed) = (self.undoes.take(), self.owed.take());
        Some(owed)
    }

    pub(super) fn answer(mut self, reply: Answer, origin: &Origin) {
        self.post(reply, origin);
    }

    pub(super) fn awaits_replicas(&self) {
        if let Some(inbox) = &self.inbox {
            inbox.awaits_replicas(self.node);
        }
    }

    fn post(&mut self, reply: Answer, origin: &Origin) {
        if let Some(inbox) = self.inbox.take() {
            inbox.post(self.node, reply, origin, self.op.is_undo());
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.is_awaited() {
            let detail = "the task of this node's queue ended; the next call starts another";
            let error = NodeError::maybe_executed(NodeFault::Disconnected, detail);
            self.post(Err(error), &Origin::default());
        }
    }
}

/// Renewals are sent before all other requests (renewal 12), but an extension stays behind the
/// acquire of its lease until that is answered. None can overtake the release (renewal 7).
pub(super) struct Queues {
    renewals: Sender<Pending>,
    others: Sender<Pending>,
}

impl Queues {
    pub(super) fn new(places: usize) -> (Self, Incoming) {
        let ((renewals, first), (others, rest)) = (channel(places), channel(places));
        let incoming = Incoming { renewals: first, others: rest, renewal: None, other: None };
        (Self { renewals, others }, incoming)
    }

    pub(super) fn of(&self, pending: &Pending) -> &Sender<Pending> {
        if pending.may_overtake() { &self.renewals } else { &self.others }
    }
}

pub(super) struct Incoming {
    renewals: Receiver<Pending>,
    others: Receiver<Pending>,
    renewal: Option<Pending>,
    other: Option<Pending>,
}

impl Incoming {
    pub(super) fn len(&self) -> usize {
        let taken = usize::from(self.renewal.is_some()) + usize::from(self.other.is_some());
        taken + self.renewals.len() + self.others.len()
    }

    pub(super) fn has_renewal(&self) -> bool {
        self.renewal.is_some() || !self.renewals.is_empty()
    }

    pub(super) fn next(&mut self) -> Option<Pending> {
        let renewal = self.renewal.take().or_else(|| self.renewals.try_recv().ok());
        renewal.or_else(|| self.other.take()).or_else(|| self.others.try_recv().ok())
    }

    /// Returns false if the queue was dropped and no request is left. Cancel safe: only the poll
    /// that returns takes a request.
    pub(super) async fn wait(&mut self) -> bool {
        if self.renewal.is_some() || self.other.is_some() {
            return true;
        }
        tokio::select! {
            biased;
            // `others` may still contain releases.
            Some(job) = self.renewals.recv() => self.renewal = Some(job),
            job = self.others.recv() => self.other = job,
        }
        self.renewal.is_some() || self.other.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::LockKeys;
    use crate::op::{LockMode, Reply};
    use crate::quorum::grant::Grant;
    use crate::sync::SyncMutex;
    use crate::time::Moment;
    use crate::token::{FencingToken, OwnerToken};

    fn pending(op: Op, inbox: &Arc<Inbox>) -> Pending {
        Pending::new(op, Moment::default(), 0, inbox)
    }

    fn extension(inbox: &Arc<Inbox>) -> Pending {
        let owner = OwnerToken::from_random(7);
        let (token, ttl) = (FencingToken::new(1), std::time::Duration::from_secs(1));
        let keys = LockKeys::new("k");
        let op = Op::Extend {
            mode: LockMode::Exclusive,
            keys,
            owner,
            ttl,
            token,
            meta: None,
            reassert: None,
        };
        pending(op, inbox)
    }

    fn look() -> Pending {
        let op = Op::Inspect { keys: LockKeys::new("k"), wait: false };
        pending(op, &Inbox::new(1))
    }

    #[tokio::test]
    async fn renewals_leave_first_and_the_rest_when_the_handle_is_gone() {
        let (queues, mut incoming) = Queues::new(8);
        let send = |job: Pending| assert!(queues.of(&job).try_send(job).is_ok());
        let grant =
            Arc::new(SyncMutex::new(Grant::new(1, LockMode::Exclusive, Durability::Primary)));
        let round = |number| Inbox::of(&grant, number, Moment::default());
        let acquire = round(0);
        let renewal = || {
            let number = grant.lock().next_round();
            extension(&round(number))
        };
        send(look());
        assert!(incoming.wait().await, "it is taken out");
        assert!(!incoming.has_renewal());
        [renewal(), extension(&acquire), look()].into_iter().for_each(send);
        assert!(!incoming.has_renewal());
        acquire.post(0, Ok(Reply::Done), &Origin::default(), false);
        [renewal(), renewal()].into_iter().for_each(send);
        drop(queues);
        assert_eq!((incoming.len(), incoming.has_renewal()), (6, true));
        let order = [(); 6].map(|()| incoming.next().map(|pending| pending.op.is_extension()));
        assert_eq!(order, [true, true, false, true, true, false].map(Some));
        assert!(!incoming.wait().await, "nothing comes any more");
    }
}
