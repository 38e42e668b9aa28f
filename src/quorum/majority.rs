//! Majorities: any two of them share a node, and that is all there is to it.

/// The smallest number of nodes such that any two sets of that size meet: `n / 2 + 1`.
pub const fn majority(n: usize) -> usize {
    n / 2 + 1
}

const _: () = assert!(majority(1) == 1 && majority(4) == 3 && majority(5) == 3);

/// Running count of a vote by yes and no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoteCount {
    /// How many vote.
    pub n: usize,
    /// Said yes.
    pub yes: usize,
    /// Will not say yes any more.
    pub no: usize,
}

/// Three-valued result of a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoteResult {
    /// Both are still possible.
    Pending,
    /// A majority said yes.
    Won,
    /// A majority for yes is no longer possible.
    Lost,
}

impl VoteCount {
    /// What the count so far means.
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
