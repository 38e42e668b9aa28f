//! A node in memory as a value, for programs that explore every history of a small world. Time is
//! passed in, and nothing happens but what its methods do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::State;
use super::quarantine::Clock;
use crate::op::{Batch, Replies};
use crate::time::Moment;

/// The state of a [`MemoryNode`](super::MemoryNode) without its clock.
#[derive(Clone, Debug)]
pub struct NodeValue(State);

impl NodeValue {
    /// All identities and data histories of the node are made from `seed`.
    pub fn new(seed: u64) -> Self {
        let mut state = State::new(seed, Duration::ZERO);
        state.mark((0, seed), seed);
        Self(state)
    }

    /// `now` is the node's clock for leases, and `micros` its wall clock.
    pub fn execute(&mut self, now: Moment, micros: u64, batch: &Batch) -> Replies {
        // As `MemoryNode`, whose `now` is never zero.
        let clock = Clock { now: now.as_nanos().saturating_add(1), micros };
        let seed = self.0.seed;
        self.0.execute(clock, seed, batch).0
    }

    /// As [`MemoryNode::lose_data`](super::MemoryNode::lose_data).
    pub fn lose_data(&mut self) {
        self.0.reborn(|state| {
            state.data = super::Data::default();
            state.is_known = true;
        });
    }

    /// The name of the process, as in [`Facts`](crate::op::Facts).
    pub fn identity(&self) -> Arc<str> {
        self.0.identity()
    }

    /// As [`MemoryNode::is_empty`](super::MemoryNode::is_empty).
    pub fn is_empty(&self) -> bool {
        self.0.data.len() == 0
    }
}

/// All that decides what the node does from now on, if its clock is never set back and its data are
/// never put back. Then nothing reads the note.
impl fmt::Display for NodeValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let State { lives, is_known, data, .. } = &self.0;
        let marker =
            data.kept.marker.map(|m| (m.history, m.since, m.floor, m.quarantine, m.losses));
        let rows = (&data.locks, &data.records);
        write!(f, "{lives} {is_known} {marker:?} {rows:?}")
    }
}
