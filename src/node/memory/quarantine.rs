//! First step of every batch on a [`MemoryNode`](super::MemoryNode): judges the node's data, as the
//! clients of a server do.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{NodeError, NodeFault};
use crate::node::lineage::{self, Asked, Marker, Note, Process, ReplicationId, Shown, Verdict};
#[cfg(feature = "test-util")]
use crate::op::Lineage;
use crate::op::{Batch, Op, Terms};
use crate::rules::header::Header;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    pub(super) marker: Option<Marker>,
    pub(super) note: Option<Note>,
    /// As a server's key that shows whether the slot of a cluster was away (cluster 7).
    pub(super) is_raw: bool,
}

impl Kept {
    #[cfg(feature = "test-util")]
    pub(super) fn lineage(&self) -> Option<Lineage> {
        self.marker.map(|marker| marker.lineage(self.note))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// In nanoseconds; never zero.
    pub(super) now: u64,
    /// In microseconds since 1970.
    pub(super) micros: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    pub(super) read: Duration,
    pub(super) longest: Duration,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Nature {
    pub(super) replid: ReplicationId,
    pub(super) process: Process,
    pub(super) evicted: u64,
    pub(super) windows: Windows,
    pub(super) epoch: Option<u64>,
    pub(super) watched: Option<u64>,
    pub(super) disturbed: Option<u64>,
    pub(super) durable: bool,
    pub(super) name: u64,
}

impl Nature {
    pub(super) fn shown(self, kept: &Kept, clock: Clock) -> Shown {
        let follows = |watched| kept.marker.is_some_and(|m| watched <= m.epoch);
        let was_open = |at| kept.marker.is_some_and(|m| m.since * 1_000 <= at);
        Shown {
            marker: kept.marker,
            is_empty: kept.marker.is_none(),
            note: kept.note,
            replid: self.replid,
            process: self.process,
            evicted: self.evicted,
            stayed: kept.is_raw && self.watched.is_some_and(follows),
            disturbed: self.disturbed.is_some_and(was_open),
            micros: clock.micros,
        }
    }
}

/// An error if the data are another vote's, or the node is closed: then nothing was written.
pub(super) fn open(
    kept: &mut Kept,
    nature: Nature,
    identity: &Arc<str>,
    clock: Clock,
    batch: &Batch,
) -> Result<Header, NodeError> {
    let asked = Asked {
        max_ttl: batch.terms.max_ttl,
        clock_error: batch.terms.clock_error,
        window: nature.windows.read,
        longest_window: nature.windows.longest,
        trust_fresh: false,
        allow_eviction: false,
        durable: nature.durable,
        disturbed: None,
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
    kept.is_raw |= kept.marker != Some(m);
    kept.marker = Some(m);
    let not_after = batch.not_after.as_ref().map(|moment| moment.on(identity));
    let late = not_after.is_some_and(|t| clock.micros > t);
    // A note of a late batch would say that this server was the master until now (quarantine 16).
    if !late && (batch.ops.is_empty() || !batch.ops.iter().all(Op::only_reads)) {
        let own = |n: &Note| (n.history, n.generation) == (m.history, m.generation);
        let seq = kept.note.filter(own).map_or(0, |note| note.seq) + 1;
        let Marker { history, generation, .. } = m;
        kept.note = Some(Note { history, generation, seq, micros: clock.micros });
    }
    let settles = m.settles(clock.micros / 1_000);
    // All clients use the largest E that any has asked for.
    let terms =
        Terms { max_ttl: batch.terms.max_ttl, clock_error: Duration::from_micros(m.clock_error) };
    let mut facts = m.facts((kept.note, clock.micros), change, &asked, identity);
    facts.quarantine_asked = batch.terms.max_ttl.saturating_add(nature.windows.read);
    let (settling, settles_till) = (settles.is_some(), settles.unwrap_or(0));
    let (now, floor) = (clock.now, m.floor);
    Ok(Header { facts, now, floor, late, settling, settles_till, terms, is_young: false })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::node::memory::tests::{acquire, node};
    use crate::op::{Batch, NotAfter, Remembered, Terms};

    #[test]
    fn a_late_batch_is_no_write_that_counts() {
        let (node, hand) = node();
        let (max_ttl, clock_error) = (Duration::from_secs(30), Duration::from_secs(60));
        let terms = Terms { max_ttl, clock_error };
        let batch = |not_after| {
            let ops = vec![acquire("lock", 1, 0)];
            Batch { terms, not_after, remembers: Remembered::default(), ops }
        };
        let first = node.execute(&batch(None)).facts.unwrap();
        hand.pass(Duration::from_secs(10));
        let not_after = NotAfter { server: first.identity, micros: first.node_micros + 1 };
        let late = node.execute(&batch(Some(not_after))).facts.unwrap();
        assert_eq!(late.lineage, first.lineage);
    }
}
