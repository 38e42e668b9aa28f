//! The disposition of a delivery: a pure function of the result of its call.

use std::fmt;
use std::time::Duration;

use super::Rules;
use crate::error::Advice;
use crate::idempotency::{Outcome, Parked, ParkedReason, RunError};

/// The action to take with a delivered message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Acknowledge it: the result is stored on a majority of the nodes, so that any later delivery
    /// is answered by it.
    Ack,
    /// Return it to the broker, to be delivered again after this long; zero: at once.
    Retry(Duration),
    /// Move it with the reason to the dead letters, where a person looks at it, and then
    /// acknowledge it.
    Park(DeadLetter),
    /// Return it to the broker and stop consuming: no message can be handled until a person has
    /// changed something, which the text names.
    Stop(String),
}

/// A message that is moved to the dead letters, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Reason for programs.
    pub reason: DeadLetterReason,
    /// Reason for people: one sentence with the key, the cause, and what to do.
    pub detail: String,
    /// The message's key, if it has one that can be used.
    pub key: Option<String>,
}

/// Reason for which a message is moved to the dead letters, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DeadLetterReason {
    /// It has no key, or one that cannot be used, or a creation time in the future.
    Unreadable,
    /// Its key was used before by a message with another body.
    Mismatch,
    /// It is older than the retention, so its record may be gone.
    TooOld,
    /// An earlier attempt left no result and may have taken effect.
    Lapsed,
    /// Too few nodes know whether it was handled before, and it was decided to park such messages.
    Forgotten,
    /// The handler refused it permanently ([`Failed::permanent`](crate::Failed::permanent)).
    Refused,
    /// The handler failed too often ([`Rules::max_failures`]).
    Exhausted,
    /// The result cannot be stored, or what is stored cannot be read.
    Codec,
}

impl DeadLetterReason {
    /// Returns a short name for headers, for example `too-old`.
    pub fn code(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Mismatch => "mismatch",
            Self::TooOld => "too-old",
            Self::Lapsed => "lapsed",
            Self::Forgotten => "forgotten",
            Self::Refused => "refused",
            Self::Exhausted => "exhausted",
            Self::Codec => "codec",
        }
    }
}

impl DeadLetter {
    /// Makes a dead letter with this reason.
    pub fn new(reason: DeadLetterReason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), key: None }
    }
}

impl fmt::Display for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.code(), self.detail)
    }
}

impl Disposition {
    fn park(reason: DeadLetterReason, detail: impl Into<String>) -> Self {
        Self::Park(DeadLetter::new(reason, detail))
    }
}

impl Rules {
    /// Returns the disposition of a message by the result of its call, after `failures` earlier
    /// failures of its handler.
    pub fn disposition<T>(
        &self,
        outcome: &Result<Outcome<T>, RunError>,
        failures: u32,
    ) -> Disposition {
        use DeadLetterReason as R;
        match outcome {
            Ok(Outcome::Executed { .. } | Outcome::Replayed(_) | Outcome::NotKept) => {
                Disposition::Ack
            }
            // The message is never acknowledged here: if the process that runs the handler dies,
            // this delivery takes over.
            Ok(Outcome::InFlight { retry_after }) => {
                Disposition::Retry((*retry_after).max(self.first_retry))
            }
            Ok(Outcome::Mismatch) => Disposition::park(
                R::Mismatch,
                "its key was used before by a message with another body; see which of the two is \
                 right, and send the other one with a key of its own",
            ),
            Ok(Outcome::TooOld) => Disposition::park(
                R::TooOld,
                "it was made longer ago than the retention, so its record may be gone; look \
                 whether it took effect",
            ),
            // While an operator may still decide for all such messages at once, the message stays
            // with its broker.
            Ok(Outcome::Parked(why)) if self.holds(why) => Disposition::Retry(self.first_retry),
            Ok(Outcome::Parked(why)) => {
                let reason = match why.reason {
                    ParkedReason::Lapsed => R::Lapsed,
                    ParkedReason::Forgotten => R::Forgotten,
                };
                Disposition::park(reason, why.to_string())
            }
            Err(e) => self.after_error(e, failures),
        }
    }

    /// Returns true if a message with this outcome is held (consumers 12).
    pub(super) fn holds(&self, parked: &Parked) -> bool {
        self.holds_forgotten && parked.undecided
    }

    fn after_error(&self, e: &RunError, failures: u32) -> Disposition {
        use DeadLetterReason as R;
        match e {
            RunError::Config { .. } => Disposition::park(R::Unreadable, e.to_string()),
            RunError::Codec { .. } => Disposition::park(R::Codec, e.to_string()),
            RunError::Handler { failed, .. } if failed.is_permanent() => {
                Disposition::park(R::Refused, format!("{e}: {failed}"))
            }
            RunError::Handler { failed, .. } => {
                self.after_failure(failures, failed.retry_after(), &format!("{e}: {failed}"))
            }
            RunError::NoQuorum { .. }
            | RunError::NotInitialised { .. }
            | RunError::NotRecorded(_) => match e.advice() {
                Advice::RetryAfter(wait) => Disposition::Retry(wait.max(self.first_retry)),
                // Every other message would meet the same error.
                Advice::GiveUp | Advice::Rebuild | Advice::Misconfigured => {
                    Disposition::Stop(e.to_string())
                }
            },
        }
    }

    /// Returns the disposition of a message that failed, after `failures` earlier failures.
    pub(super) fn after_failure(
        &self,
        failures: u32,
        wait: Option<Duration>,
        what: &str,
    ) -> Disposition {
        let times = failures.saturating_add(1);
        if times >= self.max_failures {
            let what = format!("failure {times}, the last one: {what}");
            return Disposition::park(DeadLetterReason::Exhausted, what);
        }
        let wait = wait.unwrap_or_else(|| self.backoff(failures));
        Disposition::Retry(wait.max(self.first_retry))
    }

    /// Returns the pause after a failure, if there were `failures` before it.
    fn backoff(&self, failures: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(failures);
        self.first_retry.saturating_mul(doubled).min(self.longest_retry)
    }
}

#[cfg(test)]
mod tests;
