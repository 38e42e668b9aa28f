//! The pause of a consumer whose nodes no operator has initialised by `palisade init` (consumers
//! 13). No message is the cause, so messages stay with their broker. Only one message at a time is
//! tried, until an operator has initialised the nodes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::idempotency::{Outcome, RunError};

/// Pause between two messages that are tried while the nodes are not initialised.
pub(super) const EVERY: Duration = Duration::from_secs(5);
/// Interval at which the log repeats that no messages are taken, and why.
const REPORT: Duration = Duration::from_secs(60);

/// What the result of a delivery's call shows about the nodes: whether an operator has initialised
/// them.
#[derive(Debug)]
pub(super) enum Deployment {
    /// It is unknown whether the nodes are initialised, for example because too few nodes answered
    /// or no call was made.
    Unknown,
    /// The nodes are not initialised. The text is that of `RunError::NotInitialised`.
    Uninitialised(String),
    /// The nodes are initialised, because they answered whether the handler may run.
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

/// Decides whether the consumer may fetch messages, and how many. It is shut while the nodes are
/// not initialised.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Time at which one message may be fetched to try again; `None` while the gate is open.
    again: Option<Instant>,
    /// Time at which the log said last that the gate is shut.
    reported: Option<Instant>,
    /// True if the log said that the gate is shut and has not said since then that it is open.
    is_end_due: bool,
    shut: Shut,
}

/// Time since which a gate is shut, and the reason, shared with `Idempotency::health`; `None` while
/// it is open.
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
    /// Makes an open gate. When it is shut, it writes the time and the reason into `shut`.
    pub(super) fn shown_by(shut: &Shut) -> Self {
        Self { shut: shut.clone(), ..Self::default() }
    }

    /// Returns the time before which no message may be fetched; `None` if one may be fetched now.
    pub(super) fn closed_until(&self) -> Option<Instant> {
        self.again.filter(|again| Instant::now() < *again)
    }

    /// Returns how many messages to fetch if the consumer has room for `free`: one while the gate
    /// is shut, otherwise `free`.
    pub(super) fn room(&self, free: usize) -> usize {
        if self.again.is_some() { 1 } else { free }
    }

    /// Records that a message was fetched. While the gate is shut, the next one is fetched only
    /// after a pause, in which the fetched one can be judged.
    pub(super) fn fetched(&mut self) {
        if let Some(again) = &mut self.again {
            *again = Instant::now() + EVERY;
        }
    }

    /// Shuts or opens the gate by what the result of a delivery shows about the nodes.
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
