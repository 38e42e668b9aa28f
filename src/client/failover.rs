//! Renews leases immediately after a failover. Locks are safe without it (durability 6, quarantine
//! 6); claims need it: a node with a new data history refuses the result of a claim that was not
//! renewed in it (idempotency 3).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::client::lease::Lease;
use crate::client::renewer::Renewer;
use crate::env::Env;
use crate::name::slot_of;
use crate::quorum::grant::Quarantine;
use crate::sync::SyncMutex;

/// Outcome of the renewal of a lease after a failover: a node that had confirmed the lease failed
/// over, was restarted or lost its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Failover {
    /// A majority of the nodes has confirmed the lease since the failover of a node.
    Kept,
    /// It is not known yet if a majority of the nodes still has the lease; the lease is held until
    /// its old deadline. Either the renewal got too few answers and is repeated, or the lease has
    /// no automatic renewal.
    Open,
    /// The lease is over, so the holder must not rely on it.
    Lost,
}

pub(crate) struct Failovers {
    /// By the node's part, and its number. The quarantine also identifies the data history.
    switched: SyncMutex<BTreeMap<(Option<u16>, usize), Quarantine>>,
    renewer: Arc<Renewer>,
    env: Arc<dyn Env>,
}

impl Failovers {
    pub(crate) fn new(renewer: Arc<Renewer>, env: Arc<dyn Env>) -> Self {
        Self { switched: SyncMutex::default(), renewer, env }
    }

    pub(crate) fn switched(&self, (node, part): (usize, Option<u16>), quarantine: Quarantine) {
        self.switched.lock().insert((part, node), quarantine);
        for lease in self.renewer.leases() {
            if part.is_none_or(|part| part == slot_of(lease.key())) {
                self.renew(&lease, node, quarantine);
            }
        }
    }

    pub(crate) fn check(&self, lease: &Arc<Lease>) {
        let switched = self.switched.lock();
        for part in [None, Some(slot_of(lease.key()))] {
            for ((_, node), quarantine) in switched.range((part, 0)..=(part, usize::MAX)) {
                self.renew(lease, *node, *quarantine);
            }
        }
    }

    fn renew(&self, lease: &Arc<Lease>, node: usize, quarantine: Quarantine) {
        if lease.grant.lock().switched(node, quarantine) {
            // Before the renewal is sent, else its result would not be this failover's.
            lease.failed_over();
            if !self.renewer.renew_now(lease, self.env.now()) {
                lease.left_open(lease.failovers());
            }
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Verdicts {
    failovers: u64,
    kept: u64,
    open: u64,
    unread: Option<Failover>,
}

impl Verdicts {
    pub(super) fn failed_over(&mut self) {
        self.failovers += 1;
    }

    pub(super) fn so_far(&self) -> u64 {
        self.failovers
    }

    pub(super) fn renewed(&mut self, failovers: u64, confirmed: bool) {
        if confirmed && failovers > self.kept {
            self.kept = failovers;
            self.unread = Some(Failover::Kept);
        } else if !confirmed && failovers > self.kept.max(self.open) {
            self.open = failovers;
            self.unread = Some(Failover::Open);
        }
    }

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
