//! Claims of idempotency keys: one attempt, giving it back, storing a result, looking
//! (idempotency 1 to 4).
//!
//! Cancellation: until the handler is about to start, whatever was granted is given back when the
//! attempt is dropped; from then on a claim is never freed, only left to lapse, so that a crash
//! stays visible.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::driver::Core;
use crate::driver::attempt::Undo;
use crate::driver::lease::{Lease, Subject};
use crate::durability::Durability;
use crate::node::mailbox::Mailbox;
use crate::op::{Claim, ClaimEnd, FingerprintBytes, Op, RecordKey, Reply, StoredRecord};
use crate::quorum::complete::{self, Complete, Found, Look};
use crate::quorum::record::{Promise, Record, Refusal, Step};
use crate::time::{Moment, valid_until};
use crate::token::OwnerToken;

/// How much longer than the lease a claim's return is owed to a node that does not answer. No ttl
/// ends what it left there: the attempt's number stays as long as the record is kept.
const OWED: Duration = Duration::from_secs(30);
/// First pause between tries to store a result; doubled each time.
const PAUSE: Duration = Duration::from_millis(10);

/// What a claim of one key says to the nodes.
#[derive(Clone, Debug)]
pub(crate) struct ClaimTerms {
    pub(crate) key: RecordKey,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
    pub(crate) fingerprint: Option<FingerprintBytes>,
    pub(crate) durability: Durability,
    /// As for [`Claim`](crate::op::Claim).
    pub(crate) born: Option<u64>,
    pub(crate) created: Option<u64>,
}

/// How one attempt to claim ended.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// Ours.
    Promised(Held, Promise),
    /// The key's result; `None` if it was too large to be kept.
    Replay(Option<Arc<[u8]>>),
    /// A result was seen that is not certain yet.
    Repair(StoredRecord),
    /// Not ours.
    Refused(Refusal),
}

/// A claim that is ours. Dropped, it is given back unless [`begin`](Self::begin) was called.
#[derive(Debug)]
pub(crate) struct Held {
    core: Arc<Core>,
    pub(crate) lease: Arc<Lease>,
    begun: AtomicBool,
}

impl Held {
    /// From here on effects may happen: the claim will not be given back by a drop.
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::Release);
    }

    /// Renews the lease until it is stopped.
    pub(crate) fn keep(&self) {
        self.core.keeper.keep(&self.core, &self.lease);
    }

    /// Not renewed by itself any more; still held, so that it can be renewed for its result's sake.
    pub(crate) fn rest(&self) {
        self.core.keeper.forget(&self.lease);
    }

    /// Ends the renewal. What the nodes hold is left as it is. True for the first caller.
    pub(crate) fn stop(&self) -> bool {
        let first = self.lease.end();
        self.core.keeper.forget(&self.lease);
        first
    }

    /// Gives the claim back on every node that may have it, so that the attempt does not count.
    ///
    /// # Cancellation safety
    /// As [`end`](Self::end).
    pub(crate) async fn give_back(self) {
        self.end(ClaimEnd::Undone).await;
    }

    /// Ends the claim on every node that may have it, instead of leaving others to wait for the end
    /// of its lease. Waits for the nodes that answer within their deadline; the lanes see to the
    /// others.
    ///
    /// # Cancellation safety
    /// Dropped, the requests are on their way.
    pub(crate) async fn end(self, end: ClaimEnd) {
        self.stop();
        let core = &self.core;
        let Some(op) = self.unclaim(end) else { return };
        let now = core.env.now();
        let deadline = core.node_deadline(now);
        let mailbox = Mailbox::taking_back(core.n());
        let mut open = 0;
        for node in (0..core.n()).filter(|node| self.lease.mailbox.may_hold(*node)) {
            core.send_owed(node, op.clone(), deadline, &mailbox, self.owed_until(now));
            open += 1;
        }
        if core.cannot_wait().is_some() {
            return;
        }
        while open > 0 && core.mail_until(&mailbox, deadline).await.1.is_some() {
            open -= 1;
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

    fn owed_until(&self, now: Moment) -> Moment {
        now + self.lease.ttl + OWED
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.stop()
            && !self.begun.load(Ordering::Acquire)
            && let Some(op) = self.unclaim(ClaimEnd::Undone)
        {
            let until = self.owed_until(self.core.env.now());
            self.core.undo(&op, &self.lease.mailbox, until);
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
            born: self.born,
            // A repair, and what an operator says, are not bound by the request's age.
            created: self.created.filter(|_| !force),
        })
    }
}

