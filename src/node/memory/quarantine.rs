//! First step of every batch on a [`MemoryNode`](super::MemoryNode): judges the node's data, as the
//! clients of a server do, and keeps the state that all ops of the batch share.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{NodeError, NodeFault};
use crate::node::lineage::{self, Asked, Marker, Note, Process, ReplicationId, Shown, Verdict};
use crate::node::lost_claims::LostClaims;
#[cfg(feature = "test-util")]
use crate::op::Lineage;
use crate::op::{Batch, Facts, Op, QuarantineId, Reply, Terms};
use crate::time::{FENCE_SLACK, raise_lead, token_lead};

/// What the node's data say about themselves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    pub(super) marker: Option<Marker>,
    pub(super) note: Option<Note>,
}

impl Kept {
    #[cfg(feature = "test-util")]
    pub(super) fn lineage(&self) -> Option<Lineage> {
        self.marker.map(|marker| marker.lineage(self.note))
    }
}

/// Readings of the node's clocks at the start of a batch of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// Expiry clock in nanoseconds; never zero.
    pub(super) now: u64,
    /// Wall clock in microseconds since 1970.
    pub(super) micros: u64,
}

/// Failover windows (L): times for which a server that was replaced may still grant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    /// Longest failover window of all servers whose settings are known.
    pub(super) read: Duration,
    /// Longest failover window (time in which a replaced master may still grant) if servers whose
    /// settings are not known are included; it counts when a data history begins.
    pub(super) longest: Duration,
}

/// What the server shows besides its data, and what it asks for its clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nature {
    pub(super) replid: ReplicationId,
    pub(super) process: Process,
    pub(super) windows: Windows,
    /// Epoch in which the client of the batch was told that this is the master.
    pub(super) epoch: Option<u64>,
    /// Random name for a history that begins with the batch.
    pub(super) name: u64,
}

impl Nature {
    pub(super) fn shown(self, kept: &Kept, clock: Clock) -> Shown {
        Shown {
            marker: kept.marker,
            is_empty: kept.marker.is_none(),
            note: kept.note,
            replid: self.replid,
            process: self.process,
            evicted: 0,
            micros: clock.micros,
        }
    }
}

/// State that all ops of one batch share.
#[derive(Clone, Debug)]
pub(super) struct Header {
    /// Facts about the node (clock, identity, data history) that the answer to the batch contains.
    pub(super) facts: Facts,
    /// Time in ns on the expiry clock, by which leases end.
    pub(super) now: u64,
    pub(super) floor: u64,
    /// True if the batch arrived after its deadline. Then only releases and unclaims (releases of a
    /// claim) are executed.
    pub(super) late: bool,
    /// True if leases given before a planned handover may have ended early by this clock.
    pub(super) settling: bool,
    /// End of that time by the wall clock in ms; 0 if it is over. It names the handover.
    pub(super) settles_till: u64,
    terms: Terms,
}

impl Header {
    /// Judges the data for a batch, and writes the marker and the note.
    ///
    /// # Errors
    /// The data are another vote's, or the node is closed. Nothing was written.
    pub(super) fn open(
        kept: &mut Kept,
        nature: Nature,
        identity: &Arc<str>,
        clock: Clock,
        batch: &Batch,
    ) -> Result<Self, NodeError> {
        let asked = Asked {
            max_ttl: batch.terms.max_ttl,
            clock_error: batch.terms.clock_error,
            window: nature.windows.read,
            longest_window: nature.windows.longest,
            trust_fresh: false,
            allow_eviction: false,
            epoch: nature.epoch,
            remembers: batch.remembers,
            name: nature.name,
        };
        let (m, change) = match lineage::judge(&nature.shown(kept, clock), &asked) {
            Verdict::Goes(marker, change) => (marker, change),
            Verdict::Closed(rest) => {
                let detail = format!("closed for another {rest:?} at most");
                return Err(NodeError::not_executed(NodeFault::HandingOver, detail));
            }
            Verdict::Foreign(theirs) => {
                let detail = lineage::foreign(&batch.remembers.newest, &theirs, identity);
                return Err(NodeError::not_executed(NodeFault::ForeignData, detail));
            }
        };
        kept.marker = Some(m);
        if !batch.ops.iter().all(Op::only_reads) || batch.ops.is_empty() {
            let own = |n: &Note| (n.history, n.generation) == (m.history, m.generation);
            let seq = kept.note.filter(own).map_or(0, |note| note.seq) + 1;
            let Marker { history, generation, .. } = m;
            kept.note = Some(Note { history, generation, seq, micros: clock.micros });
        }
        let not_after = batch.not_after.as_ref().map(|moment| moment.on(identity));
        let late = not_after.is_some_and(|t| clock.micros > t);
        let settles = m.settles(clock.micros / 1_000);
        // All clients use the largest E that any has asked for.
        let terms = Terms {
            max_ttl: batch.terms.max_ttl,
            clock_error: Duration::from_micros(m.clock_error),
        };
        let mut facts = m.facts((kept.note, clock.micros), change, &asked, identity);
        facts.quarantine_asked = batch.terms.max_ttl.saturating_add(nature.windows.read);
        let (settling, settles_till) = (settles.is_some(), settles.unwrap_or(0));
        let (now, floor) = (clock.now, m.floor);
        Ok(Self { facts, now, floor, late, settling, settles_till, terms })
    }

