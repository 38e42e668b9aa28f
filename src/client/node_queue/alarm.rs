//! One timer for all times at which the queue of requests to a node has to act.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use crate::time::Moment;

/// May fire early. In return it need not be reset when the earliest time moves later, as it does
/// with each batch.
pub(super) struct Alarm {
    sleep: Pin<Box<Sleep>>,
    at: Option<Moment>,
}

impl Alarm {
    pub(super) fn new() -> Self {
        Self { sleep: Box::pin(sleep(Duration::ZERO)), at: None }
    }

    pub(super) fn set_for(&mut self, due: Option<Moment>, now: Moment) {
        if let Some(due) = due
            && self.at.is_none_or(|at| due < at)
        {
            self.sleep.as_mut().reset(Instant::now() + due.since(now));
            self.at = Some(due);
        }
    }
}

impl Future for Alarm {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.at.is_none() || self.sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.at = None;
        Poll::Ready(())
    }
}
