//! Claims of idempotency keys: claiming, giving a claim back, storing a result and looking up a
//! record (idempotency 1 to 4).
//!
//! Cancellation: until the handler is about to start, a dropped attempt gives back whatever nodes
//! granted. From then on a drop gives nothing back: the claim lapses with its lease, so that a
//! crash of the handler stays visible.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::Instrument as _;

use crate::client::Core;
use crate::client::lease::{Lease, Subject};
use crate::client::node_queue::Pending;
use crate::client::reply_collector::ReplyCollector;
use crate::client::round::Round;
use crate::client::undo::Undo;
use crate::durability::Durability;
use crate::error::Resource;
use crate::op::{Claim, ClaimEnd, FingerprintBytes, Op, RecordKey};
use crate::quorum::complete::{Complete, Found, Look, Unstored};
use crate::quorum::record::{Denied, Promise, Record, Refusal};
use crate::span::operation;
use crate::time::{Moment, valid_until};
use crate::token::{FencingToken, OwnerToken};

/// Time after the end of a claim's lease for which giving the claim back is still repeated at a
/// node that does not answer. No ttl does this work: without the request the node counts the
/// attempt for as long as it keeps the record.
const OWED: Duration = Duration::from_secs(30);

/// Parameters by which a node decides if data that it lost may have contained a claim of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DataLossTerms {
    /// Earliest time at which any copy of the request was made, in milliseconds since 1970; `None`
    /// if it is not known. Data that are older than the request contain no claim of its key.
    pub(crate) born: Option<u64>,
    /// Longest proven loss of a node's data that the caller accepts, so that it counts as none.
    /// Zero: no loss is accepted.
    pub(crate) accepted: Duration,
}

/// Parameters of a claim of one idempotency key.
#[derive(Clone, Debug)]
pub(crate) struct ClaimTerms {
    pub(crate) key: RecordKey,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
    pub(crate) fingerprint: Option<FingerprintBytes>,
    pub(crate) durability: Durability,
    /// Parameters by which a node decides if data that it lost may have contained a claim of the
    /// key.
    pub(crate) loss: DataLossTerms,
    pub(crate) created: Option<u64>,
    /// True if a node on which another owner's lease runs is to send a hint when that owner stores
    /// a result or gives the claim back.
    pub(crate) wait: bool,
    /// True if an event is to report each node that cannot tell if keys without `created_at` are
    /// new, and for how long it cannot.
    pub(crate) reports_forgotten: bool,
}

/// A claim that this caller holds. Dropping it gives the claim back, unless [`begin`](Self::begin)
/// was called.
#[derive(Debug)]
pub(crate) struct Held {
    core: Arc<Core>,
    pub(crate) lease: Arc<Lease>,
    begun: AtomicBool,
}

impl Held {
    /// Records that the handler is about to start. From then on a drop does not give the claim
    /// back.
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::Release);
    }

    /// Starts the automatic renewal of the claim's lease.
    pub(crate) fn keep(&self) {
        self.lease.count();
        self.core.renewer.add(&self.core, &self.lease);
    }

    /// Stops the automatic renewal. The claim is still held, so that it can be renewed once more
    /// when its result is stored.
    pub(crate) fn rest(&self) {
        self.core.renewer.remove(&self.lease);
    }

    /// Ends the claim's lease for its holder, without a request to the nodes. Returns true in the
    /// first call only.
    pub(crate) fn stop(&self) -> bool {
        let first = self.lease.end(self.core.env.now());
        self.core.renewer.remove(&self.lease);
        first
    }

    /// Gives the claim back on every node that may have it. The nodes then do not count the
    /// attempt.
    ///
    /// # Cancellation safety
    /// As for [`end`](Self::end).
    pub(crate) async fn give_back(self) {
        self.end(ClaimEnd::Undone).await;
    }

    /// Ends the claim on every node that may have it, so that other callers need not wait for the
    /// end of its lease. Waits for the answers of a majority only; the node queues repeat the
    /// request at the other nodes.
    ///
    /// # Cancellation safety
    /// If this future is dropped, the requests are still sent.
    pub(crate) async fn end(self, end: ClaimEnd) {
        self.stop();
        if let Some(op) = self.unclaim(end) {
            self.core.take_back(op, &self.lease, self.owed_until()).await;
        }
    }

    fn unclaim(&self, end: ClaimEnd) -> Option<Op> {
        match &self.lease.subject {
            Subject::Claim { key, .. } => {
                Some(Op::Unclaim { key: Arc::clone(key), owner: self.lease.owner, end })
            }
            Subject::Lock { .. } => None,
        }
    }

    fn owed_until(&self) -> Moment {
        self.core.env.now() + self.lease.ttl + OWED
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.stop()
            && !self.begun.load(Ordering::Acquire)
            && let Some(op) = self.unclaim(ClaimEnd::Undone)
        {
            self.core.undo(&op, &self.lease.replies, self.owed_until());
        }
    }
}

