//! Copies of a simulated master's earlier data, as a replica or a disk may have kept them.

use std::collections::VecDeque;

use palisade::{node::MemoryNode, test_util::MemorySnapshot};

use crate::plan::Ms;

/// Maximum number of stored copies, in addition to the first copy.
const MOST: usize = 400;

/// Copies of a master's data, each with its true time in nanoseconds.
pub(super) struct Copies {
    every: u64,
    first: MemorySnapshot,
    later: VecDeque<(u64, MemorySnapshot)>,
}

impl Copies {
    pub(super) fn new(every: Ms, first: MemorySnapshot) -> Self {
        Self { every: every * 1_000_000, first, later: VecDeque::new() }
    }

    pub(super) fn take(&mut self, now: u64, memory: &MemoryNode) {
        if self.later.back().is_some_and(|(at, _)| now < at + self.every) {
            return;
        }
        if self.later.len() >= MOST {
            // Half of the copies are dropped, every second one, so both old and recent copies
            // remain.
            let mut keep = false;
            self.later.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.later.push_back((now, memory.snapshot()));
    }

    /// Returns the newest copy that is at least `span` old, and the true time of that copy in
    /// nanoseconds.
    pub(super) fn behind(&self, now: u64, span: Ms) -> (u64, MemorySnapshot) {
        let until = now.saturating_sub(span * 1_000_000);
        let old = self.later.iter().rev().find(|(at, _)| *at <= until);
        old.map_or_else(|| (0, self.first.clone()), Clone::clone)
    }
}
