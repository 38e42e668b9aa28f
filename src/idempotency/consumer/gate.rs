//! The pause of a consumer on a deployment that was never initialised (consumers 13). The cause is
//! not a property of a message, so messages stay with their broker: one message at a time is tried,
//! until an operator has initialised the deployment.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::idempotency::{Outcome, RunError};

/// Pause between two attempts while the gate is shut.
pub(super) const EVERY: Duration = Duration::from_secs(5);
/// Interval of the log while the gate is shut.
const REPORT: Duration = Duration::from_secs(60);

/// State of the deployment, as the call of a delivery shows it.
#[derive(Debug)]
pub(super) enum Deployment {
    /// Unknown: the nodes did not answer, or no call was made.
    Unknown,
    /// The nodes are not initialised; the text of `RunError::NotInitialised`.
    Uninitialised(String),
    /// The nodes are initialised: they answered about the key.
    Initialised,
}

impl Deployment {
    pub(super) fn of<T>(outcome: &Result<Outcome<T>, RunError>) -> Self {
        match outcome {
            Err(e @ RunError::NotInitialised { .. }) => Self::Uninitialised(e.to_string()),
            Err(
                RunError::Config { .. }
                | RunError::Codec { .. }
                | RunError::NoQuorum { .. }
                | RunError::NotRecorded(_),
            )
            | Ok(Outcome::InFlight { .. }) => Self::Unknown,
            Ok(_) | Err(RunError::Handler { .. }) => Self::Initialised,
        }
    }
}

/// Decides whether the consumer may fetch messages, and how many.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Time of the next attempt; `None` while the gate is open.
    again: Option<Instant>,
    /// Time at which it was last logged that the gate is shut.
    reported: Option<Instant>,
    /// True if it is still to be logged that the gate is open again.
    is_end_due: bool,
    shut: Shut,
}

/// Reason for which a gate is shut and since when, shared with `health`.
#[derive(Clone, Debug, Default)]
pub(super) struct Shut(Arc<Mutex<Option<(Instant, String)>>>);

impl Shut {
    pub(super) fn read(&self) -> Option<(Instant, String)> {
        self.state().clone()
    }

    fn state(&self) -> MutexGuard<'_, Option<(Instant, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    /// Makes an open gate that writes its reason into `shut` when it is shut.
    pub(super) fn shown_by(shut: &Shut) -> Self {
        Self { shut: shut.clone(), ..Self::default() }
    }

    /// Returns the time before which no message may be fetched.
    pub(super) fn closed_until(&self) -> Option<Instant> {
        self.again.filter(|again| Instant::now() < *again)
    }

    /// Returns the number of messages to fetch where there is room for `free`: one while the gate
    /// is shut.
    pub(super) fn room(&self, free: usize) -> usize {
        if self.again.is_some() { 1 } else { free }
    }

    /// Records that messages were fetched: the next one is not tried before these are judged.
    pub(super) fn fetched(&mut self) {
        if let Some(again) = &mut self.again {
            *again = Instant::now() + EVERY;
        }
    }

    /// Shuts or opens the gate by the result of a delivery.
    pub(super) fn judge(&mut self, deployment: &Deployment) {
        match deployment {
            Deployment::Unknown => {}
            Deployment::Uninitialised(why) => self.shut(why),
            Deployment::Initialised => self.open(),
        }
    }

    fn shut(&mut self, why: &str) {
        let now = Instant::now();
        self.again = Some(now + EVERY);
        self.shut.state().get_or_insert_with(|| (now, why.to_owned()));
        if self.reported.is_none_or(|reported| now >= reported + REPORT) {
            self.reported = Some(now);
            self.is_end_due = true;
            tracing::warn!(
                target: "palisade::consumer", why, again_ms = EVERY.as_millis() as u64,
                "no messages are taken: the deployment is not initialised"
            );
        }
    }

    fn open(&mut self) {
        if self.again.is_some() {
            *self.shut.state() = None;
        }
        if self.again.take().is_some() && std::mem::take(&mut self.is_end_due) {
            tracing::info!(target: "palisade::consumer", "messages are taken again");
        }
    }
}
