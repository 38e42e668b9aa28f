//! A consumer, its settings, and its report when it ends.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use super::work::Work;
use super::{Broker, BrokerError, Handler, Rules, Terms};
use crate::error::{Advice, ConfigError, advise};
use crate::idempotency::Idempotency;

/// Returns the key of a message, if it has one.
pub(super) type KeyOf<D> = Arc<dyn Fn(&D) -> Option<String> + Send + Sync>;

/// A consumer of a broker's messages: each message takes effect once.
pub struct Consumer<B: Broker> {
    pub(super) broker: B,
    pub(super) of: Idempotency,
    pub(super) rules: Rules,
    pub(super) key_of: Option<KeyOf<B::Delivery>>,
    pub(super) terms: Terms,
}

/// Settings of a [`Consumer`].
#[must_use = "a builder does nothing until `build`"]
pub struct ConsumerBuilder<B: Broker> {
    broker: B,
    of: Idempotency,
    rules: Rules,
    key_of: Option<KeyOf<B::Delivery>>,
}

impl<B: Broker> ConsumerBuilder<B> {
    /// Sets how many messages are handled at once, and what happens after failures.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Sets where the key is, if not where the broker's adapter looks for it. The key is an id that
    /// the *producer* gave the request, the same in every copy of it and in no other request. Do
    /// not use a number that the broker gives to each copy.
    pub fn key(
        mut self,
        of: impl Fn(&B::Delivery) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.key_of = Some(Arc::new(of));
        self
    }

    /// Checks the settings and builds the consumer. Nothing is connected before [`Consumer::run`].
    ///
    /// # Errors
    /// [`ConfigError`] naming the field, the value and the rule.
    pub fn build(self) -> Result<Consumer<B>, ConfigError> {
        let Self { broker, of, rules, key_of } = self;
        rules.check()?;
        let terms = Terms {
            lease: of.lease,
            concurrency: rules.concurrency,
            longest_retry: rules.longest_retry,
            name: Arc::from(of.incarnation()),
        };
        broker.check(&terms)?;
        Ok(Consumer { broker, of, rules, key_of, terms })
    }
}

impl<B: Broker> Consumer<B> {
    /// Returns a builder of a consumer that stores results in this namespace. All consumers of the
    /// same messages must use the same namespace on the same nodes.
    pub fn builder(broker: B, of: Idempotency) -> ConsumerBuilder<B> {
        ConsumerBuilder { broker, of, rules: Rules::default(), key_of: None }
    }

    /// Consumes until `stop` resolves, then finishes or returns the messages that it has. Each
    /// message runs the handler once, however often it is delivered. Connects again when the broker
    /// goes away.
    ///
    /// # Errors
    /// [`ConsumeError`]: the broker refuses the login or what is consumed, or no message can be
    /// handled until a person has changed something. What the consumer had is finished or returned.
    ///
    /// # Cancellation safety
    /// If dropped, the consumer takes no more messages. Handlers that run go on in tasks of their
    /// own and their results are stored, but nothing is acknowledged: the broker delivers those
    /// messages again, and they are answered by their results.
    pub async fn run<H: Handler<B::Delivery>>(
        &self,
        handler: H,
        stop: impl Future<Output = ()>,
    ) -> Result<ConsumerReport, ConsumeError> {
        // Boxed because it is large and would otherwise enlarge each program's future.
        Box::pin(Work::new(self, handler).serve(stop)).await
    }
}

impl<B: Broker> fmt::Debug for Consumer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("broker", &self.broker)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl<B: Broker> fmt::Debug for ConsumerBuilder<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerBuilder")
            .field("broker", &self.broker)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

/// Counts of a consumer until it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerReport {
    /// Deliveries taken from the broker.
    pub delivered: u64,
    /// Messages acknowledged: the result is stored.
    pub acked: u64,
    /// Messages returned to the broker, to come again.
    pub retried: u64,
    /// Messages put with the dead letters.
    pub parked: u64,
    /// Messages whose settlement the broker did not confirm: they come again, and are answered by
    /// their records.
    pub unsettled: u64,
    /// Messages whose handlers still ran when the grace was over: they come again.
    pub unfinished: u64,
}

/// The error of a consumer that ended before `stop` resolved.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConsumeError {
    /// No message can be handled until a person has changed something.
    #[non_exhaustive]
    Stopped {
        /// The change that is needed, and its reason.
        why: String,
        /// Counts until the consumer ended.
        ended: ConsumerReport,
    },
    /// The broker refuses deliveries for good.
    #[non_exhaustive]
    Broker {
        /// The broker's answer.
        error: BrokerError,
        /// Counts until the consumer ended.
        ended: ConsumerReport,
    },
}

impl fmt::Display for ConsumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped { why, .. } => write!(f, "the consumer stopped: {why}"),
            Self::Broker { error, .. } => write!(f, "the consumer gets no messages: {error}"),
        }
    }
}

advise!(ConsumeError);

impl ConsumeError {
    /// Returns what to do about it: a person has to change something, unless the broker says
    /// otherwise.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Stopped { .. } => Advice::Misconfigured,
            Self::Broker { error, .. } => error.advice(),
        }
    }
}

impl Error for ConsumeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Stopped { .. } => None,
            Self::Broker { error, .. } => Some(error),
        }
    }
}
