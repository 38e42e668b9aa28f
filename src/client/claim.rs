//! Claims of idempotency keys (idempotency 1 to 4). An attempt that is dropped before the handler
//! starts gives back all grants; one that is dropped later gives nothing back, so that the nodes
//! keep the record of an attempt that may have had an effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::Instrument as _;

use crate::client::Core;
use crate::client::lease::{Lease, Subject};
use crate::client::node_queue::Pending;
use crate::client::release::Undo;
use crate::client::round::{Inbox, Round};
use crate::durability::Durability;
use crate::error::Resource;
use crate::op::{Ballot, Claim, ClaimEnd, FingerprintBytes, LockMode, Op, RecordKey};
use crate::quorum::claim::{Denied, Promise, Record, Refusal};
use crate::quorum::complete::{Complete, Found, Look, Unstored};
use crate::quorum::release::Found as Taken;
use crate::span::operation;
use crate::time::{Moment, valid_until};
use crate::token::{FencingToken, OwnerToken};

/// Time after a claim's lease for which the request that gives it back is repeated: without it, the
/// node counts the attempt for as long as it keeps the record.
const OWED: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DataLossTerms {
    /// Milliseconds since 1970.
    pub(crate) born: Option<u64>,
    pub(crate) accepted: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct ClaimTerms {
    pub(crate) key: RecordKey,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
    pub(crate) fingerprint: Option<FingerprintBytes>,
    pub(crate) durability: Durability,
    pub(crate) loss: DataLossTerms,
    pub(crate) created: Option<u64>,
    pub(crate) wait: bool,
    pub(crate) reports_forgotten: bool,
}

/// Dropping this value gives the claim back, unless [`begin`](Self::begin) was called before.
#[derive(Debug)]
pub(crate) struct Held {
    core: Arc<Core>,
    pub(crate) lease: Arc<Lease>,
    pub(crate) ballot: Arc<Ballot>,
    begun: AtomicBool,
}

impl Held {
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::Release);
    }

    pub(crate) fn keep(&self) {
        self.lease.count();
        self.core.renewer.add(&self.core, &self.lease);
    }

    pub(crate) fn rest(&self) {
        self.core.renewer.remove(&self.lease);
    }

    pub(crate) fn stop(&self) -> bool {
        let first = self.lease.end(self.core.env.now());
        self.core.renewer.remove(&self.lease);
        first
    }

    pub(crate) async fn give_back(self) -> bool {
        self.end(ClaimEnd::Undone).await
    }

    /// Returns true if another attempt may have claimed the key before. If the future is dropped,
    /// the requests are still sent.
    pub(crate) async fn end(self, end: ClaimEnd) -> bool {
        let held = self.lease.is_valid(self.core.env.now());
        self.stop();
        let taken = self.core.take_back(self.unclaim(end), &self.lease, self.owed_until()).await;
        match taken {
            // Every other claim has a majority, too, and one of these nodes would know of it.
            Taken::Released => false,
            Taken::Other => true,
            Taken::Gone | Taken::Unknown(_) => !held,
        }
    }

    fn unclaim(&self, end: ClaimEnd) -> Op {
        Op::Unclaim { key: Arc::clone(&self.ballot.key), owner: self.ballot.owner, end }
    }

    fn owed_until(&self) -> Moment {
        self.core.env.now() + self.lease.ttl + OWED
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.stop() && !self.begun.load(Ordering::Acquire) {
            let op = self.unclaim(ClaimEnd::Undone);
            self.core.undo(&op, Some(&self.lease.grant), self.owed_until());
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
            // To repair a stored result, and after an operator's decision.
            created: self.created.filter(|_| !force),
            wait: self.wait && !force,
        })
    }
}

