//! Renewal at once after a failover: when a node has begun another data history, each lease that
//! the earlier one had confirmed is renewed, and its holder receives what that renewal found.
//!
//! Safety does not depend on this renewal (durability 6): a lease is held until its deadline, and a
//! node re-admits a lease by what it had confirmed (quarantine 6). A claim's promise counts in a
//! new data history only once it was renewed there: a result that arrives before that would be
//! refused (idempotency 3).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::client::lease::Lease;
use crate::client::renewer::Renewer;
use crate::env::Env;
use crate::quorum::holdings::Quarantine;

/// Result of renewing a lease after a node that had confirmed it failed over, was restarted or lost
/// its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failover {
    /// A majority of the nodes has confirmed the lease since.
    Kept,
    /// The result is not known yet: the old deadline holds. The renewal got too few answers and is
    /// tried again, or the lease has no automatic renewal.
    Open,
    /// The lease is over.
    Lost,
}

/// The nodes of one handle that have begun another data history.
pub(crate) struct Failovers {
    /// Present history of each such node, with its quarantine. Empty as long as there was no
    /// failover.
    switched: Mutex<BTreeMap<usize, Quarantine>>,
    renewer: Arc<Renewer>,
    env: Arc<dyn Env>,
}

impl Failovers {
    pub(crate) fn new(renewer: Arc<Renewer>, env: Arc<dyn Env>) -> Self {
        Self { switched: Mutex::default(), renewer, env }
    }

    /// Renews all leases that the node's earlier data history had confirmed.
    pub(crate) fn switched(&self, node: usize, quarantine: Quarantine) {
        self.switched.lock().unwrap_or_else(PoisonError::into_inner).insert(node, quarantine);
        for lease in self.renewer.leases() {
            self.renew(&lease, node, quarantine);
        }
    }

    /// Renews a new lease if one of its nodes failed over while it was acquired.
    pub(crate) fn check(&self, lease: &Arc<Lease>) {
        for (node, quarantine) in &*self.switched.lock().unwrap_or_else(PoisonError::into_inner) {
            self.renew(lease, *node, *quarantine);
        }
    }

    fn renew(&self, lease: &Arc<Lease>, node: usize, quarantine: Quarantine) {
        if lease.replies.switched(node, quarantine) {
            // Counted before the renewal is sent: otherwise the renewal would not count as one
            // after the failover.
            lease.failed_over();
            if !self.renewer.renew_now(lease, self.env.now()) {
                lease.left_open(lease.failovers());
            }
        }
    }
}

/// Failovers of nodes that had confirmed a lease, and what its renewals have found since.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    /// Number of failovers until now.
    failovers: u64,
    /// Number of failovers when the last confirmed renewal was sent.
    kept: u64,
    /// Number of failovers when the last renewal without a majority was sent.
    open: u64,
    /// The verdict that the holder has not received yet.
    unread: Option<Failover>,
}

impl Verdicts {
    /// Counts a failover.
    pub(super) fn failed_over(&mut self) {
        self.failovers += 1;
    }

    /// Returns the number of failovers until now; a renewal that is sent now decides these.
    pub(super) fn so_far(&self) -> u64 {
        self.failovers
    }

    /// Records the result of a renewal that was sent after this number of failovers.
    pub(super) fn renewed(&mut self, failovers: u64, confirmed: bool) {
        if confirmed && failovers > self.kept {
            self.kept = failovers;
            self.unread = Some(Failover::Kept);
        } else if !confirmed && failovers > self.kept.max(self.open) {
            self.open = failovers;
            self.unread = Some(Failover::Open);
        }
    }

    /// Takes the verdict that the holder has not received yet.
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
