//! The ops that extend and release a lease on a node.

use std::sync::Arc;

use super::{Lease, Subject};
use crate::op::Op;
use crate::time::Moment;

impl Lease {
    /// Returns the op that extends this lease on a node. [`send`](Self::send) adds the metadata.
    /// For a node in quarantine (it grants nothing new, because it may have lost leases), the
    /// quorum machine adds the name of the quarantine.
    pub(crate) fn extension(&self) -> Op {
        let (owner, token) = (self.owner, self.token);
        match &self.subject {
            Subject::Lock { keys, .. } => Op::Extend {
                mode: self.state.lock().mode,
                keys: keys.clone(),
                owner,
                ttl: self.on_nodes(),
                token,
                meta: None,
                reassert: None,
            },
            Subject::Claim { key, retention, fingerprint } => Op::ExtendClaim {
                key: Arc::clone(key),
                owner,
                token,
                lease: self.ttl,
                retention: *retention,
                fingerprint: *fingerprint,
                reassert: None,
            },
        }
    }

    /// Returns the op that releases the lock on a node. Returns `None` if the lock must end by
    /// itself. Also returns `None` for a claim, because [`ClaimEnd`](crate::op::ClaimEnd) ends a
    /// claim.
    pub(crate) fn release_op(&self, now: Moment) -> Option<Op> {
        let Subject::Lock { keys, .. } = &self.subject else { return None };
        if now < self.lapses_before {
            return None;
        }
        let s = self.state.lock();
        let (mode, meta) = (s.mode, s.meta.is_some());
        drop(s);
        Some(Op::Release { mode, keys: keys.clone(), owner: self.owner, meta })
    }
}
