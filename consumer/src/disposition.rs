//! The disposition of a delivery: what a consumer does with the message. It depends only on the
//! consumer's rules and on the result of the idempotency call.

use std::fmt;
use std::time::Duration;

use palisade::error::Advice;
use palisade::idempotency::{Outcome, Parked, ParkedReason, RunError};

use super::Rules;

/// The action to take with a delivered message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Acknowledge the message. Its result is stored on a majority of the nodes, so later
    /// deliveries of the message get this result.
    Ack,
    /// Return the message to the broker. The broker delivers it again after this time; zero means
    /// at once.
    Retry(Duration),
    /// Move the message, with the reason, to the dead letters, and then acknowledge the message. A
    /// person examines the dead letters.
    Park(DeadLetter),
    /// Return the message to the broker and stop the consumer. The consumer cannot handle any
    /// message until a person makes the change that the text describes.
    Stop(String),
}

/// The report about a message in the dead letters: the reason for the move, and the key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Reason, in a form for programs.
    pub reason: DeadLetterReason,
    /// Reason, as a sentence for people. The sentence contains the cause and the next step.
    pub detail: String,
    /// Key of the message; `None` if the message has no valid key.
    pub key: Option<String>,
}

/// Reason of a dead letter, in a form for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DeadLetterReason {
    /// The message has no valid key, or its creation time is in the future.
    Unreadable,
    /// Another message with a different body has already used the key of this message.
    Mismatch,
    /// The message is older than the retention, so the record of its key may have expired.
    TooOld,
    /// An earlier attempt to handle the message left no result and may have taken effect.
    Lapsed,
    /// Too few nodes can exclude that the message was handled before. An operator has decided that
    /// such messages become dead letters, or [`Rules::park_forgotten`] is set.
    Forgotten,
    /// The handler permanently refused the message
    /// ([`Failed::permanent`](palisade::Failed::permanent)).
    Refused,
    /// The handler failed [`Rules::max_failures`] times for this message, or that many attempts
    /// left no result because their processes ended in the handler.
    Exhausted,
    /// The handler's result cannot be converted to JSON, or the stored result cannot be parsed.
    Codec,
}

impl DeadLetterReason {
    /// Returns a short code of the reason for message headers, for example `too-old`.
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
    /// Makes a dead letter without a key. `detail` is the sentence for people.
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
    /// Returns the disposition of a message from the outcome of the idempotency call that handled
    /// it. `failures` is the number of earlier failures of the message's handler.
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
            // If that process dies, this message must be delivered again, so it is not
            // acknowledged.
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
            // An operator may still decide about all messages of the same loss.
            Ok(Outcome::Parked(why)) if self.holds(why) => Disposition::Retry(self.first_retry),
            Ok(Outcome::Parked(why)) => {
                let reason = match why.reason {
                    ParkedReason::Forgotten => R::Forgotten,
                    _ => R::Lapsed,
                };
                Disposition::park(reason, why.to_string())
            }
            // There is no other outcome. Another delivery would lose nothing.
            Ok(_) => Disposition::Retry(self.first_retry),
            Err(e) => self.after_error(e, failures),
        }
    }

    /// The broker delivers a held message again until an operator has decided (consumers 12).
    pub(super) fn holds(&self, parked: &Parked) -> bool {
        self.holds_forgotten && parked.undecided
    }

    /// The attempts before this one left no result: with `max_failures` of them the message is put
    /// aside.
    pub(super) fn may_run(&self, attempt: u32) -> bool {
        attempt <= self.max_failures
    }

    fn after_error(&self, e: &RunError, failures: u32) -> Disposition {
        use DeadLetterReason as R;
        match e {
            RunError::Config { .. } => Disposition::park(R::Unreadable, e.to_string()),
            RunError::Codec { .. } => Disposition::park(R::Codec, e.to_string()),
            RunError::Handler { attempt, overtaken: false, .. } if !self.may_run(*attempt) => {
                let before = attempt - 1;
                Disposition::park(
                    R::Exhausted,
                    format!(
                        "not run again: {before} attempts began and left no result, because their \
                         processes ended in the handler or their effect is unknown; look whether \
                         it took effect, and why they ended; with the same key it runs again only \
                         under a larger `max_failures`"
                    ),
                )
            }
            RunError::Handler { failed, overtaken: false, .. } if failed.is_permanent() => {
                Disposition::park(R::Refused, format!("{e}: {failed}"))
            }
            RunError::Handler { attempt, failed, overtaken: false, .. } => {
                // Attempts that ended with their process are in no count of the broker's.
                let failures = failures.max(attempt.saturating_sub(1));
                self.after_failure(failures, failed.retry_after(), &format!("{e}: {failed}"))
            }
            // The key is another attempt's now. So is the message (consumers 5).
            _ => match e.advice() {
                Advice::RetryAfter(wait) => Disposition::Retry(wait.max(self.first_retry)),
                // Every other message would fail the same way, so the consumer stops.
                _ => Disposition::Stop(e.to_string()),
            },
        }
    }

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

    fn backoff(&self, failures: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(failures);
        self.first_retry.saturating_mul(doubled).min(self.longest_retry)
    }
}

#[cfg(test)]
mod tests;
