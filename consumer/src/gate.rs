//! The pause of a consumer while no operator has initialised the nodes (consumers 13). All messages
//! stay with their broker; one at a time is tried.

use std::sync::Arc;
use std::time::Duration;

use palisade::idempotency::{Outcome, RunError};
use palisade::internal::Waits;
use tokio::time::Instant;

pub(super) const EVERY: Duration = Duration::from_secs(5);
const REPORT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) enum Deployment {
    /// The result does not show it: too few nodes answered, or no call was made.
    Unknown,
    Uninitialised(String),
    Initialised,
}

impl Deployment {
    pub(super) fn of<T>(outcome: &Result<Outcome<T>, RunError>) -> Self {
        match outcome {
            Err(e @ RunError::NotInitialised { .. }) => Self::Uninitialised(e.to_string()),
            Ok(Outcome::InFlight { .. }) => Self::Unknown,
            Ok(_) | Err(RunError::Handler { .. }) => Self::Initialised,
            Err(_) => Self::Unknown,
        }
    }
}

/// Shut while the nodes are not initialised.
#[derive(Debug)]
pub(super) struct Gate {
    /// Time at which the consumer may fetch one message again; `None` while the gate is open.
    again: Option<Instant>,
    reported: Option<Instant>,
    /// The log has a warning that the gate is shut, and no later line that it is open.
    is_end_due: bool,
    waits: Arc<Waits>,
}

impl Gate {
    pub(super) fn new(waits: Arc<Waits>) -> Self {
        Self { again: None, reported: None, is_end_due: false, waits }
    }

    pub(super) fn closed_until(&self) -> Option<Instant> {
        self.again.filter(|again| Instant::now() < *again)
    }

    /// One message while the gate is shut, otherwise `free`.
    pub(super) fn room(&self, free: usize) -> usize {
        if self.again.is_some() { 1 } else { free }
    }

    /// While the gate is shut, the next fetch waits for a pause. The result of the fetched message
    /// may open it before.
    pub(super) fn fetched(&mut self) {
        if let Some(again) = &mut self.again {
            *again = Instant::now() + EVERY;
        }
    }

    pub(super) fn judge(&mut self, deployment: &Deployment) {
        match deployment {
            Deployment::Unknown => {}
            Deployment::Uninitialised(why) => self.shut(why),
            Deployment::Initialised => self.open(),
        }
    }

    fn shut(&mut self, why: &str) {
        let now = Instant::now();
        if self.again.replace(now + EVERY).is_none() {
            self.waits.takes_none(Some((now, why.to_owned())));
        }
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
        if self.again.take().is_none() {
            return;
        }
        self.waits.takes_none(None);
        if std::mem::take(&mut self.is_end_due) {
            tracing::info!(target: "palisade::consumer", "messages are taken again");
        }
    }
}
