//! Errors of jobs and of reads of a job's history.

use crate::error::{Advice, ConfigError, advise};
use crate::idempotency::RunError;

advise!(CronError);

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
}

impl CronError {
    /// Returns the advice to the caller for this error.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Config(_) => Advice::Misconfigured,
            Self::Record(e) => e.advice(),
        }
    }
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
