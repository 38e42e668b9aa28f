//! The mode of a grant.

use super::Slots;

/// Mode of a grant. It determines the other grants of the lock that may exist beside this grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// Grant of a mutex, a writer or a leader. It allows no other grant beside it.
    #[default]
    Exclusive,
    /// Grant of one of several readers. It allows other shared grants beside it, and no exclusive
    /// grant.
    Shared,
    /// One of several numbered slots: a permit of a semaphore. It allows grants of other slots. The
    /// keys of a semaphore are used in this mode only.
    Slot(Slots),
}

impl LockMode {
    /// Returns true for [`Shared`](Self::Shared).
    pub fn is_shared(self) -> bool {
        self == Self::Shared
    }

    /// Returns the slots that the op is for, if it is about a permit.
    pub fn slots(self) -> Option<Slots> {
        match self {
            Self::Slot(slots) => Some(slots),
            Self::Exclusive | Self::Shared => None,
        }
    }
}
