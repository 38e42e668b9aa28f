//! Majorities of the nodes. The algorithms use only one property of majorities: any two majorities
//! share a node.

/// Returns the size of a majority of `n` nodes: `n / 2 + 1`. It is the smallest number for which
/// any two sets with this number of nodes share a node.
pub const fn majority(n: usize) -> usize {
    n / 2 + 1
}

const _: () = assert!(majority(1) == 1 && majority(4) == 3 && majority(5) == 3);
