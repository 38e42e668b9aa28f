//! The request to a node that applies if another owner has the lock.

use std::time::Duration;

use crate::token::OwnerToken;

/// Request to a node that applies if another owner has the lock: to register for a hint, or to
/// transfer the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfHeld {
    /// The next release wakes this handle together with all others that watch, and reserves nothing
    /// for it: it has no place in the queue. Candidates of an election use this, because they
    /// decide among themselves which of them attempts first.
    Watch,
    /// Releases wake the handles in the queue one after the other.
    Queue(Place),
    /// If this owner or the caller holds the lock and its remaining ttl is at most the caller's,
    /// the node transfers it to the caller atomically and deletes the previous owner's metadata. No
    /// third owner can have it in between, and the time for which it is held is never shortened.
    /// Otherwise the caller is refused and no hint is registered. A node that is settling after a
    /// planned handover also transfers a lock that it holds.
    TakeFrom(OwnerToken),
}

/// Place of a handle in the queue of those that wait for a lock. The handle that has waited longest
/// is the first.
///
/// A release wakes the first handle and reserves the lock for it: until that handle asks, or the
/// time is over, others are refused as if the lock were held, but it has no owner. A handle that
/// does not need its turn gives it back: it releases the lock with [`OwnerToken::reserved_for`]
/// itself as the owner, and that wakes the next.
///
/// [`OwnerToken::reserved_for`]: crate::token::OwnerToken::reserved_for
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the handle that waits; [`NodeSignal::Turn`](crate::node::NodeSignal::Turn) names
    /// it.
    pub waiter: u64,
    /// Time waited so far. A span, not an instant, so that no two clocks are compared.
    pub waited: Duration,
    /// Time for which a released lock is reserved for this handle when it is its turn, at most 50
    /// ms: enough to receive the hint and to send the request. Zero: it is not reserved.
    pub needs: Duration,
}

impl IfHeld {
    /// Returns the place in the queue, if the request has one.
    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            Self::Queue(place) => Some(place),
            Self::Watch | Self::TakeFrom(_) => None,
        }
    }
}
