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
    /// The other fair calls of the handle for this name wait for it.
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

    pub(crate) fn attempted<T>(&self, result: &Result<T, Loss>, level: Durability, at: Moment) {
        let loss = match result {
            Ok(_) => Loss::Taken(taken_locally()),
            // `queued` is the position of this call only.
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
    /// Its place then counts only on the nodes that the call still reaches. These would refuse all
    /// larger tickets: as soon as one more node fails, no caller could get a majority.
    pub(super) fn unanswered(&mut self, now: Moment) {
        if now.since(self.heard) > FRESH {
            self.ticket = None;
        }
    }

    /// It is out of reach of its durability (fair 4).
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
