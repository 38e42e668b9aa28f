//! One attempt to acquire a lock, and its release.
//!
//! Cancellation: an [`Undo`] stands behind every attempt from the moment the first byte may leave.
//! Dropped at any await it releases by token on every node that may have granted; the lane keeps
//! order, so the release runs after the acquire wherever both arrive.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use crate::driver::Core;
use crate::driver::lease::Lease;
use crate::durability::Durability;
use crate::error::{NodeError, NodeFault, NodeOutcome, ReleaseError};
use crate::name::LockKeys;
use crate::node::mailbox::Mailbox;
use crate::op::{Op, Reply};
use crate::quorum::acquire::{Acquire, Loss, Step};
use crate::quorum::release::{Found, Release};
use crate::time::{Moment, valid_until};
use crate::token::{FencingToken, OwnerToken};

/// What a won attempt holds.
#[derive(Debug)]
pub(crate) struct Won {
    pub(crate) owner: OwnerToken,
    pub(crate) token: FencingToken,
    pub(crate) until: Moment,
    pub(crate) mailbox: Arc<Mailbox>,
}

/// Releases what an attempt may hold, unless it is disarmed.
pub(super) struct Undo<'a> {
    pub(super) core: &'a Core,
    pub(super) op: Op,
    pub(super) until: Moment,
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) armed: bool,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.core.undo(&self.op, &self.mailbox, self.until);
        }
    }
}

impl Core {
    /// When even a node with a slow clock has forgotten a lease that was sent at `sent`.
    pub(crate) fn forgotten_at(&self, sent: Moment, ttl: Duration) -> Moment {
        sent + ttl + self.config.drift.of(ttl) + self.config.node_deadline
    }

