//! The answers are for readiness probes, and are no votes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;

use super::claim::DataLossTerms;
use super::handle_closed;
use super::release::Undo;
use crate::client::Core;
use crate::client::round::Inbox;
use crate::durability::Durability;
use crate::error::{NodeError, NodeFault, NodeOutcome};
use crate::name::{LockKeys, record_key};
use crate::op::{LockMode, Loss, Op, Reply};
use crate::quorum::Answer;
use crate::token::OwnerToken;

/// If another client holds this lock, that also shows that the node grants locks.
const NAME: &str = "palisade:health";
const TTL: Duration = Duration::from_secs(1);

pub(crate) struct NodeReport {
    pub(crate) name: Arc<str>,
    pub(crate) lock: NodeOutcome,
    /// Time for which the node cannot decide whether a key without `created_at` is new, and the
    /// losses that are the cause. Zero if it can.
    pub(crate) forgets: Result<(Duration, Vec<Loss>), NodeError>,
    pub(crate) losses: Arc<[Loss]>,
    pub(crate) no_failover: Option<&'static str>,
    pub(crate) durable_refuted: bool,
    pub(crate) troubles: Option<Arc<str>>,
}

impl Core {
    pub(crate) async fn health(&self, retention: Duration, loss: DataLossTerms) -> Vec<NodeReport> {
        let report = |name: &Arc<str>, lock, forgets| NodeReport {
            name: Arc::clone(name),
            lock,
            forgets,
            losses: [].into(),
            no_failover: None,
            durable_refuted: false,
            troubles: None,
        };
        let Some(_operation) = self.closing.enter() else {
            let closed = handle_closed();
            let report =
                |name| report(name, NodeOutcome::Failed(closed.clone()), Err(closed.clone()));
            return self.names.iter().map(report).collect();
        };
        if let Err(outcomes) = self.timer() {
            let all = self.names.iter().zip(outcomes);
            return all.map(|(name, lock)| report(name, lock, Err(no_answer()))).collect();
        }
        let (now, owner) = (self.env.now(), OwnerToken::from_random(self.env.random()));
        let keys = LockKeys::prefixed(&self.config.prefix, NAME);
        let proposal = self.proposal(keys.lock());
        let grant = self.grant(LockMode::Exclusive, Durability::Primary);
        let (locks, records) = (Inbox::of(&grant, 0, now), Inbox::new(self.n()));
        // From here on, every return drops `_undo`, which releases the trial lock.
        let _undo = Undo {
            core: self,
            op: Op::Release { mode: LockMode::Exclusive, keys: keys.clone(), owner, meta: false },
            until: self.forgotten_at(now, TTL),
            grant,
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
        let key = record_key(&self.config.prefix, "palisade", "health");
        let DataLossTerms { born, accepted } = loss;
        let lookup = Op::Lookup { key, retention, fingerprint: None, born, accepted };
        let n = self.n();
        let asks = join(self.answers(acquire, n, &locks), self.answers(lookup, n, &records));
        let (locks, records) = asks.await;
        let mut reports = Vec::with_capacity(n);
        for (node, (lock, record)) in locks.into_iter().zip(records).enumerate() {
            if let Some(Ok(Reply::Granted { fence })) = &lock {
                self.saw(keys.lock(), Some(*fence), proposal);
            }
            let forgets = record.unwrap_or(Err(no_answer())).map(|reply| match reply {
                Reply::Record { unsure, losses, .. } => (unsure, losses),
                _ => (Duration::ZERO, Vec::new()),
            });
            let lock = lock.as_ref().map_or_else(NodeOutcome::no_answer, NodeOutcome::of);
            let queue = &self.queues[node];
            let (losses, no_failover) = (queue.losses(), queue.node().no_failover());
            let troubles = queue.node().troubles();
            let report = report(&self.names[node], lock, forgets);
            let durable_refuted = queue.durable_refuted();
            reports.push(NodeReport { losses, no_failover, durable_refuted, troubles, ..report });
        }
        reports
    }

    pub(crate) async fn ask_each(&self, op: &Op) -> Vec<(Arc<str>, Answer)> {
        let mut answers = Vec::new();
        let operation = self.closing.enter();
        if operation.is_some() && self.timer().is_ok() {
            answers = self.answers(op.clone(), self.n(), &Inbox::new(self.n())).await;
        }
        answers.resize_with(self.n(), || None);
        let answers = answers.into_iter().map(|answer| answer.unwrap_or(Err(no_answer())));
        self.names.iter().cloned().zip(answers).collect()
    }
}

fn no_answer() -> NodeError {
    NodeError::maybe_executed(NodeFault::Timeout, "")
}
