//! Requests to a node where a lock is held by another owner.

use std::time::Duration;

use crate::token::OwnerToken;

/// Request to a node where another owner has the lock: a hint once it is free, or the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfHeld {
    /// The next release wakes it with all others that watch, and reserves nothing for it: it has no
    /// place in the queue. Candidates of an election ask so, because they decide among themselves
    /// who attempts first.
    Watch,
    /// Releases wake those in the queue one after the other.
    Queue(Place),
    /// If this owner or the caller holds the lock and its remaining ttl is at most the caller's,
    /// the node transfers it to the caller atomically and deletes the previous owner's metadata. No
    /// third owner can have it in between, and the time for which it is held is never shortened.
    /// Otherwise the caller is refused and registers for no hint. A node that is settling after a
    /// planned handover also transfers a lock it holds.
    TakeFrom(OwnerToken),
}

/// A place among those who wait for a lock, one per handle. The one that has waited longest is the
/// first.
///
/// A release wakes the first and reserves the lock for it: until it asks, or the time is over,
/// others are refused as if it were held, but it has no owner. A handle that does not need its turn
/// gives it back: it releases with [`OwnerToken::reserved_for`] itself as the owner, and that wakes
/// the next.
///
/// [`OwnerToken::reserved_for`]: crate::token::OwnerToken::reserved_for
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The handle that waits; [`NodeSignal::Turn`](crate::node::NodeSignal::Turn) names it.
    pub waiter: u64,
    /// Time waited so far. A span, not an instant, so that no two clocks are compared.
    pub waited: Duration,
    /// Time for which a released lock is reserved for it when it is its turn, at most 50 ms: enough
    /// to receive the hint and to ask. Zero: it is not reserved.
    pub needs: Duration,
}

impl IfHeld {
    /// The place in the queue, if it has one.
    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            Self::Queue(place) => Some(place),
            Self::Watch | Self::TakeFrom(_) => None,
        }
    }
}