    /// Returns the identifier of the quarantine (time without grants) with which this data history
    /// began.
    pub(super) fn id(&self) -> QuarantineId {
        self.facts.history()
    }

    /// Returns true if the node is in quarantine, so that it grants nothing.
    pub(super) fn is_quarantined(&self) -> bool {
        !self.facts.quarantine.is_zero()
    }

    /// Returns the reply of a node in quarantine (it may have lost leases) to a request for a
    /// grant.
    pub(super) fn quarantined(&self) -> Reply {
        let (remaining, began) = (self.facts.quarantine, self.facts.began);
        Reply::Quarantined { remaining, id: self.id(), began }
    }

    /// Returns true if the node accepts the extension of a lease: always if it is in no quarantine
    /// (time without grants), and during a quarantine only if the holder names that quarantine.
    pub(super) fn may_extend(&self, reassert: Option<QuarantineId>) -> bool {
        !self.is_quarantined() || reassert == Some(self.id())
    }

    /// Returns the time on the expiry clock that is `span` from now.
    pub(super) fn after(&self, span: Duration) -> u64 {
        self.now.saturating_add(nanos(span))
    }

    /// Returns the time left until `till`; zero if it has passed.
    pub(super) fn until(&self, till: u64) -> Duration {
        Duration::from_nanos(till.saturating_sub(self.now))
    }

    /// Returns the time until which the node keeps a fence (last fencing token of a lock) that is
    /// used now. After that time even a client whose clock is behind proposes a larger fence.
    pub(super) fn fence_till(&self) -> u64 {
        let lead = token_lead(self.terms.clock_error);
        self.after(self.terms.max_ttl + lead + FENCE_SLACK)
    }

    /// Returns the time until which the node keeps a record that is written now. By any clock, the
    /// record lasts for its retention. Its promise (the highest ballot that the node has accepted)
    /// lasts until every late request has arrived.
    pub(super) fn record_till(&self, retention: Duration) -> u64 {
        let kept = retention + 2 * self.terms.clock_error + Duration::from_millis(1);
        self.after(kept).max(self.fence_till())
    }

    /// Returns the largest difference between the clocks of two nodes.
    pub(super) fn apart(&self) -> Duration {
        2 * self.terms.clock_error
    }

    /// Returns this node's losses of data and its clock, from which the caller derives if a claim
    /// of a key may be lost.
    pub(super) fn lost_claims(&self) -> LostClaims {
        let Facts { losses, began, node_micros, .. } = &self.facts;
        LostClaims::new(Arc::clone(losses), *began, self.terms.clock_error, node_micros / 1_000)
    }

    /// Returns true if a request made at `created` (milliseconds since 1970) is older than the
    /// retention, the time for which records are kept.
    pub(super) fn is_too_old(&self, created: Option<u64>, retention: Duration) -> bool {
        created.is_some_and(|at| at + millis(retention) < self.facts.node_micros / 1_000)
    }

    /// Returns the fence (fencing token) of a new grant: the largest of `fence + 1`, the proposal,
    /// and the floor (smallest token of this data history). The proposal is first limited to this
    /// node's clock ± E, the largest clock error.
    pub(super) fn next_fence(&self, fence: u64, proposal: u64) -> u64 {
        let error = micros(self.terms.clock_error);
        let low = self.facts.node_micros.saturating_sub(error);
        let high = self.facts.node_micros.saturating_add(error);
        fence.saturating_add(1).max(proposal.clamp(low, high)).max(self.floor)
    }

    /// Returns true if a token is further ahead of this node's clock than correct clocks and nodes
    /// can produce.
    pub(super) fn is_ahead(&self, token: u64) -> bool {
        token > self.facts.node_micros.saturating_add(micros(raise_lead(self.terms.clock_error)))
    }
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
