//! Settles one fencing token from the fences that the nodes granted (locks 3).
//!
//! The largest granted fence would not be a safe token. Of five nodes, three may grant 5, 3 and 3
//! to a first attempt. A second attempt, which has only one of these nodes in its majority, may be
//! granted 4, 1 and 1: the tokens would be 5 and then 4. So a token is either a value that a
//! majority granted, or the largest granted value after a majority has been raised to it. `acquire`
//! decides which nodes are asked to raise, and when.

use crate::quorum::majority::majority;

/// Next step to settle the token, by the grants so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// A majority granted this value, so it is the token.
    Agreed(u64),
    /// No value is on a majority. The nodes that granted less must be raised to this value, the
    /// largest.
    Raise(u64),
}

/// Decides how the token is settled. `grants` are the fences that at least a majority of `n` nodes
/// granted.
pub fn settle(n: usize, grants: impl Iterator<Item = u64>) -> Settled {
    let mut values: Vec<u64> = grants.collect();
    values.sort_unstable();
    let need = majority(n);
    // The value that a majority granted, if there is one; two different ones are impossible.
    let agreed = values.windows(need).find(|w| w.first() == w.last()).map(|w| w[0]);
    match (agreed, values.last()) {
        (Some(t), _) => Settled::Agreed(t),
        (None, last) => Settled::Raise(last.copied().unwrap_or(0)),
    }
}
