//! The part of a fair call: its ticket, and its position for the caller.

use std::fmt;
use std::time::Duration;

use crate::client::local_locks::LocalGuard;
use crate::error::Taken;
use crate::op::Queued;
use crate::quorum::acquire::Loss;
use crate::sync::SyncMutex;
use crate::time::Moment;

/// Time for which a place counts after the last request of its call (fair 3).
pub(crate) const FRESH: Duration = Duration::from_secs(3);

/// Caller's function, which is called with each new position.
pub(crate) type OnQueued<'a> = &'a mut (dyn FnMut(Queued) + Send);

/// State of a call that waits in the order of tickets.
pub(crate) struct Fair<'a> {
    /// Ticket of the call; `None` until a majority of the nodes has given the call a ticket (fair
    /// 2).
    pub(super) ticket: Option<u64>,
    /// Time at which a majority last confirmed that the call has a place.
    heard: Moment,
    /// Position with which `on_queued` was called last.
    shown: Option<u16>,
    on_queued: SyncMutex<OnQueued<'a>>,
    /// Lock inside the process. The fair calls of the handle wait for it while this call makes its
    /// attempts.
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

    /// Records the result of an attempt for the calls that wait in line behind this one. They
    /// report it if their time ends before their turn comes (fair 7).
    pub(super) fn attempted<T>(&self, result: &Result<T, Loss>, now: Moment) {
        let answer = match result {
            Ok(_) => Loss::Taken(taken_locally()),
            // The place is that of this call alone.
            Err(Loss::Taken(taken)) => Loss::Taken(Taken { queued: None, ..taken.clone() }),
            Err(loss) => loss.clone(),
        };
        self.line.answered(now, answer);
    }

    /// Takes in the standing after a refused attempt. Returns true if the call has got its ticket
    /// by this attempt.
    pub(super) fn refused(&mut self, queued: Queued, now: Moment) -> bool {
        self.heard = now;
        let Some(ticket) = self.ticket else {
            self.ticket = Some(queued.ticket);
            return true;
        };
        // The attempt had the ticket, so a majority has the place with the ticket now.
        if self.shown.replace(queued.ahead) != Some(queued.ahead) {
            self.on_queued.lock()(Queued { ticket, ..queued });
        }
        false
    }
}

impl Fair<'_> {
    /// Gives the ticket up if no majority has answered for longer than `FRESH`. After this time the
    /// place of the call is fresh only on nodes that the call still reaches. These nodes would
    /// refuse all callers with a larger ticket, and as soon as one more node fails no caller could
    /// get a majority.
    pub(super) fn unanswered(&mut self, now: Moment) {
        if now.since(self.heard) > FRESH {
            self.ticket = None;
        }
    }
}

/// Returns the refusal of a call whose lock another call of the handle has.
pub(crate) fn taken_locally() -> Taken {
    Taken { retry_after: Some(Duration::ZERO), foreign: false, queued: None }
}

impl fmt::Debug for Fair<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fair").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}