impl Core {
    /// With `force`, a node grants the claim even if it has a result for the key.
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
        let grant = self.grant(LockMode::Exclusive, terms.durability);
        let inbox = Inbox::of(&grant, 0, until);
        let key = || Arc::clone(&terms.key);
        let raise = Op::RaiseClaim { key: key(), owner, token: FencingToken::new(0) };
        let mut machine = Record::new(self.n(), sent, until, self.patience(), raise);
        let proposal = self.proposal(&terms.key);
        let mut undo = Undo {
            core: self,
            op: Op::Unclaim { key: key(), owner, end: ClaimEnd::Undone },
            until: sent + terms.lease + OWED,
            grant: Arc::clone(&grant),
            armed: true,
        };
        let claim = terms.claim(owner, proposal, force);
        self.send_all(claim, self.node_deadline(sent).min(until), &inbox);
        let round = Round { inbox: &inbox, timer, until, of: None };
        let outcome = self.run(sent, &mut machine, round).await;
        self.saw(&terms.key, machine.largest(), proposal);
        // An error drops `undo`, which gives the grants back before the caller claims again.
        let promise = outcome?;
        undo.armed = false;
        if promise.forgotten.is_some() && terms.reports_forgotten {
            self.keys_forgotten(machine.forgetful());
        }
        let (token, meters) = (promise.token, Arc::clone(&self.meters.claimed));
        let (retention, fingerprint) = (terms.retention, terms.fingerprint);
        let ballot = Arc::new(Ballot { key: key(), owner, token, retention, fingerprint });
        let subject = Subject::Claim(Arc::clone(&ballot));
        let replicas = inbox.replicas();
        grant.lock().durability.replicas = replicas;
        let lease = Lease::new(subject, owner, token, terms.lease, until, grant, meters);
        let (core, lease) = (Arc::clone(self), Arc::new(lease));
        Ok((Held { core, lease, ballot, begun: AtomicBool::new(false) }, promise))
    }

    /// Stores a result, even if the lease was lost: the nodes compare only ballots (idempotency 2).
    /// Repeats the request to nodes that fail, for four `node_deadline`s in total, also if the
    /// future is dropped. After a refusal it renews the claim once, if it is still held, and asks
    /// again: a node with a new data history accepts only the result of a claim that was renewed in
    /// it.
    pub(crate) async fn complete(
        &self,
        held: &Held,
        value: Option<&Arc<[u8]>>,
    ) -> Result<(), Unstored> {
        let operation = operation!("complete", of = %held.lease.resource());
        operation.token(held.ballot.token);
        let op = Op::Complete { ballot: Ballot::clone(&held.ballot), value: value.cloned() };
        let result = self.accept(&held.lease, op).instrument(operation.span()).await;
        operation.over(match &result {
            Ok(()) => "stored",
            Err(Unstored { overtaken: true, .. }) => "overtaken",
            Err(_) => "no_quorum",
        });
        result
    }

    pub(crate) async fn store_steps(
        &self,
        lease: &Arc<Lease>,
        ballot: &Ballot,
        list: &Arc<[u8]>,
    ) -> Result<(), Unstored> {
        let op = Op::Steps { ballot: ballot.clone(), list: Arc::clone(list) };
        self.accept(lease, op).await
    }

    /// The op may be repeated: nodes recognise it by its ballot.
    async fn accept(&self, lease: &Arc<Lease>, op: Op) -> Result<(), Unstored> {
        let unknown = |nodes| Unstored { overtaken: false, nodes };
        let mut now = self.env.now();
        let end = now + 4 * self.config.node_deadline;
        let inbox = Inbox::at(self.n(), lease.durability().level);
        for node in 0..self.n() {
            let request = Pending::new(op.clone(), self.node_deadline(now), node, &inbox);
            self.queues[node].submit(request.owed(now + lease.ttl));
        }
        let mut machine = Complete::new(self.n(), op, end);
        loop {
            let timer = self.timer().map_err(unknown)?;
            let until = end + self.config.node_deadline;
            let round = Round { inbox: &inbox, timer, until, of: None };
            let stored = self.run(now, &mut machine, round).await;
            now = self.env.now();
            if stored.is_ok() {
                let replicas = inbox.replicas();
                lease.grant.lock().durability.replicas = replicas;
            } else if machine.take_refusal() {
                if lease.is_valid(now) {
                    // The result of the renewal is ignored: each node decides about `op` by its
                    // ballot alone.
                    let _ = self.extend(lease, false).await;
                    now = self.env.now();
                    machine.renewed(now);
                }
                continue;
            }
            return stored;
        }
    }

    pub(crate) async fn look(&self, terms: &ClaimTerms) -> Found {
        let look = Op::Lookup {
            key: Arc::clone(&terms.key),
            retention: terms.retention,
            fingerprint: terms.fingerprint,
            born: terms.loss.born,
            accepted: terms.loss.accepted,
        };
        let found = self.read(look, terms.durability, self.config.node_deadline, Look::new).await;
        found.unwrap_or_else(Found::NoQuorum)
    }
}
