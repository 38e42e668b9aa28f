//! State of a call to a fair lock: its ticket, and the position that it reports to its caller.

use std::fmt;
use std::time::Duration;

use crate::client::local_locks::{Answered, LocalGuard};
use crate::durability::Durability;
use crate::error::Taken;
use crate::op::Queued;
use crate::quorum::acquire::Loss;
use crate::sync::SyncMutex;
use crate::time::Moment;

/// How long a place counts after the last request of the call (fair 3).
pub(crate) const FRESH: Duration = Duration::from_secs(3);

pub(crate) type OnQueued<'a> = &'a mut (dyn FnMut(Queued) + Send);

pub(crate) struct Fair<'a> {
    /// `None` until a majority has given one (fair 2).
    pub(super) ticket: Option<u64>,
    heard: Moment,
    shown: Option<u16>,
    on_queued: SyncMutex<OnQueued<'a>>,
    /// Held while the call makes its attempts. The other fair calls of the handle for this name
    /// wait for it.
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

    /// For the fair calls that wait in the process: one whose deadline passes reports this result
    /// (fair 7).
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

    pub(super) fn refused(&mut self, queued: Queued, now: Moment) -> bool {
        self.heard = now;
        let Some(ticket) = self.ticket else {
            self.ticket = Some(queued.ticket);
            return true;
        };
        // The attempt was sent with the ticket, so a majority now has a place for it.
        if self.shown.replace(queued.ahead) != Some(queued.ahead) {
            self.on_queued.lock()(Queued { ticket, ..queued });
        }
        false
    }
}

impl Fair<'_> {
    /// Drops the ticket if no majority has answered for longer than `FRESH`: its place then counts
    /// only on the nodes that the call still reaches. These would refuse all callers with a larger
    /// ticket, so as soon as one more node fails, no caller could get a majority.
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

pub(crate) fn taken_locally() -> Taken {
    Taken { retry_after: Some(Duration::ZERO), foreign: false, queued: None }
}

impl fmt::Debug for Fair<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fair").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}
