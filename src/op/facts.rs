//! Facts that a node reports about itself.

use std::sync::Arc;
use std::time::Duration;

use super::{Began, Loss, QuarantineId};
use crate::time::{Moment, NodeClock};

/// Facts that a node reports with each batch, at no extra cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Wall clock of the node in microseconds since 1970.
    pub node_micros: u64,
    /// Identity of the data history (digest of `master_replid`).
    pub history_id: u64,
    /// Start of this history's quarantine, in the node's own unit; zero if it never had one.
    pub since: u64,
    /// Identity of the server process (`run_id`).
    pub identity: Arc<str>,
    /// Rest of the quarantine; zero outside of one.
    pub quarantine: Duration,
    /// Length of the quarantine as agreed on the node: the longest that any client asked for lately
    /// (quarantine 7).
    pub quarantine_len: Duration,
    /// Length that this batch asked for: its `max_ttl` and the node's failover window.
    pub quarantine_asked: Duration,
    /// True if the batch found a shorter length, for which another client had asked, and raised it.
    pub quarantine_raised: bool,
    /// True if this batch set the marker: the history is new.
    pub new_history: bool,
    /// True if there was no marker before: the node is new, or lost its data.
    pub marker_missing: bool,
    /// State of the data at their beginning.
    pub began: Began,
    /// Losses of these data, the latest last.
    pub losses: Arc<[Loss]>,
}

impl Facts {
    /// Returns the name of the data history, and of the quarantine that it began with.
    pub(crate) fn history(&self) -> QuarantineId {
        QuarantineId { history: self.history_id, since: self.since }
    }
}

/// Facts with the times of their request and of their arrival.
#[derive(Clone, Debug)]
pub struct TimedFacts {
    /// Server clock, run id and data history.
    pub facts: Facts,
    /// Time before the request was sent.
    pub sent: Moment,
    /// Time after the answer had come.
    pub received: Moment,
}

impl TimedFacts {
    /// Returns the server's clock and the server's identity.
    pub(crate) fn clock(&self) -> (NodeClock, Arc<str>) {
        let clock = NodeClock { micros: self.facts.node_micros, read: self.received };
        (clock, Arc::clone(&self.facts.identity))
    }
}
