//! The pause of a consumer while no operator has initialised the nodes by `palisade init`
//! (rule consumers 13 in docs/design). No message can be handled in this state, so all messages
//! stay with their broker. The consumer tries one message at a time until an operator has
//! initialised the nodes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::idempotency::{Outcome, RunError};
use crate::sync::SyncMutex;

/// Pause between two messages that are fetched as a test, while the nodes are not initialised (by
/// `palisade init`).
pub(super) const EVERY: Duration = Duration::from_secs(5);
/// Interval of the warnings in the log while no messages are fetched.
const REPORT: Duration = Duration::from_secs(60);

/// State of the nodes, as the result of an idempotency call shows it: initialised by an operator or
/// not.
#[derive(Debug)]
pub(super) enum Deployment {
    /// The result of the call does not show the state of the nodes. For example too few nodes
    /// answered, or no call was made.
    Unknown,
    /// The nodes are not initialised (by `palisade init`). The text is the message of
    /// `RunError::NotInitialised`.
    Uninitialised(String),
    /// The nodes count as initialised (by `palisade init`), because they decided if the handler may
    /// run.
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

/// A limit on the messages that the consumer may fetch. The gate is shut while the nodes are not
/// initialised (by `palisade init`).
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// Time at which the consumer may fetch one message, to try again if the nodes are initialised;
    /// `None` if they are.
    again: Option<Instant>,
    /// Time of the last warning in the log that the gate is shut (the nodes are not initialised).
    reported: Option<Instant>,
    /// True if the log contains a warning that the gate is shut (the nodes are not initialised),
    /// and no later line that it is open.
    is_end_due: bool,
    shut: Shut,
}

/// Start and reason of the time in which a consumer's gate is shut (it fetches no messages); `None`
/// while the gate is open, because the nodes are initialised. Shared with `Idempotency::health`.
#[derive(Clone, Debug, Default)]
pub(super) struct Shut(Arc<SyncMutex<Option<(Instant, String)>>>);

impl Shut {
    pub(super) fn read(&self) -> Option<(Instant, String)> {
        self.0.lock().clone()
    }
}

impl Gate {
    /// Makes a gate that lets the consumer fetch messages. While the gate is shut (the nodes are
    /// not initialised), `shut` contains the time since which it is shut, and the reason.
    pub(super) fn shown_by(shut: &Shut) -> Self {
        Self { shut: shut.clone(), ..Self::default() }
    }

    /// Returns the time until which the consumer must not fetch a message; `None` if it may fetch
    /// now.
    pub(super) fn closed_until(&self) -> Option<Instant> {
        self.again.filter(|again| Instant::now() < *again)
    }

    /// Returns the number of messages to fetch: one while the gate is shut (the nodes are not
    /// initialised), otherwise `free`.
    pub(super) fn room(&self, free: usize) -> usize {
        if self.again.is_some() { 1 } else { free }
    }

    /// Records the fetch of a message. While the gate is shut (the nodes are not initialised), the
    /// next fetch waits for a pause. The result of the fetched message may open the gate before
    /// that.
    pub(super) fn fetched(&mut self) {
        if let Some(again) = &mut self.again {
            *again = Instant::now() + EVERY;
        }
    }

    /// Shuts the gate, which slows down the fetching of messages, if a delivery has shown that the
    /// nodes are not initialised. Opens the gate if they are.
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
        self.shut.0.lock().get_or_insert_with(|| (now, why.to_owned()));
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
            *self.shut.0.lock() = None;
        }
        if self.again.take().is_some() && std::mem::take(&mut self.is_end_due) {
            tracing::info!(target: "palisade::consumer", "messages are taken again");
        }
    }
}
