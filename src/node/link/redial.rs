//! The pause before the next try to connect.

use std::time::Duration;

use super::{Current, Resolver, Shared, State};
use crate::env::pause;
use crate::error::{NodeError, NodeFault as F};
use crate::time::Moment;

/// First and longest pause after a failed try.
pub(super) const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Reached while there is no call.
const IDLE_PAUSE: Duration = Duration::from_secs(10);
/// After these the next try has to wait.
const FLAPS: u32 = 2;

pub(super) struct Failed {
    pub(super) until: Moment,
    pub(super) idle_until: Moment,
    pub(super) cause: NodeError,
    pub(super) version: u64,
}

impl<R: Resolver> Shared<R> {
    pub(super) fn pausing(&self, state: &State) -> Option<NodeError> {
        let failed = state.failed.as_ref().filter(|_| !state.connecting)?;
        let pauses =
            self.options.env.now() < failed.until && failed.version == *self.changed.borrow();
        pauses.then(|| failed.cause.clone())
    }

    pub(super) fn flapped(&self, state: &mut State, current: &Current) {
        if current.session.is_proved() {
            return;
        }
        state.flaps = state.flaps.saturating_add(1);
        let Some(times) = state.flaps.checked_sub(FLAPS) else { return };
        let cause = current.ended_by_limit().unwrap_or_else(|| {
            let detail = "it takes connections and breaks them before it answers; look at its log \
                          and at what lies in between; asked again after a pause";
            NodeError::not_executed(F::Disconnected, detail)
        });
        state.failed = Some(self.failed(times, cause, current.version));
    }

    pub(super) fn failed(&self, failures: u32, cause: NodeError, version: u64) -> Failed {
        let (now, random) = (self.options.env.now(), self.options.env.random());
        let until = now + pause(random, failures, PAUSE);
        let idle_until = now + pause(random, failures, (PAUSE.0, IDLE_PAUSE));
        Failed { until, idle_until, cause, version }
    }
}
