//! Copies of a master's earlier data, as a replica or a disk may have them.

use std::collections::VecDeque;

use palisade::{node::MemoryNode, test_util::MemorySnapshot};

use crate::plan::Ms;

/// Largest number of copies that are kept, besides the first.
const MOST: usize = 400;

/// Copies of a master's data, each with its true time (ns).
pub(super) struct Copies {
    every: u64,
    first: MemorySnapshot,
    later: VecDeque<(u64, MemorySnapshot)>,
}

impl Copies {
    pub(super) fn new(every: Ms, first: MemorySnapshot) -> Self {
        Self { every: every * 1_000_000, first, later: VecDeque::new() }
    }

    /// Stores a copy of a server's data, unless the last copy is too recent.
    pub(super) fn take(&mut self, now: u64, memory: &MemoryNode) {
        if self.later.back().is_some_and(|(at, _)| now < at + self.every) {
            return;
        }
        if self.later.len() >= MOST {
            // Every second copy is dropped; old and recent copies are equally useful.
            let mut keep = false;
            self.later.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.later.push_back((now, memory.snapshot()));
    }

    /// Returns the newest copy that is at least `span` old, and its true time (ns).
    pub(super) fn behind(&self, now: u64, span: Ms) -> (u64, MemorySnapshot) {
        let until = now.saturating_sub(span * 1_000_000);
        let old = self.later.iter().rev().find(|(at, _)| *at <= until);
        old.map_or_else(|| (0, self.first.clone()), Clone::clone)
    }
}
