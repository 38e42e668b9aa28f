//! The disposition of a delivery, which is what a consumer does with it. It is a pure function of
//! the result of the delivery's call and of the consumer's rules.

use std::fmt;
use std::time::Duration;

use super::Rules;
use crate::error::Advice;
use crate::idempotency::{Outcome, Parked, ParkedReason, RunError};

/// The action to take with a delivered message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Acknowledge the message. Its result is stored on a majority of the nodes, and answers every
    /// later delivery.
    Ack,
    /// Return the message to the broker, to be delivered again after this time. Zero means at once.
    Retry(Duration),
    /// Move the message with the reason to the dead letters, where a person looks at it, and then
    /// acknowledge it.
    Park(DeadLetter),
    /// Return the message to the broker and stop consuming, because no message can be handled until
    /// a person has changed something, which the text names.
    Stop(String),
}

/// The report that goes with a message to the dead letters: why the message was moved there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Reason, as a value for programs.
    pub reason: DeadLetterReason,
    /// Reason, as a sentence for people with the cause and what to do.
    pub detail: String,
    /// The message's key, if it has one that can be used.
    pub key: Option<String>,
}

/// Reason for which a message is moved to the dead letters, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DeadLetterReason {
    /// The message has no key, or one that cannot be used, or a creation time in the future.
    Unreadable,
    /// The message's key was used before by a message with another body.
    Mismatch,
    /// The message is older than the retention, so the record of its key may be gone.
    TooOld,
    /// An earlier attempt to handle the message left no result and may have taken effect.
    Lapsed,
    /// Too few nodes know whether the message was handled before, and an operator's decision or
    /// [`Rules::park_forgotten`] parks such messages.
    Forgotten,
    /// The handler refused the message permanently
    /// ([`Failed::permanent`](crate::Failed::permanent)).
    Refused,
    /// The handler failed [`Rules::max_failures`] times for this message.
    Exhausted,
    /// The handler's result cannot be written as JSON, or the stored result cannot be read.
    Codec,
}

impl DeadLetterReason {
    /// Returns a short name of the reason for message headers, for example `too-old`.
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
    /// Makes a dead letter with this reason and this sentence for people, without a key.
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
    /// Returns what to do with a message after its call had this result. `failures` is the number
    /// of earlier failures of its handler.
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
            // The message is not acknowledged: if the process that runs its handler dies, this
            // delivery has to take over.
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
            // An operator may still decide for all messages that were forgotten because of the
            // loss, so until then the message stays with its broker.
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

    /// Returns true if a message with this outcome is held, which means that the broker delivers it
    /// again until an operator has decided (consumers 12).
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
                // Every other message would meet the same error, so the consumer stops.
                Advice::GiveUp | Advice::Rebuild | Advice::Misconfigured => {
                    Disposition::Stop(e.to_string())
                }
            },
        }
    }

    /// Returns what to do with a message whose handler failed now and `failures` times before.
    /// `wait` is the pause that the handler asked for, and `what` the text of the failure.
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

    /// Returns the pause before a message is delivered again after a failure that followed
    /// `failures` earlier ones.
    fn backoff(&self, failures: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(failures);
        self.first_retry.saturating_mul(doubled).min(self.longest_retry)
    }
}

#[cfg(test)]
mod tests;
