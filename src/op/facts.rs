//! Facts that a node reports about itself.

use std::sync::Arc;
use std::time::Duration;

use super::{Began, Lineage, Loss, QuarantineId};
use crate::time::{Moment, NodeClock};

/// Facts that a node reports about itself in the answer to each batch, so they cost no request of
/// their own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Facts {
    /// Wall clock of the node in microseconds since 1970.
    pub node_micros: u64,
    /// Random identifier of the data history. It stays when the server only renames its data.
    pub history_id: u64,
    /// Digest of `master_replid`, the name that the server gives to its data.
    pub replication: u64,
    /// Whose data these are, and how far they are written.
    pub lineage: Lineage,
    /// Time at which the quarantine at the start of this data history began, by the node's clock
    /// and in the node's own unit; zero if the node never had a quarantine.
    pub since: u64,
    /// Identity of the server process (`run_id`).
    pub identity: Arc<str>,
    /// Time until the quarantine ends; zero outside of a quarantine.
    pub quarantine: Duration,
    /// Length of a quarantine on this node (quarantine 7).
    pub quarantine_len: Duration,
    /// Length of a quarantine that this batch asked for: its `max_ttl` and the node's L together.
    pub quarantine_asked: Duration,
    /// Clock error E that the node reckons with: the largest that any client has asked for
    /// (quarantine 7).
    pub clock_error: Duration,
    /// Clock error that this batch asked for.
    pub clock_error_asked: Duration,
    /// True if this batch asked for a longer quarantine or a larger clock error than any other
    /// client, so that the node raised its own.
    pub quarantine_raised: bool,
    /// True if this batch was the first in a new data history, and wrote its marker.
    pub new_history: bool,
    /// True if a server that was declared durable lacks data that this client has seen. So this
    /// batch began a new history.
    pub refuted: bool,
    /// True if the server has given another name to its data, and nothing was lost, by this batch's
    /// proof or by declaration. So no history began.
    pub renamed: bool,
    /// True if the node had no marker before this batch: it is new, or has lost its data.
    pub marker_missing: bool,
    /// Origin of the node's data.
    pub began: Began,
    /// Ranges of writes that the node's data may lack, the latest last.
    pub losses: Arc<[Loss]>,
}

impl Facts {
    pub(crate) fn history(&self) -> QuarantineId {
        QuarantineId { history: self.history_id, since: self.since }
    }
}

/// Facts of a node, with the times at which they were requested and received.
#[derive(Clone, Debug)]
pub struct TimedFacts {
    /// The facts that the node reported.
    pub facts: Facts,
    /// Time just before the request for the facts was sent.
    pub sent: Moment,
    /// Time at which the answer with the facts had arrived.
    pub received: Moment,
}

impl TimedFacts {
    pub(crate) fn clock(&self) -> (NodeClock, Arc<str>) {
        let clock = NodeClock { micros: self.facts.node_micros, read: self.received };
        (clock, Arc::clone(&self.facts.identity))
    }
}
