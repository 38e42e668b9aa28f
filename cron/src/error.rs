//! Errors of jobs and of reads of a job's history.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use palisade::error::{Advice, Advise, ConfigError, NoQuorum};
use palisade::idempotency::RunError;
use palisade::internal::until_utc;

use super::missed::millis_of;
use super::request::LATEST;

/// Error of the operations of [`Cron`](super::Cron).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CronError {
    /// The schedule, the name or a setting is invalid.
    #[error("the job cannot be run: {0}")]
    Config(ConfigError),
    /// A record of the job could not be read or written on the nodes.
    #[error("the job cannot be run now: {0}")]
    Record(RunError),
    /// The request to run a job was sent, but too few nodes confirmed that it is stored
    /// ([`Cron::request_run`](super::Cron::request_run)). The request may be stored, and its run
    /// may begin until `until`. Do not request the job again before that time, because the job may
    /// then be run twice.
    #[error(
        "it is not confirmed that the request is stored: it may be stored, and the run may begin \
         until {}; do not request the job again before that, or it may run twice: {error}",
        shown(*.until)
    )]
    #[non_exhaustive]
    NotConfirmed {
        /// Time after which a run of the job for this request can no longer begin.
        until: SystemTime,
        /// Reply of each node to the write that stores the request to run the job.
        error: NoQuorum,
    },
}

impl CronError {
    /// Returns the advice to the caller for this error.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Config(_) => Advice::Misconfigured,
            Self::Record(e) => e.advice(),
            Self::NotConfirmed { .. } => {
                Advice::RetryAfter(Duration::from_secs(LATEST.unsigned_abs()))
            }
        }
    }
}

impl Advise for CronError {
    fn advice(&self) -> Advice {
        Self::advice(self)
    }
}

fn shown(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    until_utc(millis_of(since))
}

impl From<ConfigError> for CronError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<RunError> for CronError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Config { error, .. } => Self::Config(error),
            other => Self::Record(other),
        }
    }
}
