//! State of a call to a fair lock: its ticket (its number in the order of all fair callers), and
//! the position in the queue of waiters that the call reports to its caller.

use std::fmt;
use std::time::Duration;

use crate::client::local_locks::{Answered, LocalGuard};
use crate::durability::Durability;
use crate::error::Taken;
use crate::op::Queued;
use crate::quorum::acquire::Loss;
use crate::sync::SyncMutex;
use crate::time::Moment;

/// Time for which a fair call's place in a node's queue of waiters counts after the last request of
/// the call (rule fair 3 in docs/design).
pub(crate) const FRESH: Duration = Duration::from_secs(3);

/// Callback of the caller of `acquire_with`. It receives each new position of the caller in the
/// queue of waiters.
pub(crate) type OnQueued<'a> = &'a mut (dyn FnMut(Queued) + Send);

/// State of a call that waits in the order of tickets, the numbers that nodes give to fair callers.
pub(crate) struct Fair<'a> {
    /// Ticket of the call, its number in the order of fair callers; `None` until a majority of the
    /// nodes has given the call a ticket (rule fair 2 in docs/design).
    pub(super) ticket: Option<u64>,
    /// Time at which a majority last confirmed that the call has a place in the queue of waiters.
    heard: Moment,
    /// Position in the queue of waiters with which `on_queued` was called last.
    shown: Option<u16>,
    on_queued: SyncMutex<OnQueued<'a>>,
    /// Lock inside this process (not on the nodes) that this call holds while it makes its
    /// attempts. The other fair calls of the `Redlock` handle for this name wait for it.
    line: &'a LocalGuard,
}

impl<'a> Fair<'a> {
    pub(crate) fn new(on_queued: OnQueued<'a>, line: &'a LocalGuard) -> Self {
        Self {
            ticket: None,
            heard: Moment::default(),
            shown: None,
            on_queued: SyncMutex::new(on_queued),
            line,
        }
    }

    /// Records the result of an attempt for the fair calls of this handle that wait in the process
    /// until this call has ended. If the deadline of a waiting call passes before that, the waiting
    /// call reports this result (rule fair 7 in docs/design).
    pub(crate) fn attempted<T>(&self, result: &Result<T, Loss>, level: Durability, at: Moment) {
        let loss = match result {
            Ok(_) => Loss::Taken(taken_locally()),
            // The position `queued` is the one of this call. The calls that wait for this call have
            // other positions, so they do not get it.
            Err(Loss::Taken(taken)) => Loss::Taken(Taken { queued: None, ..taken.clone() }),
            Err(loss) => loss.clone(),
        };
        self.line.answered(Answered { at, level, loss });
    }

    /// Stores the ticket and the position in the queue of waiters from the answer to a refused
    /// attempt. Returns true if the call has got its ticket by this attempt.
    pub(super) fn refused(&mut self, queued: Queued, now: Moment) -> bool {
        self.heard = now;
        let Some(ticket) = self.ticket else {
            self.ticket = Some(queued.ticket);
            return true;
        };
        // The refused attempt was sent with the call's ticket. So on a majority of the nodes the
        // call now has a place in the queue of waiters under this ticket.
        if self.shown.replace(queued.ahead) != Some(queued.ahead) {
            self.on_queued.lock()(Queued { ticket, ..queued });
        }
        false
    }
}

impl Fair<'_> {
    /// Drops the call's ticket (its number in the order of fair callers) if no majority has
    /// answered for longer than `FRESH`. After this time the call's place in the queue of waiters
    /// counts only on the nodes that the call still reaches. These nodes would refuse all callers
    /// with a larger ticket, so as soon as one more node fails, no caller could get a majority.
    pub(super) fn unanswered(&mut self, now: Moment) {
        if now.since(self.heard) > FRESH {
            self.ticket = None;
        }
    }

    /// Drops the call's ticket, because it is out of reach of its durability (fair 4).
    pub(super) fn not_durable(&mut self) {
        self.ticket = None;
    }
}

/// Returns the refusal of a call if another call of the same `Redlock` handle has the lock.
pub(crate) fn taken_locally() -> Taken {
    Taken { retry_after: Some(Duration::ZERO), foreign: false, queued: None }
}

impl fmt::Debug for Fair<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fair").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}
