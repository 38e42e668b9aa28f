//! Settling one fencing token from the fences that the nodes granted (locks 3).
//!
//! "The largest granted" alone is not enough: counters 5,3,3 then 4,1,1 on overlapping majorities
//! would hand out 5 and then 4. Either one value is already on a majority, or the largest is raised
//! on a majority before it may be used. `acquire` decides which nodes are asked to raise, and when.

use crate::quorum::majority::majority;

/// State of the token, judged by the grants so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// This value was granted by a majority.
    Agreed(u64),
    /// No value is on a majority: nodes that granted less must be raised to this one, the largest.
    Raise(u64),
}

/// Judges the grants of `n` nodes, which must be at least a majority.
pub fn settle(n: usize, grants: impl Iterator<Item = u64>) -> Settled {
    let mut values: Vec<u64> = grants.collect();
    values.sort_unstable();
    let need = majority(n);
    // The largest value that a majority granted, if there is one (two cannot be).
    let agreed = values.windows(need).find(|w| w.first() == w.last()).map(|w| w[0]);
    match (agreed, values.last()) {
        (Some(t), _) => Settled::Agreed(t),
        (None, last) => Settled::Raise(last.copied().unwrap_or(0)),
    }
}
