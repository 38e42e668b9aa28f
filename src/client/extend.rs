//! One renewal of a lease on all nodes (renewal 1, 9). `renewer` decides when it is due.

use std::sync::Arc;

use tracing::Instrument as _;

use crate::client::Core;
use crate::client::lease::Lease;
use crate::client::round::{Inbox, Round};
use crate::error::ExtendError;
use crate::quorum::extend::{Extend, Extension, Times};
use crate::span::Call;
use crate::time::{Moment, valid_until};

impl Core {
    pub(crate) async fn extend_in(
        &self,
        lease: &Arc<Lease>,
        operation: Call,
        automatic: bool,
    ) -> Result<Moment, ExtendError> {
        operation.token(lease.token);
        let result = self.extend(lease, automatic).instrument(operation.span()).await;
        operation.over(word(&result));
        result
    }

    /// A failure releases nothing. If the future is dropped, the lease keeps its old deadline,
    /// which is earlier than the one on the nodes.
    pub(crate) async fn extend(
        &self,
        lease: &Arc<Lease>,
        automatic: bool,
    ) -> Result<Moment, ExtendError> {
        let lost = || Err(ExtendError::Lost(lease.resource()));
        let sent = self.env.now();
        let timer = match self.timer() {
            Ok(timer) => timer,
            Err(_) if !lease.is_valid(sent) => return lost(),
            Err(outcomes) => return Err(ExtendError::Unknown(self.no_quorum(outcomes))),
        };
        let (old, failovers) = (lease.until(), lease.failovers());
        let kept = valid_until(sent, lease.ttl + lease.drain, self.config.drift);
        // So that a leader's work can end after a loss (election 8).
        let new = kept - lease.drain;
        // A renewal must be as durable as the grant (durability 1), so its inbox has that level.
        let round = lease.grant.lock().next_round();
        let inbox = Inbox::of(&lease.grant, round, kept);
        let (deadline, max_ttl) = (self.node_deadline(sent), self.config.max_ttl);
        let bounds = Times { old, new, deadline, max_ttl };
        let mut machine =
            Extend::new(self.n(), lease.extension(), bounds, |node| lease.known(node));
        let until = deadline.min(old);
        let submit = |node, op| self.send(node, op, until, &inbox);
        if !lease.send(sent, automatic, machine.ask_all(sent), submit) {
            // The lease is over. It never becomes valid again, even if a majority would still
            // confirm it.
            return lost();
        }
        let round = Round { inbox: &inbox, timer, until, of: Some(lease) };
        let result = match self.run(sent, &mut machine, round).await {
            // False if another renewal has found the lease lost in the meantime.
            Extension::Until(until) if lease.prolong(until, inbox.replicas(), failovers) => {
                Ok(until)
            }
            Extension::Unknown(outcomes) if lease.is_valid(self.env.now()) => {
                lease.left_open(failovers);
                let outcomes = inbox.at_deadline(outcomes);
                Err(ExtendError::Unknown(self.no_quorum(outcomes).of(lease.resource())))
            }
            _ => lost(),
        };
        let now = self.env.now();
        lease.meters.renewal(word(&result), now.since(sent), (old.since(now), lease.ttl));
        result
    }
}

fn word(result: &Result<Moment, ExtendError>) -> &'static str {
    match result {
        Ok(_) => "renewed",
        Err(ExtendError::Lost(_)) => "lost",
        Err(ExtendError::Unknown(_)) => "no_quorum",
    }
}
