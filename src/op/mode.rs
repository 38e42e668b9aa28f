//! The mode of a grant: exclusive or shared.

/// Mode of a grant: which other grants of the lock it allows beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// The only grant: a mutex, a writer, a leader.
    #[default]
    Exclusive,
    /// One of several readers: it allows other shared grants, and no exclusive one.
    Shared,
}

impl LockMode {
    /// Returns true for [`Shared`](Self::Shared).
    pub fn is_shared(self) -> bool {
        self == Self::Shared
    }
}
