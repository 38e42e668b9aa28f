//! What a node does with an acquire of a lock that another owner has.

use std::time::Duration;

use crate::token::{FencingToken, OwnerToken};

/// Action of a node on a request to acquire a lock that another owner has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfHeld {
    /// The node notifies this handle of the next release of the lock, together with all other
    /// handles that watch the lock. The handle has no place in the queue, so the lock is not
    /// reserved for it. Candidates of an election use this, because they decide among themselves
    /// which candidate attempts first.
    Watch,
    /// The handle gets this place in the lock's queue of waiters. Each release wakes only the first
    /// handle in the queue.
    Queue(Place),
    /// The handle gets a place in the lock's queue of waiters, which is in the order of the
    /// waiters' tickets. The node refuses the acquire while a place with a smaller ticket is fresh:
    /// its handle has asked in the last 3 s (fair 3). The answer is `Queued` if the node refuses
    /// and has given the handle its place (fair 1, 2). The handle keeps its place when it is woken,
    /// and when it is granted the lock (fair 4, 5). A release with `meta` and with the owner
    /// [`reserved_for`](OwnerToken::reserved_for) this handle removes the place, even if another
    /// owner has the lock. In a mode other than [`Exclusive`](super::LockMode::Exclusive), `Fair`
    /// counts as [`Queue`](Self::Queue).
    Fair {
        /// Place of the handle in the queue; the time for which it has waited does not count.
        place: Place,
        /// Ticket of this call; `None` in its first requests, which ask for a ticket (fair 1).
        ticket: Option<u64>,
    },
    /// The node transfers the lock to the caller atomically and deletes the previous owner's
    /// metadata, if the lock is held by this owner or already by the caller, and its remaining ttl
    /// is at most the ttl of the request: the time for which it is held is never shortened.
    /// Otherwise the node refuses, and does not register the caller for a hint. A node that is
    /// settling transfers locks, too.
    ///
    /// If the request has several names, the caller gets all of them or none. The node then
    /// transfers the names that this owner has and the names that are only reserved, and grants the
    /// free names (multi_lock 6). A reserved name that has to be kept refuses all (multi_lock 7).
    TakeFrom(OwnerToken),
    /// As [`TakeFrom`](Self::TakeFrom), but a node also refuses if this owner does not have the
    /// lock on it, or if its fence is above `token`, because then it has granted the lock to
    /// another attempt since (hand_over 3). If an earlier request of the caller took the lock, the
    /// node grants it again.
    TakeOnly {
        /// Owner from which the lock is taken.
        from: OwnerToken,
        /// Fencing token of the owner `from`.
        token: FencingToken,
    },
}

/// Position of a caller of a fair lock among the callers that wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Number of fair callers ahead of this caller. The holder does not count.
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
    /// Time for which a released lock is reserved for this handle when the handle is first in the
    /// queue, at most 50 ms. The time has to be enough to receive the hint and to send the request.
    /// If it is zero, the lock is not reserved.
    pub needs: Duration,
}

/// In µs.
const WAITED_MAX: u64 = 3_600_000_000;

impl Place {
    /// Even if the waiter [needs](Self::needs) more. `lua/join.lua` has the same number.
    pub(crate) const RESERVED_MAX: Duration = Duration::from_millis(50);

    /// For which the handle has waited, an hour at most.
    pub(crate) fn micros(&self) -> u64 {
        u64::try_from(self.waited.as_micros()).map_or(WAITED_MAX, |waited| waited.min(WAITED_MAX))
    }
}

impl IfHeld {
    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            Self::Queue(place) | Self::Fair { place, .. } => Some(place),
            Self::Watch | Self::TakeFrom(_) | Self::TakeOnly { .. } => None,
        }
    }
}
