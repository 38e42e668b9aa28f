//! Majorities of the nodes. The algorithms use only one property of them: any two majorities share
//! a node.

/// Returns the smallest number of nodes such that any two sets of that size share a node: `n / 2 +
/// 1`.
pub const fn majority(n: usize) -> usize {
    n / 2 + 1
}

const _: () = assert!(majority(1) == 1 && majority(4) == 3 && majority(5) == 3);

/// Count of the votes so far, by yes and no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoteCount {
    /// Number of nodes that have a vote.
    pub n: usize,
    /// Number of nodes that said yes.
    pub yes: usize,
    /// Number of nodes that cannot say yes any more.
    pub no: usize,
}

/// Result of a vote that may still be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoteResult {
    /// The vote can still be won or lost.
    Pending,
    /// A majority said yes.
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
