//! What a node's master had at earlier moments: what a replica, or a disk, may have.

use std::collections::VecDeque;

use palisade::{node::MemoryNode, test_util::MemorySnapshot};

use crate::plan::Ms;

/// Most copies that are kept, besides the first.
const MOST: usize = 400;

/// Copies with the true moment (ns) of each.
pub(super) struct Copies {
    every: u64,
    first: MemorySnapshot,
    later: VecDeque<(u64, MemorySnapshot)>,
}

impl Copies {
    pub(super) fn new(every: Ms, first: MemorySnapshot) -> Self {
        Self { every: every * 1_000_000, first, later: VecDeque::new() }
    }

    /// Remembers what a server has, unless a copy was taken a moment ago.
    pub(super) fn take(&mut self, now: u64, memory: &MemoryNode) {
        if self.later.back().is_some_and(|(at, _)| now < at + self.every) {
            return;
        }
        if self.later.len() >= MOST {
            // Every second one: old states are as good as young ones.
            let mut keep = false;
            self.later.retain(|_| {
                keep = !keep;
                keep
            });
        }
        self.later.push_back((now, memory.snapshot()));
    }

    /// The last copy that is at least so old, and its moment.
    pub(super) fn behind(&self, now: u64, span: Ms) -> (u64, MemorySnapshot) {
        let until = now.saturating_sub(span * 1_000_000);
        let old = self.later.iter().rev().find(|(at, _)| *at <= until);
        old.map_or_else(|| (0, self.first.clone()), Clone::clone)
    }
}
