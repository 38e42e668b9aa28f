//! Settles one fencing token from the fences that the nodes granted (locks 3).
//!
//! The largest granted fence is not a safe token. Example: of five nodes, three grant the fences 5,
//! 3 and 3 to a first attempt. The majority of a second attempt may contain only one of these three
//! nodes, and may grant 4, 1 and 1. The tokens would be 5 and then 4. So a token is one of two
//! values: a value that a majority granted, or the largest granted value after a majority has
//! raised its fence to this value. The module `acquire` makes the requests that raise fences.

use crate::quorum::majority::majority;

/// Next step to settle the token, derived from the grants so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// A majority granted this value. It is the token.
    Agreed(u64),
    /// No value is on a majority. Contains the largest granted value. The nodes that granted a
    /// smaller value must raise their fence to this value.
    Raise(u64),
}

/// Returns the next step to settle the token. `grants` are the fences that the nodes granted; the
/// caller has grants of at least a majority of the `n` nodes.
pub fn settle(n: usize, grants: impl Iterator<Item = u64>) -> Settled {
    let mut values: Vec<u64> = grants.collect();
    values.sort_unstable();
    let need = majority(n);
    // The list is sorted. So `need` equal values in a row are a value that a majority granted. At
    // most one value can have a majority.
    let agreed = values.windows(need).find(|w| w.first() == w.last()).map(|w| w[0]);
    match (agreed, values.last()) {
        (Some(t), _) => Settled::Agreed(t),
        (None, last) => Settled::Raise(last.copied().unwrap_or(0)),
    }
}
