//! Renewal at once after a failover. When a node begins another data history (it failed over,
//! restarted or lost its data), each lease that the node had confirmed in its earlier history is
//! renewed, and the holder learns what the renewal found.
//!
//! Safety does not depend on this renewal (durability 6): a lease is held until its deadline, and a
//! node in quarantine admits a lease again because of its own earlier confirmation (quarantine 6).
//! But a claim needs the renewal, because a node with a new data history refuses the claim's result
//! until the claim was renewed there (idempotency 3).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::client::lease::Lease;
use crate::client::renewer::Renewer;
use crate::env::Env;
use crate::quorum::holdings::Quarantine;

/// Outcome of renewing a lease after one of the nodes that had confirmed it failed over, was
/// restarted or lost its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failover {
    /// A majority of the nodes has confirmed the lease since the failover.
    Kept,
    /// The outcome is not known yet, and the lease is held until its old deadline. Either the
    /// renewal got too few answers and is tried again, or the lease has no automatic renewal.
    Open,
    /// The lease is over.
    Lost,
}

/// Nodes of one handle that have begun another data history since the handle was made.
pub(crate) struct Failovers {
    /// Present data history and quarantine of each node that has failed over, by the node's number.
    /// Empty as long as none has.
    switched: Mutex<BTreeMap<usize, Quarantine>>,
    renewer: Arc<Renewer>,
    env: Arc<dyn Env>,
}

impl Failovers {
    pub(crate) fn new(renewer: Arc<Renewer>, env: Arc<dyn Env>) -> Self {
        Self { switched: Mutex::default(), renewer, env }
    }

    /// Records that the node has begun another data history, and renews all leases that it had
    /// confirmed in its earlier history.
    pub(crate) fn switched(&self, node: usize, quarantine: Quarantine) {
        self.switched.lock().unwrap_or_else(PoisonError::into_inner).insert(node, quarantine);
        for lease in self.renewer.leases() {
            self.renew(&lease, node, quarantine);
        }
    }

    /// Renews a newly acquired lease at once if a node has failed over since it confirmed the
    /// lease.
    pub(crate) fn check(&self, lease: &Arc<Lease>) {
        for (node, quarantine) in &*self.switched.lock().unwrap_or_else(PoisonError::into_inner) {
            self.renew(lease, *node, *quarantine);
        }
    }

    fn renew(&self, lease: &Arc<Lease>, node: usize, quarantine: Quarantine) {
        if lease.replies.switched(node, quarantine) {
            // The failover is counted before the renewal is sent. Otherwise the renewal would count
            // as one from before the failover, and would not show what the failover did.
            lease.failed_over();
            if !self.renewer.renew_now(lease, self.env.now()) {
                lease.left_open(lease.failovers());
            }
        }
    }
}

/// Failovers of the nodes that had confirmed a lease, and what renewals of the lease have found
/// after them.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    /// Number of failovers until now of nodes that had confirmed the lease.
    failovers: u64,
    /// Value of `failovers` when the last confirmed renewal was sent.
    kept: u64,
    /// Value of `failovers` when the last renewal that got no majority was sent.
    open: u64,
    /// Latest outcome of a failover that the holder has not read yet.
    unread: Option<Failover>,
}

impl Verdicts {
    /// Counts a failover of a node that had confirmed the lease.
    pub(super) fn failed_over(&mut self) {
        self.failovers += 1;
    }

    /// Returns the number of failovers until now. The result of a renewal that is sent now is the
    /// outcome of all of them.
    pub(super) fn so_far(&self) -> u64 {
        self.failovers
    }

    /// Records the result of a renewal that was sent after the first `failovers` failovers.
    pub(super) fn renewed(&mut self, failovers: u64, confirmed: bool) {
        if confirmed && failovers > self.kept {
            self.kept = failovers;
            self.unread = Some(Failover::Kept);
        } else if !confirmed && failovers > self.kept.max(self.open) {
            self.open = failovers;
            self.unread = Some(Failover::Open);
        }
    }

    /// Takes the latest outcome that the holder has not read yet.
    pub(super) fn next(&mut self) -> Option<Failover> {
        self.unread.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_renewal_that_was_sent_after_the_failover_answers_it() {
        let mut verdicts = Verdicts::default();
        let before = verdicts.so_far();
        verdicts.renewed(before, true);
        assert_eq!(verdicts.next(), None, "there was no failover");
        verdicts.failed_over();
        verdicts.renewed(before, true);
        assert_eq!(verdicts.next(), None, "it was sent before");
        verdicts.renewed(verdicts.so_far(), true);
        assert_eq!(verdicts.next(), Some(Failover::Kept));
        verdicts.renewed(verdicts.so_far(), true);
        assert_eq!(verdicts.next(), None, "once");
    }

    #[test]
    fn an_open_failover_is_reported_once_and_again_when_it_is_decided() {
        let mut verdicts = Verdicts::default();
        verdicts.failed_over();
        for expected in [Some(Failover::Open), None] {
            verdicts.renewed(verdicts.so_far(), false);
            assert_eq!(verdicts.next(), expected);
        }
        verdicts.renewed(verdicts.so_far(), true);
        assert_eq!(verdicts.next(), Some(Failover::Kept));
        verdicts.renewed(verdicts.so_far(), false);
        assert_eq!(verdicts.next(), None, "it was decided");
    }
}
