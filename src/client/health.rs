//! The health check of the nodes. The check tries to acquire a lock on every node, and asks if the
//! node can recognise a new idempotency key. The answers are for readiness probes, and do not count
//! as votes.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::claim::DataLossTerms;
use super::undo::Undo;
use crate::client::Core;
use crate::client::reply_collector::ReplyCollector;
use crate::error::{NodeError, NodeFault, NodeOutcome};
use crate::name::{LockKeys, record_key};
use crate::op::{LockMode, Loss, Op, Reply};
use crate::time::Moment;
use crate::token::OwnerToken;

/// Name of the trial lock, behind the handle's prefix. If another client holds the trial lock, that
/// also shows that the node grants locks.
const NAME: &str = "palisade:health";
/// Ttl of the trial lock. If the release is lost, the lock ends by this ttl.
const TTL: Duration = Duration::from_secs(1);

/// Answer of one node to a health check.
pub(crate) struct NodeReport {
    pub(crate) name: Arc<str>,
    /// Answer to the request for the trial lock.
    pub(crate) lock: NodeOutcome,
    /// Time for which the node cannot decide if an idempotency key without `created_at` is new,
    /// because the node may have lost a claim of the key. Zero if the node can decide. An error if
    /// the node did not answer.
    pub(crate) forgets: Result<Duration, NodeError>,
    /// Ranges of writes that the node may have lost, from the node's last answer.
    pub(crate) losses: Arc<[Loss]>,
}

impl Core {
    /// Acquires and releases a trial lock on each node, and looks up an unused idempotency key on
    /// each node. The lookup uses the parameters `loss` and `retention` of the caller's keys. Each
    /// node must answer before its deadline.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the lock is released in the background.
    pub(crate) async fn health(&self, retention: Duration, loss: DataLossTerms) -> Vec<NodeReport> {
        let Some(_operation) = self.closing.enter() else {
            let error = NodeError::not_executed(NodeFault::Closed, "the handle was closed");
            let report = |name: &Arc<str>| NodeReport {
                name: Arc::clone(name),
                lock: NodeOutcome::Failed(error.clone()),
                forgets: Err(error.clone()),
                losses: [].into(),
            };
            return self.names.iter().map(report).collect();
        };
        if let Err(outcomes) = self.timer() {
            let all = self.names.iter().cloned().zip(outcomes);
            let forgets = || Err(no_answer());
            let report =
                |(name, lock)| NodeReport { name, lock, forgets: forgets(), losses: [].into() };
            return all.map(report).collect();
        }
        let (now, owner) = (self.env.now(), OwnerToken::from_random(self.env.random()));
        let deadline = self.node_deadline(now);
        let keys = LockKeys::prefixed(&self.config.prefix, NAME);
        let proposal = self.proposal(keys.lock());
        let (locks, records) = (ReplyCollector::new(self.n()), ReplyCollector::new(self.n()));
        // The drop of `_undo` releases the trial lock at every return from here on.
        let _undo = Undo {
            core: self,
            op: Op::Release { mode: LockMode::Exclusive, keys: keys.clone(), owner, meta: false },
            until: self.forgotten_at(now, TTL),
            replies: Arc::clone(&locks),
            armed: true,
        };
        let acquire = Op::Acquire {
            mode: LockMode::Exclusive,
            keys: keys.clone(),
            owner,
            ttl: TTL,
            proposal,
            if_held: None,
        };
        self.send_all(acquire, deadline, &locks);
        let key = record_key(&self.config.prefix, "palisade", "health");
        let DataLossTerms { born, accepted } = loss;
        let look = Op::Lookup { key, retention, fingerprint: None, born, accepted };
        self.send_all(look, deadline, &records);
        let name = |name: &Arc<str>| NodeReport {
            name: Arc::clone(name),
            lock: NodeOutcome::no_answer(),
            forgets: Err(no_answer()),
            losses: [].into(),
        };
        let mut reports: Vec<NodeReport> = self.names.iter().map(name).collect();
        let by = now + self.patience();
        for _ in 0..self.n() {
            let Some((node, reply)) = self.mail(&locks, by).await else { break };
            if let Ok(Reply::Granted { fence }) = &reply {
                self.saw(keys.lock(), Some(*fence), proposal);
            }
            reports[node].lock = outcome(reply);
        }
        for _ in 0..self.n() {
            let Some((node, reply)) = self.mail(&records, by).await else { break };
            reports[node].forgets = match reply {
                Ok(Reply::Record { unsure, .. }) => Ok(unsure),
                Ok(_) => Ok(Duration::ZERO),
                Err(e) => Err(e),
            };
        }
        for (report, queue) in reports.iter_mut().zip(&self.queues) {
            report.losses = queue.losses();
        }
        reports
    }

    /// Sends the op to every node, and returns each node's name and answer. If a node has not
    /// answered at its deadline, its answer is an error.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the op may still be executed on nodes.
    pub(crate) async fn ask_each(&self, op: &Op) -> Vec<(Arc<str>, Result<Reply, NodeError>)> {
        let mut all: Vec<_> =
            self.names.iter().map(|name| (Arc::clone(name), Err(no_answer()))).collect();
        let Some(_operation) = self.closing.enter() else { return all };
        if self.timer().is_err() {
            return all;
        }
        let (now, answers) = (self.env.now(), ReplyCollector::new(self.n()));
        self.send_all(op.clone(), self.node_deadline(now), &answers);
        let by = now + self.patience();
        for _ in 0..self.n() {
            let Some((node, reply)) = self.mail(&answers, by).await else { break };
            all[node].1 = reply;
        }
        all
    }

    /// Returns the next answer and the number of its node. Returns `None` if no answer arrives
    /// before `by`.
    async fn mail(
        &self,
        replies: &ReplyCollector,
        by: Moment,
    ) -> Option<(usize, Result<Reply, NodeError>)> {
        let left = by.since(self.env.now());
        timeout(left, poll_fn(|cx| replies.poll_recv(cx))).await.ok()
    }
}

/// Returns the outcome of a request that only shows if the node grants.
pub(super) fn outcome(reply: Result<Reply, NodeError>) -> NodeOutcome {
    match reply {
        Ok(Reply::Granted { .. }) => NodeOutcome::Granted,
        Ok(Reply::Held { remaining, .. } | Reply::Queued { remaining, .. }) => {
            NodeOutcome::Held(remaining)
        }
        Ok(Reply::Quarantined { remaining, began, .. }) => {
            NodeOutcome::quarantined(remaining, began)
        }
        Ok(_) => NodeOutcome::Refused,
        Err(e) => NodeOutcome::Failed(e),
    }
}

fn no_answer() -> NodeError {
    NodeError::maybe_executed(NodeFault::Timeout, "")
}
