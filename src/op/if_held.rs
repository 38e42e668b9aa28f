//! What is done where a lock is held by another.

use std::time::Duration;

use crate::token::OwnerToken;

/// What a caller wants of a node where another has the lock: a hint once it is free, or the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfHeld {
    /// The next release wakes it with everybody else who watches, and reserves nothing for it: it
    /// has no place in the queue. Candidates of an election ask so, because they decide among
    /// themselves who attempts first.
    Watch,
    /// Releases wake those in the queue one after the other.
    Queue(Place),
    /// If it is the lock of this owner, or the caller's own already, and has no longer to live
    /// there than the caller's ttl, it is the caller's from now on, in one step: there is no moment
    /// at which a third could have it, and its closing is never shortened. The metadata of who had
    /// it go. Else the caller is refused as any other, and asks for no hint. A lock that is held
    /// is given over while a node settles after a planned handover, too.
    TakeFrom(OwnerToken),
}

/// A place among those who wait for a lock, one per handle. The one that has waited longest is the
/// first.
///
/// A release wakes the first and reserves the lock for it: until it asks, or the time is over,
/// others are refused as if it were held, but nobody is its owner. A handle that does not need its
/// turn gives it back: it releases with [`OwnerToken::reserved_for`] itself as the owner, and that
/// wakes the next.
///
/// [`OwnerToken::reserved_for`]: crate::token::OwnerToken::reserved_for
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which handle waits; [`NodeEvent::Turn`](crate::node::NodeEvent::Turn) names it.
    pub waiter: u64,
    /// For how long. A span, not an instant, so that no two clocks are compared.
    pub waited: Duration,
    /// For how long a lock that was released is reserved for it when it is its turn, 50 ms at the
    /// most: as long as it takes to hear of it and to ask. Zero: it is not reserved.
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
