//! The settings of a consumer that do not depend on its broker.

use std::time::Duration;

use crate::error::ConfigError;

/// Rules of a consumer: how many messages it handles at once, and what it does after failures.
///
/// ```
/// use palisade::idempotency::consumer::Rules;
/// let rules = Rules::default().concurrency(32).max_failures(5);
/// ```
#[derive(Clone, Debug)]
#[must_use = "rules do nothing until a consumer has them"]
pub struct Rules {
    pub(super) concurrency: usize,
    pub(super) first_retry: Duration,
    pub(super) longest_retry: Duration,
    pub(super) max_failures: u32,
    pub(super) grace: Duration,
    pub(super) body_matters: bool,
    pub(super) holds_forgotten: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            concurrency: 16,
            first_retry: Duration::from_millis(250),
            longest_retry: Duration::from_secs(60),
            max_failures: 10,
            grace: Duration::from_secs(30),
            body_matters: true,
            holds_forgotten: true,
        }
    }
}

impl Rules {
    /// Sets how many messages are handled at once, 1 to 10,000; default 16. The consumer takes no
    /// more messages from its broker, so that no message waits in this process while its
    /// acknowledgement time runs.
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.concurrency = messages;
        self
    }

    /// Sets how long the broker waits before it delivers a message again whose handler failed:
    /// `first` after the first failure, doubled with each further one up to `longest`. A handler
    /// can choose another time by [`Failed::after`](crate::Failed::after). Default 250 ms and 60 s.
    pub fn retry(mut self, first: Duration, longest: Duration) -> Self {
        (self.first_retry, self.longest_retry) = (first, longest);
        self
    }

    /// Sets after how many failures of its handler a message becomes a dead letter; default 10. A
    /// delivery does not count as a failure if another consumer's handler runs or too few nodes
    /// answer. The documentation of the broker's adapter says which failures it can count.
    pub fn max_failures(mut self, failures: u32) -> Self {
        self.max_failures = failures;
        self
    }

    /// Sets how long a consumer that stops waits for handlers that run; default 30 s. Messages that
    /// are not finished by then are delivered again, and their handlers go on as long as the
    /// runtime does.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Lets two messages with the same key have different bodies, and treats them as copies of one
    /// request. By default the second one becomes a dead letter.
    pub fn ignore_body(mut self) -> Self {
        self.body_matters = false;
        self
    }

    /// Makes a message a dead letter at once if it would not be run because too few nodes know
    /// whether it was handled before.
    ///
    /// By default the message is held: it stays with the broker and is delivered again after 4 s to
    /// 60 s, without counting as a failure, until an operator has decided for all messages that
    /// were forgotten because of the same loss of data (`palisade idem decide`), or enough nodes
    /// know its key again. Other messages are not delayed.
    pub fn park_forgotten(mut self) -> Self {
        self.holds_forgotten = false;
        self
    }

    /// Checks the rules. The error names the first rule that is out of range.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !(1..=10_000).contains(&self.concurrency) {
            let value = self.concurrency.to_string();
            return Err(ConfigError::new("concurrency", value, "from 1 to 10,000"));
        }
        let (first, longest) = (self.first_retry, self.longest_retry);
        if first < Duration::from_millis(1) || longest < first {
            let rule = "the first at least 1 ms, the longest no shorter than the first";
            return Err(ConfigError::new("retry", format!("{first:?}, {longest:?}"), rule));
        }
        if self.max_failures == 0 {
            let rule = "at least 1: with the first failure a message is a dead letter";
            return Err(ConfigError::new("max_failures", "0", rule));
        }
        Ok(())
    }
}
