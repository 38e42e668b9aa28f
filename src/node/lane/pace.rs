//! How many batches are under way, and how large they are.
//!
//! What comes back together is asked again together, so a lane left to itself falls into step: one
//! large batch that the server works on while the client waits, and the other way round. Where a
//! handle has several nodes, one of them has something to do meanwhile, and what counts is that
//! batches are few and large, for each costs both sides something. A lone node's lane cuts what is
//! queued into portions, so that the server always finds the next one.

use crate::node::LockNode;

/// Most ops in one batch: bounds how long one script may occupy a server.
pub(super) const BATCH_MAX: usize = 128;
/// Batches under way on a lone node, on each of several, and on one whose connection is in doubt.
const LONE: usize = 4;
const SHARED: usize = 2;
const IN_DOUBT: usize = 1;
/// Fewer than these are not worth cutting.
const PORTIONED: usize = 16;

pub(super) struct Pace {
    lone: bool,
    /// Ops under way.
    out: usize,
}

impl Pace {
    /// For one of so many nodes.
    pub(super) fn new(nodes: usize) -> Self {
        Self { lone: nodes == 1, out: 0 }
    }

    pub(super) fn is_lone(&self) -> bool {
        self.lone
    }

    /// How many batches may be under way. Two that both wait for a new connection, or ask for the
    /// node's clock first, could overtake each other.
    pub(super) fn depth(&self, node: &dyn LockNode, in_touch: bool) -> usize {
        let most = match (in_touch, self.lone) {
            (false, _) => IN_DOUBT,
            (true, true) => LONE,
            (true, false) => SHARED,
        };
        node.depth().clamp(1, most)
    }

    /// How many of those queued leave with the next batch at most.
    pub(super) fn most(&self, queued: usize, depth: usize) -> usize {
        if self.lone && queued >= PORTIONED {
            (queued + self.out).div_ceil(depth).min(BATCH_MAX)
        } else {
            BATCH_MAX
        }
    }

    pub(super) fn sent(&mut self, ops: usize) {
        self.out += ops;
    }

    pub(super) fn came_back(&mut self, ops: usize) {
        self.out = self.out.saturating_sub(ops);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lone_node_gets_portions_and_only_of_many() {
        let mut pace = Pace::new(1);
        assert_eq!(pace.most(15, 4), BATCH_MAX);
        assert_eq!(pace.most(64, 4), 16);
        pace.sent(16);
        assert_eq!(pace.most(48, 4), 16, "all portions are alike");
        pace.came_back(16);
        assert_eq!(pace.most(5_000, 4), BATCH_MAX);
        assert_eq!(Pace::new(3).most(64, 2), BATCH_MAX);
    }

    #[test]
    fn a_batch_takes_one_at_least() {
        for queued in 0..200 {
            assert!(Pace::new(1).most(queued, 4) > 0);
        }
    }
}
