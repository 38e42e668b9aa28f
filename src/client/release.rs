//! Gives back what nodes may have granted. Each attempt makes an [`Undo`] before its first request
//! can be sent; a node queue keeps the order, and repeats it until it is answered
//! (`node_queue/pending_releases.rs`).

use std::time::Duration;

use tracing::Instrument as _;

use crate::client::Core;
use crate::client::lease::Lease;
use crate::client::node_queue::Pending;
use crate::client::round::{Inbox, Round, SharedGrant};
use crate::error::ReleaseError;
use crate::op::Op;
use crate::quorum::release::{Found, Release};
use crate::span::operation;
use crate::time::Moment;

pub(super) struct Undo<'a> {
    pub(super) core: &'a Core,
    pub(super) op: Op,
    pub(super) until: Moment,
    pub(super) grant: SharedGrant,
    pub(super) armed: bool,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.core.undo(&self.op, Some(&self.grant), self.until);
        }
    }
}

impl Core {
    /// Even on a node with a slow clock.
    pub(crate) fn forgotten_at(&self, sent: Moment, ttl: Duration) -> Moment {
        sent + ttl + self.config.drift.of(ttl) + self.config.node_deadline
    }

    /// Without a grant, on every node. Repeated until it has certainly taken effect, at most until
    /// `until`. Needs no runtime, because `Drop` calls it.
    pub(crate) fn undo(&self, op: &Op, grant: Option<&SharedGrant>, until: Moment) {
        let deadline = self.node_deadline(self.env.now());
        let may_hold = |node: &usize| grant.is_none_or(|grant| grant.lock().may_hold(*node));
        for node in (0..self.n()).filter(may_hold) {
            let release = Pending::release(op.clone(), deadline, node, grant, until);
            self.queues[node].submit(release);
        }
    }

    pub(crate) async fn release(&self, lease: &Lease, held: bool) -> Result<(), ReleaseError> {
        let operation = operation!("release", of = %lease.resource());
        operation.token(lease.token);
        let result = self.releasing(lease, held).instrument(operation.span()).await;
        operation.over(match &result {
            Ok(()) => "released",
            Err(ReleaseError::Unconfirmed(_)) => "unconfirmed",
            Err(ReleaseError::TakenByOther(_)) => "taken_by_other",
            Err(ReleaseError::Lost(_)) => "lost",
        });
        result
    }

    async fn releasing(&self, lease: &Lease, held: bool) -> Result<(), ReleaseError> {
        let lost = || Err(ReleaseError::Lost(lease.resource()));
        let now = self.env.now();
        let Some(op) = lease.release_op(now) else { return if held { Ok(()) } else { lost() } };
        let owed = self.forgotten_at(now, lease.on_nodes());
        match self.take_back(op, lease, owed).await {
            Found::Other => Err(ReleaseError::TakenByOther(lease.resource())),
            // The owner token on the nodes proves nothing: a late renewal may have written it again
            // after another owner held the lock.
            _ if !held => lost(),
            Found::Released => Ok(()),
            Found::Gone => lost(),
            Found::Unknown(outcomes) => {
                let why = self.no_quorum(outcomes).of(lease.resource());
                Err(ReleaseError::Unconfirmed(why))
            }
        }
    }

    /// Repeated until `owed`, even if this future is dropped.
    pub(super) async fn take_back(&self, op: Op, lease: &Lease, owed: Moment) -> Found {
        let now = self.env.now();
        let deadline = self.node_deadline(now);
        let by = deadline + self.config.node_deadline;
        let inbox = Inbox::new(self.n());
        let mut machine = Release::new(self.n(), by);
        for node in 0..self.n() {
            if lease.grant.lock().may_hold(node) {
                let release = Pending::new(op.clone(), deadline, node, &inbox).owed(owed);
                self.queues[node].submit(release);
            } else {
                machine.never_granted(node);
            }
        }
        match self.timer() {
            Ok(timer) => {
                let round = Round { inbox: &inbox, timer, until: by, of: None };
                self.run(now, &mut machine, round).await
            }
            Err(outcomes) => Found::Unknown(outcomes),
        }
    }
}
