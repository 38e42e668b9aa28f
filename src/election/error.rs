//! What can go wrong in an election: one type a verb.

use std::time::Duration;

use crate::error::{AcquireError, Advice, ConfigError, NoQuorum, Taken};

/// Why a campaign ended without a leadership.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CampaignError {
    /// The name, a setting or the value is out of range.
    #[error("cannot campaign: {0}")]
    Config(#[from] ConfigError),
    /// Too few nodes answered. Nothing is held; what may have been granted is being released.
    #[error("cannot campaign now: {0}")]
    NoQuorum(#[from] NoQuorum),
    /// Somebody else led until the deadline.
    #[error("not elected within {waited:?}: somebody else leads")]
    TimedOut {
        /// How long was waited.
        waited: Duration,
        /// The last refusal.
        taken: Taken,
    },
}

impl CampaignError {
    /// What to do about it.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Config(_) => Advice::Misconfigured,
            Self::NoQuorum(e) => e.advice(),
            Self::TimedOut { taken, .. } => {
                taken.retry_after.map_or(Advice::GiveUp, Advice::RetryAfter)
            }
        }
    }
}

impl From<AcquireError> for CampaignError {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Config(e) => Self::Config(e),
            AcquireError::NoQuorum(e) => Self::NoQuorum(e),
            AcquireError::TimedOut { waited, taken } => Self::TimedOut { waited, taken },
        }
    }
}

/// Why a value may not have been proclaimed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProclaimError {
    /// The value is too long; nothing was sent.
    #[error("cannot be proclaimed: {0}")]
    Config(#[from] ConfigError),
    /// The leadership is over; a new leader may exist.
    #[error("not proclaimed: the leadership is lost; a new leader may exist")]
    Lost,
    /// Too few nodes answered. The term goes on, and each renewal carries the value again: it may
    /// be seen now, and is seen at the latest when a renewal succeeds.
    #[error("not yet known to be proclaimed, the next renewal carries it again: {0}")]
    Unknown(NoQuorum),
}

impl ProclaimError {
    /// What to do about it.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Config(_) => Advice::Misconfigured,
            Self::Lost => Advice::GiveUp,
            Self::Unknown(e) => e.advice(),
        }
    }
}

/// Why nobody can say who leads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaderError {
    /// The name is out of range.
    #[error("cannot be asked for: {0}")]
    Config(#[from] ConfigError),
    /// Too few nodes gave an answer that counts; nodes in quarantine do not remember.
    #[error("nobody can say who leads: {0}")]
    NoQuorum(#[from] NoQuorum),
}

impl LeaderError {
    /// What to do about it.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Config(_) => Advice::Misconfigured,
            Self::NoQuorum(e) => e.advice(),
        }
    }
}