impl Core {
    /// One attempt to claim, with a fresh owner token. `force`: granted on top of a record.
    pub(crate) async fn claim(self: &Arc<Self>, terms: &ClaimTerms, force: bool) -> Claimed {
        if let Some(outcomes) = self.cannot_wait() {
            return Claimed::Refused(Refusal::NoQuorum(outcomes));
        }
        let owner = OwnerToken::from_random(self.env.random());
        let mailbox = Mailbox::at(self.n(), terms.durability);
        let sent = self.env.now();
        let until = valid_until(sent, terms.lease, self.config.drift);
        let mut machine = Record::new(self.n(), sent, until, self.patience());
        let proposal = self.proposal(&terms.key);
        let mut undo = Undo {
            core: self,
            op: Op::Unclaim { key: Arc::clone(&terms.key), owner, end: ClaimEnd::Undone },
            until: sent + terms.lease + OWED,
            mailbox: Arc::clone(&mailbox),
            armed: true,
        };
        self.send_all(
            &terms.claim(owner, proposal, force),
            self.node_deadline(sent).min(until),
            &mailbox,
        );
        let mut step = Step::Wait(machine.by());
        loop {
            step = match step {
                Step::Wait(at) => match self.mail_until(&mailbox, at).await {
                    (now, Some((node, reply))) => {
                        if let Ok(Reply::Claimed { fence, .. }) = &reply {
                            self.saw(&terms.key, *fence, proposal);
                        }
                        machine.on_reply(now, node, &reply)
                    }
                    (now, None) => machine.on_time(now),
                },
                Step::Raise { token, nodes } => {
                    let deadline = self.node_deadline(self.env.now()).min(until);
                    for node in nodes {
                        let raise = Op::RaiseClaim { key: Arc::clone(&terms.key), owner, token };
                        self.send(node, raise, deadline, &mailbox);
                    }
                    Step::Wait(machine.by())
                }
                Step::Promised(promise) => {
                    undo.armed = false;
                    self.saw(&terms.key, promise.token.get(), proposal);
                    if promise.forgotten.is_some() {
                        self.keys_forgotten(machine.forgetful());
                    }
                    let subject = Subject::Claim {
                        key: Arc::clone(&terms.key),
                        retention: terms.retention,
                        fingerprint: terms.fingerprint,
                    };
                    let ballot = (owner, promise.token);
                    let lease = Lease::new(subject, ballot, terms.lease, until, None, mailbox);
                    let (core, lease) = (Arc::clone(self), Arc::new(lease));
                    let held = Held { core, lease, begun: AtomicBool::new(false) };
                    return Claimed::Promised(held, promise);
                }
                // Dropping `undo` gives back what was granted, in order before the next claim.
                Step::Replay(value) => return Claimed::Replay(value),
                Step::Repair(record) => return Claimed::Repair(record),
                Step::Refused(refusal) => return Claimed::Refused(refusal),
            };
        }
    }

    /// Stores a result under the claim's ballot, asking the nodes that fail again for a while. Also
    /// for a lease that was lost: the ballot decides (idempotency 2). Never `Wait`.
    ///
    /// A node in a new life takes a result only under a promise that was renewed there, and refuses
    /// it as for a higher ballot. So whoever still holds the claim renews it once and asks again.
    ///
    /// # Cancellation safety
    /// Dropped, the requests are on their way and the lanes repeat them: a result that was
    /// completed is stored if it can be.
    pub(crate) async fn complete(
        &self,
        lease: &Arc<Lease>,
        value: Option<&Arc<[u8]>>,
    ) -> complete::Step {
        let Subject::Claim { key, retention, fingerprint } = &lease.subject else {
            return complete::Step::Unknown(Vec::new());
        };
        let op = Op::Complete {
            key: Arc::clone(key),
            owner: lease.owner,
            token: lease.token,
            value: value.cloned(),
            retention: *retention,
            fingerprint: *fingerprint,
        };
        let started = self.env.now();
        let end = started + 4 * self.config.node_deadline;
        let mailbox = Mailbox::at(self.n(), lease.durability().level);
        let mut machine = Complete::new(self.n());
        for node in 0..self.n() {
            let owed = started + lease.ttl;
            self.send_owed(node, op.clone(), self.node_deadline(started), &mailbox, owed);
        }
        if let Some(outcomes) = self.cannot_wait() {
            return complete::Step::Unknown(outcomes);
        }
        let (mut pause, mut renewed) = (PAUSE, false);
        loop {
            let step = match self.mail_until(&mailbox, end).await.1 {
                Some((node, reply)) => machine.on_reply(node, &reply),
                None => machine.give_up(),
            };
            let undecided =
                matches!(step, complete::Step::Overtaken(_) | complete::Step::Unknown(_));
            if undecided && machine.is_refused() && !renewed && lease.is_valid(self.env.now()) {
                renewed = true;
                // Whether a majority renewed it or not, each node decides by the ballot.
                let _ = self.extend(lease).await;
                let deadline = self.node_deadline(self.env.now());
                for node in machine.renewed() {
                    self.send(node, op.clone(), deadline, &mailbox);
                }
                continue;
            }
            match step {
                complete::Step::Wait => {}
                complete::Step::Unknown(_) if self.env.now() + pause < end => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                    let deadline = self.node_deadline(self.env.now());
                    for node in machine.again() {
                        self.send(node, op.clone(), deadline, &mailbox);
                    }
                }
                complete::Step::Stored => {
                    lease.keep(mailbox.achieved());
                    return complete::Step::Stored;
                }
                step => return step,
            }
        }
    }

    /// Looks at a key on all nodes; a result counts if it is as durable as asked. Never `Wait`.
    ///
    /// # Cancellation safety
    /// Reads only.
    pub(crate) async fn look(&self, terms: &ClaimTerms) -> Found {
        if let Some(outcomes) = self.cannot_wait() {
            return Found::NoQuorum(outcomes);
        }
        let deadline = self.node_deadline(self.env.now());
        let mailbox = Mailbox::at(self.n(), terms.durability);
        let mut machine = Look::new(self.n());
        let look = Op::Lookup {
            key: Arc::clone(&terms.key),
            retention: terms.retention,
            fingerprint: terms.fingerprint,
            born: terms.born,
        };
        self.send_all(&look, deadline, &mailbox);
        loop {
            let found =
                match self.mail_until(&mailbox, deadline + self.config.node_deadline).await.1 {
                    Some((node, reply)) => machine.on_reply(node, &reply),
                    None => machine.give_up(),
                };
            if found != Found::Wait {
                return found;
            }
        }
    }
}
