//! The action of a node about an acquire if another owner has the lock.

use std::time::Duration;

use crate::token::{FencingToken, OwnerToken};

/// Action of a node about an acquire if another owner has the lock: register the caller for a hint,
/// or transfer the lock to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfHeld {
    /// The node notifies this handle of the next release of the lock, together with all others that
    /// watch it. The handle has no place in the queue, so the lock is not reserved for it.
    /// Candidates of an election use this, because they decide among themselves which of them
    /// attempts first.
    Watch,
    /// The handle gets this place in the lock's queue. Each release wakes only the first handle in
    /// the queue.
    Queue(Place),
    /// As [`Queue`](Self::Queue), in the order of tickets: no acquire that asks in this way is
    /// granted past a fair place with a smaller ticket whose handle has asked in the last 3 s
    /// (fair 3). The answer to a refusal is `Queued` if the handle has its place now (fair 1, 2).
    /// The place stays when the handle is woken, and when it is granted the lock (fair 4, 5). It is
    /// removed by a release with `meta` whose owner is the handle's
    /// [`reserved_for`](OwnerToken::reserved_for), whoever has the lock. In another mode than
    /// [`Exclusive`](super::LockMode::Exclusive) it counts as `Queue`.
    Fair {
        /// Place of the handle; the time that it has waited does not count.
        place: Place,
        /// Ticket of the call; `None` in its first requests, in which it asks for one (fair 1).
        ticket: Option<u64>,
    },
    /// If the lock belongs to this owner, or already to the caller, and its remaining ttl is at
    /// most the ttl of the request, the node transfers it to the caller atomically and deletes the
    /// previous owner's metadata. So no third owner can have the lock in between, and the time for
    /// which it is held is never shortened. Otherwise the caller is refused, and no hint is
    /// registered. A node that is settling (a short time after a planned handover) transfers locks,
    /// too.
    ///
    /// Of several names it transfers those that this owner has, and those that are only reserved,
    /// together with the free ones, or none (multi_lock 6).
    TakeFrom(OwnerToken),
    /// As [`TakeFrom`](Self::TakeFrom), but a node where this owner has nothing refuses, and so
    /// does one whose fence is above `token`: another attempt was granted there since
    /// (hand_over 3). An earlier request of the caller that took the lock is recognised.
    TakeOnly {
        /// Owner from which the lock is taken.
        from: OwnerToken,
        /// Fencing token of that owner.
        token: FencingToken,
    },
}

/// Position of a fair caller among those who wait for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Number of fair callers that come first. The holder does not count.
    pub ahead: u16,
    /// Ticket, which orders the fair callers: the smaller one comes first.
    pub ticket: u64,
}

/// Place of a handle in a lock's queue of waiting handles. The handle that has waited longest is
/// the first.
///
/// A release wakes the first handle and reserves the lock for it: until this handle asks for the
/// lock, or the time [`needs`](Self::needs) is over, other handles are refused as if the lock were
/// held. A reserved lock has no owner. A handle that no longer needs its turn gives it back by
/// releasing the lock with [`OwnerToken::reserved_for`] itself as the owner, which wakes the next
/// handle.
///
/// [`OwnerToken::reserved_for`]: crate::token::OwnerToken::reserved_for
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the handle that waits. [`NodeSignal::Turn`](crate::node::NodeSignal::Turn)
    /// contains it when it is the handle's turn.
    pub waiter: u64,
    /// Time for which the handle has waited so far. It is a duration and not a time of day, so that
    /// no two clocks are compared.
    pub waited: Duration,
    /// Time for which a released lock is reserved for this handle when it is its turn, at most 50
    /// ms. It has to be enough to receive the hint and to send the request. If it is zero, the lock
    /// is not reserved.
    pub needs: Duration,
}

impl Place {
    /// Longest time for which a released lock is reserved, whatever its waiter
    /// [needs](Self::needs). The script has the same number, in `wait_for_hint` of `lua/locks.lua`.
    pub(crate) const RESERVED_MAX: Duration = Duration::from_millis(50);
}

impl IfHeld {
    /// Returns the place in the queue, if the request has one.
    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            Self::Queue(place) | Self::Fair { place, .. } => Some(place),
            Self::Watch | Self::TakeFrom(_) | Self::TakeOnly { .. } => None,
        }
    }
}
