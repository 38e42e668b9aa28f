//! Ops that are sent to a node together, and the answers to them.

use std::time::Duration;

use super::{Enlist, Facts, NotAfter, Op, Remembered, Reply};
use crate::error::NodeError;
use crate::name::LockKeys;

/// Bounds that the client states for all ops of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Longest lease that any client may hold. The node's quarantine is at least this long.
    pub max_ttl: Duration,
    /// E, the largest error of any clock against true time. The node uses it to limit proposed
    /// tokens, and for the floor.
    pub clock_error: Duration,
}

/// Ops for one node, which executes them in order, each atomically. A batch without ops only asks
/// for the facts that a node reports with its answer.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Bounds that hold for all ops of the batch.
    pub terms: Terms,
    /// Deadline by the clock of the server. Each op that arrives later is answered with the fault
    /// [`PastDeadline`](crate::error::NodeFault::PastDeadline), except releases of locks and of
    /// claims.
    pub not_after: Option<NotAfter>,
    /// What this client has seen of the node's data. A node whose data are older than that begins a
    /// new history, and one with another vote's data refuses the batch.
    pub remembers: Remembered,
    /// Ops, in the order in which they must take effect.
    pub ops: Vec<Op>,
}

/// Answers to a [`Batch`], one per op and in its order.
#[derive(Clone, Debug)]
pub struct Replies {
    /// Facts that the node reported about itself; `None` if it could not report them.
    pub facts: Option<Facts>,
    /// Answers to the ops, in the order of the ops.
    pub items: Vec<Result<Reply, NodeError>>,
}

impl Replies {
    /// Makes the answer in which all `n` ops have the same fault.
    pub fn fail(n: usize, error: &NodeError) -> Self {
        Self { facts: None, items: (0..n).map(|_| Err(error.clone())).collect() }
    }
}

impl Op {
    pub(crate) fn only_reads(&self) -> bool {
        matches!(self, Self::Inspect { .. } | Self::Lookup { .. })
    }

    pub(crate) fn several(&self) -> Option<&LockKeys> {
        self.lock_keys().filter(|keys| keys.is_many())
    }

    /// In bytes: what the node is to store, or the keys of several locks. The number of ops in a
    /// batch limits the keys of one lock.
    pub(crate) fn payload(&self) -> usize {
        match self {
            Self::Complete { value: Some(bytes), .. } | Self::Extend { meta: Some(bytes), .. } => {
                bytes.len()
            }
            Self::Steps { list, .. } => list.len(),
            Self::Enlist(Enlist { entry: Some(entry), .. }) => entry.len(),
            _ => self.several().map_or(0, LockKeys::bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::LockMode;
    use crate::token::OwnerToken;

    #[test]
    fn the_keys_of_several_locks_count_as_bytes_of_a_batch() {
        let release = |keys: &LockKeys| Op::Release {
            mode: LockMode::Exclusive,
            keys: keys.clone(),
            owner: OwnerToken::from_random(1),
            meta: false,
        };
        let names: Vec<_> = (0..32).map(|n| LockKeys::new(&format!("{n:0500}"))).collect();
        let one = release(&names[0]).payload();
        assert_eq!(one, 0, "a batch of ops on one lock each is limited by their number");
        let all = release(&LockKeys::many(names)).payload();
        assert!(all > 32 * 3 * 500 && all < 32 * 5 * 500, "{all}");
    }
}
