//! What every rule is told about the node: its clocks, the history of its data, the floor, whether
//! it is in quarantine or settles after a planned handover; and the bounds that follow.

use std::sync::Arc;
use std::time::Duration;

use super::lost_claims::LostClaims;
use crate::op::{Facts, QuarantineId, Reply, Terms};
use crate::time::{FENCE_SLACK, raise_lead, token_lead};

#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) facts: Facts,
    /// ns on the expiry clock, by which leases end.
    pub(crate) now: u64,
    pub(crate) floor: u64,
    /// The batch arrived after its deadline. Then only releases and unclaims are executed.
    pub(crate) late: bool,
    /// Leases given before a planned handover may have ended early by this clock.
    pub(crate) settling: bool,
    /// End of that time by the wall clock in ms; 0 if it is over. It names the handover.
    pub(crate) settles_till: u64,
    pub(crate) terms: Terms,
    /// The marker was written less than a longest lease ago, so what is held may be lost.
    pub(crate) is_young: bool,
}

impl Header {
    pub(crate) fn id(&self) -> QuarantineId {
        self.facts.history()
    }

    pub(crate) fn is_quarantined(&self) -> bool {
        !self.facts.quarantine.is_zero()
    }

    pub(crate) fn quarantined(&self) -> Reply {
        let (remaining, began) = (self.facts.quarantine, self.facts.began);
        Reply::Quarantined { remaining, id: self.id(), began }
    }

    /// (quarantine 6): in a quarantine only the leases of holders that name it are extended.
    pub(crate) fn may_extend(&self, reassert: Option<QuarantineId>) -> bool {
        !self.is_quarantined() || reassert == Some(self.id())
    }

    pub(crate) fn after(&self, span: Duration) -> u64 {
        self.now.saturating_add(nanos(span))
    }

    pub(crate) fn until(&self, till: u64) -> Duration {
        Duration::from_nanos(till.saturating_sub(self.now))
    }

    /// Time until which a fence that is used now is kept. After it even a client whose clock is
    /// behind proposes a larger one.
    pub(crate) fn fence_till(&self) -> u64 {
        let lead = token_lead(self.terms.clock_error);
        self.after(self.terms.max_ttl + lead + FENCE_SLACK)
    }

    /// Time until which a record that is written now is kept: for its retention by any clock, and
    /// its promise until every late request has arrived (idempotency 4, 9).
    pub(crate) fn record_till(&self, retention: Duration) -> u64 {
        let kept = retention + 2 * self.terms.clock_error + Duration::from_millis(1);
        self.after(kept).max(self.fence_till())
    }

    /// 2E.
    pub(crate) fn apart(&self) -> Duration {
        2 * self.terms.clock_error
    }

    pub(crate) fn lost_claims(&self) -> LostClaims {
        let Facts { losses, began, node_micros, .. } = &self.facts;
        LostClaims::new(Arc::clone(losses), *began, self.terms.clock_error, node_micros / 1_000)
    }

    /// `created` is in ms since 1970.
    pub(crate) fn is_too_old(&self, created: Option<u64>, retention: Duration) -> bool {
        last_young(created, retention) < self.facts.node_micros
    }

    /// E in µs.
    pub(crate) fn clock_error(&self) -> u64 {
        micros(self.terms.clock_error)
    }

    /// Fence of a new grant. The proposal is limited to this node's clock ± E, but may have been
    /// planned a while ago.
    pub(crate) fn next_fence(&self, fence: u64, proposal: u64) -> u64 {
        let (now, error) = (self.facts.node_micros, self.clock_error());
        let is_low = self.last_in_range(proposal) < now;
        let low = if is_low { now.saturating_sub(error) } else { 0 };
        let proposal = proposal.max(low).min(now.saturating_add(error));
        fence.saturating_add(1).max(proposal).max(self.floor)
    }

    /// Last time (µs) at which the proposal is not too low for a fence.
    pub(crate) fn last_in_range(&self, proposal: u64) -> u64 {
        proposal.saturating_add(self.clock_error() + UNDER_WAY)
    }

    /// A proposal in the node's range. One that the node would raise becomes half of E before its
    /// clock.
    pub(crate) fn in_range_for_long(&self, proposal: u64) -> u64 {
        let (now, error) = (self.facts.node_micros, self.clock_error());
        if proposal.saturating_add(error) < now {
            return now.saturating_sub(error / 2);
        }
        proposal.min(now.saturating_add(error))
    }

    /// Lowered if no clock within E has brought the fence there, also before a backward step by 2E
    /// (locks 6).
    pub(crate) fn honest(&self, fence: u64) -> u64 {
        let most =
            self.facts.node_micros.saturating_add(micros(raise_lead(self.terms.clock_error)));
        if fence > most.saturating_add(2 * self.clock_error()) { most } else { fence }
    }

    /// The token is further ahead of this node's clock than correct clocks and nodes can produce.
    pub(crate) fn is_ahead(&self, token: u64) -> bool {
        token > self.facts.node_micros.saturating_add(micros(raise_lead(self.terms.clock_error)))
    }

    /// A quarantine may be ahead by a clock of this node that is 2E behind this one.
    pub(crate) fn ended_lately(&self) -> bool {
        let Facts { since, quarantine_len, node_micros, .. } = self.facts;
        let end = since.saturating_add(millis(quarantine_len)).saturating_mul(1_000);
        since > 0 && node_micros <= end.saturating_add(2 * self.clock_error())
    }
}

/// In µs. For so long a grant may be under way with a proposal that was in range when it was
/// planned (idempotency 24, locks 4). Less than [`FENCE_SLACK`], for which a fence outlives what
/// the clocks need.
pub(crate) const UNDER_WAY: u64 = 500_000;

/// Last time (µs) at which a request of this time (ms) is not too old.
pub(crate) fn last_young(created: Option<u64>, retention: Duration) -> u64 {
    let end = |at: u64| at.saturating_add(millis(retention)).saturating_add(1);
    created.map_or(u64::MAX, |at| end(at).saturating_mul(1_000) - 1)
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
