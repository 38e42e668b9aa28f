//! Majorities of the nodes. The algorithms use only one property of majorities: any two majorities
//! share a node.

/// Returns the size of a majority of `n` nodes: `n / 2 + 1`. It is the smallest size at which any
/// two sets of nodes share a node.
pub const fn majority(n: usize) -> usize {
    n / 2 + 1
}

const _: () = assert!(majority(1) == 1 && majority(4) == 3 && majority(5) == 3);

/// Number of yes and no votes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoteCount {
    /// Number of nodes with a vote.
    pub n: usize,
    /// Number of nodes that voted yes.
    pub yes: usize,
    /// Number of nodes that can no longer vote yes.
    pub no: usize,
}

/// Result of a vote that may still be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoteResult {
    /// No majority yet; both results are possible.
    Pending,
    /// A majority voted yes.
    Won,
    /// A majority for yes is no longer possible.
    Lost,
}

impl VoteCount {
    /// Returns the result of the count so far.
    pub const fn result(self) -> VoteResult {
        let need = majority(self.n);
        if self.yes >= need {
            VoteResult::Won
        } else if self.no > self.n - need {
            VoteResult::Lost
        } else {
            VoteResult::Pending
        }
    }
}
