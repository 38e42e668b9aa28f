//! One attempt to acquire a lock, and its release.
//!
//! Cancellation: every attempt has an [`Undo`] from the moment at which its first byte may be sent.
//! Dropped at any await it releases by token on every node that may have granted; the lane keeps
//! order, so the release runs after the acquire wherever both arrive.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::SemaphorePermit;
use tokio::time::timeout;
use tracing::Instrument as _;

use crate::driver::Core;
use crate::driver::lease::Lease;
use crate::driver::run::Round;
use crate::durability::Durability;
use crate::error::{NodeError, NodeFault, NodeOutcome, ReleaseError};
use crate::name::LockKeys;
use crate::node::lane::Sink;
use crate::node::mailbox::Mailbox;
use crate::op::Op;
use crate::quorum::acquire::{Acquire, Loss};
use crate::quorum::release::{Found, Release};
use crate::span::verb;
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
        let timer = self.timer().map_err(Loss::NoQuorum)?;
        let _place = self.place(within).await?;
        let owner = OwnerToken::from_random(self.env.random());
        let proposal = self.proposal(keys.lock());
        let sent = self.env.now();
        let until = valid_until(sent, ttl, self.config.drift);
        let mailbox = Mailbox::at(self.n(), level, until);
        let raise = Op::Raise { keys: keys.clone(), owner, token: FencingToken::new(0) };
        let mut machine = Acquire::new(self.n(), sent, until, self.patience(), raise);
        let mut undo = Undo {
            core: self,
            op: Op::Release { keys: keys.clone(), owner, words: false },
            until: self.forgotten_at(sent, ttl),
            mailbox: Arc::clone(&mailbox),
            armed: true,
        };
        let acquire = Op::Acquire { keys: keys.clone(), owner, ttl, proposal, wait };
        self.send_all(acquire, self.node_deadline(sent).min(until), &mailbox);
        let round = Round { mailbox: &mailbox, timer, until, of: None };
        let outcome = self.run(sent, &mut machine, round).await;
        self.saw(keys.lock(), machine.largest(), proposal);
        // Lost, dropping `undo` rolls back before the next attempt votes against this one.
        let token = outcome?;
        undo.armed = false;
        #[cfg(feature = "sim-bugs")]
        let until = if crate::bugs::on(crate::bugs::Bug::ValidityFromAnswer) {
            valid_until(self.env.now(), ttl, self.config.drift)
        } else {
            until
        };
        Ok(Won { owner, token, until, mailbox })
    }

    /// Releases a lock lease that was held until now, or was not: to all nodes that may hold it;
    /// decided at the majority, the rest is finished by the lanes.
    pub(crate) async fn release(&self, lease: &Lease, held: bool) -> Result<(), ReleaseError> {
        let verb = verb!("release", of = %lease.resource());
        verb.token(lease.token);
        let result = self.releasing(lease, held).instrument(verb.span()).await;
        verb.over(match &result {
            Ok(()) => "released",
            Err(ReleaseError::Unconfirmed(_)) => "unconfirmed",
            Err(ReleaseError::TakenByOther(_)) => "taken_by_other",
            Err(ReleaseError::Lost(_)) => "lost",
        });
        result
    }

    async fn releasing(&self, lease: &Lease, held: bool) -> Result<(), ReleaseError> {
        let lost = || Err(ReleaseError::Lost(lease.resource()));
        let Some(op) = lease.release_op() else { return lost() };
        let owed = self.forgotten_at(self.env.now(), lease.on_nodes());
        match self.take_back(op, lease, owed).await {
            Found::Other => Err(ReleaseError::TakenByOther(lease.resource())),
            // Others may have held it since, whatever is there now: a renewal that came late may
            // have put it back.
            _ if !held => lost(),
            Found::Released => Ok(()),
            Found::Gone => lost(),
            Found::Unknown(outcomes) => {
                let why = self.no_quorum(outcomes).of(lease.resource());
                Err(ReleaseError::Unconfirmed(why))
            }
        }
    }

    /// Takes back what nodes may hold of a lease. Whatever happens to this future, a node that does
    /// not answer is asked again until `owed`.
    pub(super) async fn take_back(&self, op: Op, lease: &Lease, owed: Moment) -> Found {
        let now = self.env.now();
        let deadline = self.node_deadline(now);
        let by = deadline + self.config.node_deadline;
        let mailbox = Mailbox::taking_back(self.n());
        let mut machine = Release::new(self.n(), by);
        for node in 0..self.n() {
            if lease.mailbox.may_hold(node) {
                let sink = Sink::MailOwed(Arc::clone(&mailbox), node, owed);
                self.lanes[node].submit(op.clone(), deadline, sink);
            } else {
                machine.never_granted(node);
            }
        }
        match self.timer() {
            Ok(timer) => {
                let round = Round { mailbox: &mailbox, timer, until: by, of: None };
                self.run(now, &mut machine, round).await
            }
            Err(outcomes) => Found::Unknown(outcomes),
        }
    }
}
