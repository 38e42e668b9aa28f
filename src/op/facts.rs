//! Facts that a node reports about itself.

use std::sync::Arc;
use std::time::Duration;

use super::{Began, Loss, QuarantineId};
use crate::time::{Moment, NodeClock};

/// Report of a node about itself with each batch, at no extra cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The node's wall clock, microseconds since 1970.
    pub node_micros: u64,
    /// Identity of the data history (digest of `master_replid`).
    pub history_id: u64,
    /// Start of this history's quarantine, in the node's own unit; zero if it never had one.
    pub since: u64,
    /// Identity of the server process (`run_id`).
    pub identity: Arc<str>,
    /// Rest of the quarantine; zero outside.
    pub quarantine: Duration,
    /// The quarantine's length as agreed on the node: the largest that any client asked for
    /// lately (quarantine 7).
    pub quarantine_len: Duration,
    /// Length that this batch asked for: its `max_ttl` and the node's failover window.
    pub quarantine_asked: Duration,
    /// The batch found a shorter length there, which another client had asked for, and raised it.
    pub quarantine_raised: bool,
    /// The batch itself set the marker: the history is new.
    pub new_history: bool,
    /// … and there was none before: the node is new, or lost its data.
    pub marker_missing: bool,
    /// Origin of these data.
    pub began: Began,
    /// Losses of these data, the latest last.
    pub losses: Arc<[Loss]>,
}

impl Facts {
    /// The name of the data history, and of the quarantine that it began with.
    pub(crate) fn history(&self) -> QuarantineId {
        QuarantineId { history: self.history_id, since: self.since }
    }
}

/// Facts with the time at which they were asked for, and at which they came.
#[derive(Clone, Debug)]
pub struct TimedFacts {
    /// Server clock, run id and data history.
    pub facts: Facts,
    /// Before the request was sent.
    pub sent: Moment,
    /// After the answer had come.
    pub received: Moment,
}

impl TimedFacts {
    /// Returns the server's clock, and which server it is.
    pub(crate) fn clock(&self) -> (NodeClock, Arc<str>) {
        let clock = NodeClock { micros: self.facts.node_micros, read: self.received };
        (clock, Arc::clone(&self.facts.identity))
    }
}
