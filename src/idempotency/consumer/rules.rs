//! The settings that consumers of all brokers have in common.

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
    /// Sets how many messages are handled at once, 1 to 10,000; default 16. The consumer asks its
    /// broker for no more than that, so that no message waits here while its acknowledgement time
    /// runs.
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.concurrency = messages;
        self
    }

    /// Sets how long a message whose handler failed stays away: `first` after the first failure,
    /// doubled with each further one up to `longest`. A handler can set another time by
    /// [`Failed::after`](crate::Failed::after). Default 250 ms and 60 s.
    pub fn retry(mut self, first: Duration, longest: Duration) -> Self {
        (self.first_retry, self.longest_retry) = (first, longest);
        self
    }

    /// Sets the number of failures of its handler with which a message becomes a dead letter;
    /// default 10. Deliveries that found the message in flight elsewhere, or too few nodes, are no
    /// failures. The documentation of the broker's adapter says which failures it can count.
    pub fn max_failures(mut self, failures: u32) -> Self {
        self.max_failures = failures;
        self
    }

    /// Sets how long a stop waits for handlers that run; default 30 s. Messages that are not
    /// finished by then come again, and their handlers go on as long as the runtime does.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Lets two messages with one key have different bodies: they are one request all the same. By
    /// default the second one is a dead letter.
    pub fn ignore_body(mut self) -> Self {
        self.body_matters = false;
        self
    }

    /// Makes a message a dead letter at once if too few nodes know whether it was handled before.
    ///
    /// By default such a message is held: it stays with the broker and comes again after 4 s to 60
    /// s, without a failure, until an operator has decided about the loss for all messages at once
    /// (`palisade idem decide`), or the nodes know its key again. Other messages are not delayed.
    pub fn park_forgotten(mut self) -> Self {
        self.holds_forgotten = false;
        self
    }

    /// Checks the rules; the error names the first one that is out of range.
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
