//! The part of a fair call: its ticket, and its position for the caller.

use std::fmt;
use std::sync::{Mutex as StdMutex, PoisonError};
use std::time::Duration;

use crate::op::Queued;
use crate::time::Moment;

/// Time for which a place counts after the last request of its call (fair 3).
const FRESH: Duration = Duration::from_secs(3);

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
    on_queued: StdMutex<OnQueued<'a>>,
}

impl<'a> Fair<'a> {
    pub(crate) fn new(on_queued: OnQueued<'a>) -> Self {
        Self {
            ticket: None,
            heard: Moment::default(),
            shown: None,
            on_queued: StdMutex::new(on_queued),
        }
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
            let on_queued = self.on_queued.get_mut().unwrap_or_else(PoisonError::into_inner);
            on_queued(Queued { ticket, ..queued });
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

impl fmt::Debug for Fair<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fair").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}
