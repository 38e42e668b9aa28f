//! The settings of a consumer that do not depend on its broker.

use std::time::Duration;

use palisade::error::ConfigError;

/// Rules of a consumer: the number of messages that it handles at the same time, and the steps
/// after failures.
///
/// ```
/// use palisade_consumer::Rules;
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
    /// Sets the largest number of messages that are handled at the same time: 1 to 10,000, by
    /// default 16. The consumer takes only as many messages from its broker as it can handle. So no
    /// message waits in this process while its acknowledgement time runs.
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.concurrency = messages;
        self
    }

    /// Sets the pause of the broker before the next delivery of a message after a failure of its
    /// handler. The pause is `first` after the first failure, and doubles with each further failure
    /// up to `longest`. A handler can choose another pause by
    /// [`Failed::after`](palisade::Failed::after). Default 250 ms and 60 s.
    pub fn retry(mut self, first: Duration, longest: Duration) -> Self {
        (self.first_retry, self.longest_retry) = (first, longest);
        self
    }

    /// Sets the number of failures of the handler after which a message becomes a dead letter;
    /// default 10. A delivery is no failure if another consumer runs the handler, or if too few
    /// nodes answer. The documentation of the broker's adapter lists the failures that the adapter
    /// can count.
    ///
    /// An attempt whose process ended in the handler counts, too, with every broker: the nodes have
    /// the number of [attempts](palisade::idempotency::Context::attempt) that left no result. After
    /// `failures` of them the handler does not begin, and the message becomes a dead letter. Its
    /// key keeps that number for the retention, so a copy of it with the same key needs a larger
    /// `failures`.
    pub fn max_failures(mut self, failures: u32) -> Self {
        self.max_failures = failures;
        self
    }

    /// Sets the time for which a stopping consumer waits for running handlers; default 30 s. The
    /// broker delivers unfinished messages again. Their handlers continue as long as the runtime
    /// exists.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Treats messages with the same key as copies of one request, even if their bodies differ. By
    /// default a message with another body becomes a dead letter.
    pub fn ignore_body(mut self) -> Self {
        self.body_matters = false;
        self
    }

    /// Makes a forgotten message a dead letter at once, in place of holding it. A message is
    /// forgotten if too few nodes can exclude that it was handled before.
    ///
    /// By default a forgotten message is held: it stays with the broker and is delivered again
    /// after 4 s to 60 s. These deliveries do not count as failures. The message is held until an
    /// operator has decided about all messages of the same loss of data (`palisade idem decide`),
    /// or until enough nodes can decide about its key again. Other messages are not delayed.
    pub fn park_forgotten(mut self) -> Self {
        self.holds_forgotten = false;
        self
    }

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