    /// A place among the attempts that are under way; nodes are asked within this time, or not at
    /// all.
    async fn place(&self, within: Duration) -> Result<Option<SemaphorePermit<'_>>, Loss> {
        if let Some(outcomes) = self.cannot_wait() {
            return Err(Loss::NoQuorum(outcomes));
        }
        if let Ok(place) = self.places.try_acquire() {
            return Ok(Some(place));
        }
        tokio::select! {
            biased;
            // No place is needed to be refused.
            () = self.closing.begun() => Ok(None),
            place = timeout(within.max(self.config.node_deadline), self.places.acquire()) => {
                place.map(Result::ok).map_err(|_| {
                    let detail = "too many attempts of this handle are under way";
                    let error = NodeError::not_executed(NodeFault::Busy, detail);
                    Loss::NoQuorum(vec![NodeOutcome::Failed(error); self.n()])
                })
            }
        }
    }

    /// One attempt at this durability, with a fresh owner token. `wait` asks the nodes for a hint
    /// if it is refused. It waits for a place among the attempts under way for `within`, and for
    /// `node_deadline` at least.
    pub(crate) async fn attempt(
        &self,
        keys: &LockKeys,
        ttl: Duration,
        (wait, within): (bool, Duration),
        level: Durability,
    ) -> Result<Won, Loss> {
        let _place = self.place(within).await?;
        let owner = OwnerToken::from_random(self.env.random());
        let proposal = self.proposal(keys.lock());
        let mailbox = Mailbox::at(self.n(), level);
        let sent = self.env.now();
        let until = valid_until(sent, ttl, self.config.drift);
        let mut machine = Acquire::new(self.n(), sent, until, self.patience());
        let mut undo = Undo {
            core: self,
            op: Op::Release { keys: keys.clone(), owner, words: false },
            until: self.forgotten_at(sent, ttl),
            mailbox: Arc::clone(&mailbox),
            armed: true,
        };
        let acquire = Op::Acquire { keys: keys.clone(), owner, ttl, proposal, wait };
        self.send_all(&acquire, self.node_deadline(sent).min(until), &mailbox);
        let (mut now, mut step) = (sent, Step::Wait(machine.by()));
        loop {
            step = match step {
                Step::Wait(at) => {
                    let mail = self.mail_by(&mailbox, now, at).await;
                    now = self.env.now();
                    match mail {
                        Some((node, reply)) => {
                            if let Ok(Reply::Granted { fence }) = &reply {
                                self.saw(keys.lock(), *fence, proposal);
                            }
                            machine.on_reply(now, node, &reply)
                        }
                        None => machine.on_time(now),
                    }
                }
                Step::Raise { token, nodes } => {
                    let deadline = self.node_deadline(self.env.now()).min(until);
                    for node in nodes {
                        let raise = Op::Raise { keys: keys.clone(), owner, token };
                        self.send(node, raise, deadline, &mailbox);
                    }
                    Step::Wait(machine.by())
                }
                Step::Won(token) => {
                    undo.armed = false;
                    #[cfg(feature = "sim-bugs")]
                    let until = if crate::bugs::on(crate::bugs::Bug::ValidityFromAnswer) {
                        valid_until(self.env.now(), ttl, self.config.drift)
                    } else {
                        until
                    };
                    self.saw(keys.lock(), token.get(), proposal);
                    return Ok(Won { owner, token, until, mailbox });
                }
                // Dropping `undo` rolls back before the next attempt votes against this one.
                Step::Lost(loss) => return Err(loss),
            };
        }
    }

    /// The next mail, or none by `at`. A mail that is there is never left for the timer.
    pub(crate) async fn mail_until(
        &self,
        mailbox: &Mailbox,
        at: Moment,
    ) -> (Moment, Option<(usize, Result<Reply, crate::error::NodeError>)>) {
        let mail = self.mail_by(mailbox, self.env.now(), at).await;
        (self.env.now(), mail)
    }

    /// The same without a look at the clock before and after it.
    async fn mail_by(
        &self,
        mailbox: &Mailbox,
        now: Moment,
        at: Moment,
    ) -> Option<(usize, Result<Reply, crate::error::NodeError>)> {
        tokio::time::timeout(at.since(now), mailbox.recv()).await.ok()
    }

    /// Releases a lock lease that was held until now, or was not: to all nodes that may hold it;
    /// decided at the majority, the rest is finished by the lanes.
    pub(crate) async fn release(&self, lease: &Lease, held: bool) -> Result<(), ReleaseError> {
        let lost = || Err(ReleaseError::Lost(lease.resource()));
        let Some(op) = lease.release_op() else { return lost() };
        let now = self.env.now();
        let deadline = self.node_deadline(now);
        let mailbox = Mailbox::taking_back(self.n());
        let mut machine = Release::new(self.n());
        let owed = self.forgotten_at(now, lease.ttl);
        let (mut now, mut found) = (now, Found::Pending);
        for node in 0..self.n() {
            if lease.mailbox.may_hold(node) {
                // Whatever happens to this future, a node that does not answer is asked again.
                self.send_owed(node, op.clone(), deadline, &mailbox, owed);
            } else {
                found = machine.never_granted(node);
            }
        }
        if let Some(outcomes) = self.cannot_wait() {
            if !held {
                return lost();
            }
            let why = self.no_quorum(outcomes).of(lease.resource());
            return Err(ReleaseError::Unconfirmed(why));
        }
        while found == Found::Pending {
            let mail = self.mail_by(&mailbox, now, deadline + self.config.node_deadline).await;
            found = match mail {
                Some((node, reply)) => machine.on_reply(node, &reply),
                None => machine.unknown(),
            };
            if found == Found::Pending {
                now = self.env.now();
            }
        }
        match found {
            Found::Other => Err(ReleaseError::TakenByOther(lease.resource())),
            // Others may have held it since, whatever is there now: a renewal that came late may
            // have put it back.
            _ if !held => lost(),
            Found::Released => Ok(()),
            Found::Gone | Found::Pending => lost(),
            Found::Unknown(outcomes) => {
                let why = self.no_quorum(outcomes).of(lease.resource());
                Err(ReleaseError::Unconfirmed(why))
            }
        }
    }
}