impl ClaimTerms {
    fn claim(&self, owner: OwnerToken, proposal: u64, force: bool) -> Op {
        Op::Claim(Claim {
            key: Arc::clone(&self.key),
            owner,
            lease: self.lease,
            retention: self.retention,
            proposal,
            fingerprint: self.fingerprint,
            force,
            born: self.loss.born,
            accepted: self.loss.accepted,
            // A claim with `force`, for a repair or for an operator's decision, is granted however
            // old the request is.
            created: self.created.filter(|_| !force),
            wait: self.wait && !force,
        })
    }
}

impl Core {
    /// Makes one attempt to claim a key, with a fresh owner token. With `force` a node grants the
    /// claim even if it has a result for the key.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        terms: &ClaimTerms,
        force: bool,
    ) -> Result<(Held, Promise), Denied> {
        let operation = operation!("claim", of = %Resource::Key(Arc::clone(&terms.key)));
        let result = self.claiming(terms, force).instrument(operation.span()).await;
        let outcome = match &result {
            Ok((held, _)) => {
                operation.token(held.lease.token);
                "granted"
            }
            Err(Denied::Replay(_) | Denied::Repair(_)) => "stored",
            Err(Denied::Refused(refusal)) => match refusal {
                Refusal::InFlight { .. } => "in_flight",
                Refusal::Contended { .. } => "contended",
                Refusal::Mismatch => "mismatch",
                Refusal::TooOld => "too_old",
                Refusal::NoQuorum(_) => "no_quorum",
            },
        };
        self.meters.claims.add(outcome, 1);
        operation.over(outcome);
        result
    }

    async fn claiming(
        self: &Arc<Self>,
        terms: &ClaimTerms,
        force: bool,
    ) -> Result<(Held, Promise), Denied> {
        let timer = self.timer().map_err(|all| Denied::Refused(Refusal::NoQuorum(all)))?;
        let owner = OwnerToken::from_random(self.env.random());
        let sent = self.env.now();
        let until = valid_until(sent, terms.lease, self.config.drift);
        let replies = ReplyCollector::at(self.n(), terms.durability, until);
        let key = || Arc::clone(&terms.key);
        let raise = Op::RaiseClaim { key: key(), owner, token: FencingToken::new(0) };
        let mut machine = Record::new(self.n(), sent, until, self.patience(), raise);
        let proposal = self.proposal(&terms.key);
        let mut undo = Undo {
            core: self,
            op: Op::Unclaim { key: key(), owner, end: ClaimEnd::Undone },
            until: sent + terms.lease + OWED,
            replies: Arc::clone(&replies),
            armed: true,
        };
        let claim = terms.claim(owner, proposal, force);
        self.send_all(claim, self.node_deadline(sent).min(until), &replies);
        let round = Round { replies: &replies, timer, until, of: None };
        let outcome = self.run(sent, &mut machine, round).await;
        self.saw(&terms.key, machine.largest(), proposal);
        // If the claim was denied, the return drops `undo`, which gives back what nodes granted
        // before the caller claims again.
        let promise = outcome?;
        undo.armed = false;
        if promise.forgotten.is_some() && terms.reports_forgotten {
            self.keys_forgotten(machine.forgetful());
        }
        let subject = Subject::Claim {
            key: key(),
            retention: terms.retention,
            fingerprint: terms.fingerprint,
        };
        let ballot = (owner, promise.token);
        let meters = Arc::clone(&self.meters.claimed);
        let span = (terms.lease, until);
        let lease = Lease::new(subject, ballot, span, None, replies, None, meters);
        let (core, lease) = (Arc::clone(self), Arc::new(lease));
        Ok((Held { core, lease, begun: AtomicBool::new(false) }, promise))
    }

    /// Stores a result under the claim's ballot. Nodes that fail are asked again, for four
    /// `node_deadline`s in all. A result is stored even if the lease was lost, because the nodes
    /// decide by the ballot alone (idempotency 2).
    ///
    /// A node that has begun a new data history (by a failover, a restart or a loss of data)
    /// accepts a result only once the claim was renewed in that history. Before that it refuses the
    /// result as if it had promised a higher ballot. So a claim that is still held is renewed once
    /// after a refusal, and the nodes are asked again.
    ///
    /// # Cancellation safety
    /// If this future is dropped, the requests are still sent and the node queues repeat them, so
    /// the result is stored if that is possible.
    pub(crate) async fn complete(
        &self,
        lease: &Arc<Lease>,
        value: Option<&Arc<[u8]>>,
    ) -> Result<(), Unstored> {
        let operation = operation!("complete", of = %lease.resource());
        operation.token(lease.token);
        let result = self.completing(lease, value).instrument(operation.span()).await;
        operation.over(match &result {
            Ok(()) => "stored",
            Err(Unstored { overtaken: true, .. }) => "overtaken",
            Err(_) => "no_quorum",
        });
        result
    }

    async fn completing(
        &self,
        lease: &Arc<Lease>,
        value: Option<&Arc<[u8]>>,
    ) -> Result<(), Unstored> {
        let unknown = |nodes| Unstored { overtaken: false, nodes };
        let Subject::Claim { key, retention, fingerprint } = &lease.subject else {
            return Err(unknown(Vec::new()));
        };
        let op = Op::Complete {
            key: Arc::clone(key),
            owner: lease.owner,
            token: lease.token,
            value: value.cloned(),
            retention: *retention,
            fingerprint: *fingerprint,
        };
        self.accept(lease, op).await
    }

    /// Stores the list of the steps that a handler has finished, in the same way as a result.
    ///
    /// # Cancellation safety
    /// As for [`complete`](Self::complete).
    pub(crate) async fn store_steps(
        &self,
        lease: &Arc<Lease>,
        list: &Arc<[u8]>,
    ) -> Result<(), Unstored> {
        let Subject::Claim { key, retention, fingerprint } = &lease.subject else {
            return Err(Unstored { overtaken: false, nodes: Vec::new() });
        };
        let op = Op::Steps {
            key: Arc::clone(key),
            owner: lease.owner,
            token: lease.token,
            list: Arc::clone(list),
            retention: *retention,
            fingerprint: *fingerprint,
        };
        self.accept(lease, op).await
    }

    /// Asks all nodes to accept `op` (phase 2 of consensus on the key). The op may be repeated,
    /// because it is idempotent by ballot.
    async fn accept(&self, lease: &Arc<Lease>, op: Op) -> Result<(), Unstored> {
        let unknown = |nodes| Unstored { overtaken: false, nodes };
        let mut now = self.env.now();
        let end = now + 4 * self.config.node_deadline;
        let replies = ReplyCollector::at(self.n(), lease.durability().level, end);
        for node in 0..self.n() {
            let request = Pending::new(op.clone(), self.node_deadline(now), node, &replies);
            self.queues[node].submit(request.owed(now + lease.ttl));
        }
        let mut machine = Complete::new(self.n(), op, end);
        loop {
            let timer = self.timer().map_err(unknown)?;
            let until = end + self.config.node_deadline;
            let round = Round { replies: &replies, timer, until, of: None };
            let stored = self.run(now, &mut machine, round).await;
            now = self.env.now();
            if stored.is_ok() {
                lease.keep(replies.achieved());
            } else if machine.take_refusal() {
                if lease.is_valid(now) {
                    // It does not matter if the renewal succeeds, because each node then decides
                    // about `op` by the ballot.
                    let _ = self.extend(lease).await;
                    now = self.env.now();
                    machine.renewed(now);
                }
                continue;
            }
            return stored;
        }
    }

    /// Reads the record of a key on all nodes. A result counts only if it is as durable as `terms`
    /// ask for.
    ///
    /// # Cancellation safety
    /// May be dropped at any time, because it only reads.
    pub(crate) async fn look(&self, terms: &ClaimTerms) -> Found {
        let timer = match self.timer() {
            Ok(timer) => timer,
            Err(outcomes) => return Found::NoQuorum(outcomes),
        };
        let now = self.env.now();
        let deadline = self.node_deadline(now);
        let by = deadline + self.config.node_deadline;
        let replies = ReplyCollector::at(self.n(), terms.durability, by);
        let look = Op::Lookup {
            key: Arc::clone(&terms.key),
            retention: terms.retention,
            fingerprint: terms.fingerprint,
            born: terms.loss.born,
            accepted: terms.loss.accepted,
        };
        self.send_all(look, deadline, &replies);
        let round = Round { replies: &replies, timer, until: by, of: None };
        self.run(now, &mut Look::new(self.n(), by), round).await
    }
}
