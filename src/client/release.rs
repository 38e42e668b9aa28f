//! Releases a held lock. The answers of a majority decide the result. The node queues repeat the
//! release on nodes that have not answered.

use tracing::Instrument as _;

use crate::client::Core;
use crate::client::lease::Lease;
use crate::client::node_queue::Pending;
use crate::client::round::{ReplyCollector, Round};
use crate::error::ReleaseError;
use crate::op::Op;
use crate::quorum::release::{Found, Release};
use crate::span::operation;
use crate::time::Moment;

impl Core {
    /// Releases a lock on all nodes that may have a grant of it. `held` is true if the lease was
    /// valid until now. The answers of a majority decide the result. The node queues repeat the
    /// release on nodes that have not answered.
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
            // The lease was over before the release, so another owner may have held the lock since.
            // The owner token on the nodes proves nothing, because a late renewal may have written
            // it again.
            _ if !held => lost(),
            Found::Released => Ok(()),
            Found::Gone => lost(),
            Found::Unknown(outcomes) => {
                let why = self.no_quorum(outcomes).of(lease.resource());
                Err(ReleaseError::Unconfirmed(why))
            }
        }
    }

    /// Sends `op`, which undoes a grant, to the nodes that may have a grant of the lease. The
    /// request to a node that does not answer is repeated until `owed`, even if this future is
    /// dropped.
    pub(super) async fn take_back(&self, op: Op, lease: &Lease, owed: Moment) -> Found {
        let now = self.env.now();
        let deadline = self.node_deadline(now);
        let by = deadline + self.config.node_deadline;
        let replies = ReplyCollector::taking_back(self.n());
        let mut machine = Release::new(self.n(), by);
        for node in 0..self.n() {
            if lease.replies.may_hold(node) {
                let release = Pending::new(op.clone(), deadline, node, &replies).owed(owed);
                self.queues[node].submit(release);
            } else {
                machine.never_granted(node);
            }
        }
        match self.timer() {
            Ok(timer) => {
                let round = Round { replies: &replies, timer, until: by, of: None };
                self.run(now, &mut machine, round).await
            }
            Err(outcomes) => Found::Unknown(outcomes),
        }
    }
}
