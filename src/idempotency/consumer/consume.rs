//! A consumer of messages, its settings, and the report that it returns when it ends.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use super::work::Work;
use super::{Broker, BrokerError, Handler, Rules, Terms};
use crate::error::{Advice, ConfigError, advise};
use crate::idempotency::Idempotency;

/// A function that returns the key of a message, if the message has one.
pub(super) type KeyOf<D> = Arc<dyn Fn(&D) -> Option<String> + Send + Sync>;

/// A consumer of a broker's messages, in which each message takes effect once although a broker may
/// deliver it again.
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
    /// Sets the rules of the consumer: how many messages it handles at once, and what it does after
    /// failures.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Sets the function that finds the key of a message, in place of the one of the broker's
    /// adapter. The key is an id that the *producer* gave the request, the same in every copy of it
    /// and in no other request. Do not use a number that the broker gives to each copy.
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

    /// Consumes messages until `stop` resolves, and then finishes the messages that it has or
    /// returns them to the broker. The handler runs once for each message, however often it is
    /// delivered. When the connection to the broker breaks, connects again.
    ///
    /// # Errors
    /// [`ConsumeError`] if the broker refuses the login or the queue, or if no message can be
    /// handled until a person has changed something. The messages that the consumer has are
    /// finished or returned before.
    ///
    /// # Cancellation safety
    /// If dropped, the consumer takes no more messages. Handlers that run go on in tasks of their
    /// own and their results are stored, but no message is acknowledged. The broker delivers these
    /// messages again, and they are answered by the stored results.
    pub async fn run<H: Handler<B::Delivery>>(
        &self,
        handler: H,
        stop: impl Future<Output = ()>,
    ) -> Result<ConsumerReport, ConsumeError> {
        // The future is boxed because it is large and would otherwise enlarge the future of the
        // program that awaits it.
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

/// Counts of a consumer's messages from its start to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerReport {
    /// Deliveries that were taken from the broker.
    pub delivered: u64,
    /// Messages that were acknowledged, because their results are stored.
    pub acked: u64,
    /// Messages that were returned to the broker, to be delivered again.
    pub retried: u64,
    /// Messages that were moved to the dead letters.
    pub parked: u64,
    /// Messages whose settlement the broker did not confirm. The broker delivers them again, and
    /// what is stored under their keys answers them.
    pub unsettled: u64,
    /// Messages that were not finished when the time of [`Rules::grace`] was over. The broker
    /// delivers them again.
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
        /// Counts of the consumer's messages until it ended.
        ended: ConsumerReport,
    },
    /// The broker refuses deliveries for good.
    #[non_exhaustive]
    Broker {
        /// The broker's answer.
        error: BrokerError,
        /// Counts of the consumer's messages until it ended.
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
    /// Returns what to do about the error: a person has to change something, unless the advice of
    /// the broker's error is another.
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
