//! A consumer of messages, the settings of the consumer, and the report of its run.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use palisade::Idempotency;
use palisade::error::{Advice, Advise, ConfigError};
use palisade::node::spi::{Env as _, SystemEnv};

use super::work::Work;
use super::{Broker, BrokerError, Handler, Rules, Terms};

pub(super) type KeyOf<D> = Arc<dyn Fn(&D) -> Option<String> + Send + Sync>;

/// A consumer of a broker's messages. Each message takes effect once, even if the broker delivers
/// it several times.
pub struct Consumer<B: Broker> {
    pub(super) broker: B,
    pub(super) of: Idempotency,
    pub(super) rules: Rules,
    pub(super) key_of: Option<KeyOf<B::Delivery>>,
    pub(super) terms: Terms,
}

/// Settings of a [`Consumer`] that is not built yet.
#[must_use = "a builder does nothing until `build`"]
pub struct ConsumerBuilder<B: Broker> {
    broker: B,
    of: Idempotency,
    rules: Rules,
    key_of: Option<KeyOf<B::Delivery>>,
}

impl<B: Broker> ConsumerBuilder<B> {
    /// Sets the rules of the consumer: the number of messages that are handled at the same time,
    /// and the steps after failures.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Sets the function that reads the key of a message. Without it, the broker's adapter reads
    /// the key. The key is an id that the *producer* gave to the request. Every copy of the request
    /// has this id, and no other request has it. Do not use a number that the broker gives to each
    /// copy.
    pub fn key(
        mut self,
        of: impl Fn(&B::Delivery) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.key_of = Some(Arc::new(of));
        self
    }

    /// Checks the settings and builds the consumer. The connection to the broker is made by
    /// [`Consumer::run`].
    ///
    /// # Errors
    /// [`ConfigError`] with the field, the value and the rule.
    pub fn build(self) -> Result<Consumer<B>, ConfigError> {
        let Self { broker, of, rules, key_of } = self;
        rules.check()?;
        let terms = Terms {
            lease: of.lease(),
            concurrency: rules.concurrency,
            longest_retry: rules.longest_retry,
            name: Arc::from(format!("{:032x}", SystemEnv.random())),
        };
        broker.check(&terms)?;
        Ok(Consumer { broker, of, rules, key_of, terms })
    }
}

impl<B: Broker> Consumer<B> {
    /// Returns a builder of a consumer with the results of the namespace `of`. All consumers of the
    /// same messages must use the same namespace on the same nodes.
    pub fn builder(broker: B, of: Idempotency) -> ConsumerBuilder<B> {
        ConsumerBuilder { broker, of, rules: Rules::default(), key_of: None }
    }

    /// Consumes messages until `stop` resolves, and then finishes the received messages or returns
    /// them to the broker. The handler runs once for each message, even if the broker delivers the
    /// message several times. After a broken connection to the broker, the consumer connects again.
    ///
    /// # Errors
    /// [`ConsumeError`] if the broker refuses the login or the queue, or if the consumer cannot
    /// handle any message until a person changes a setting. Before the error the consumer finishes
    /// its received messages or returns them to the broker.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the consumer takes no more messages. Running handlers continue in
    /// their own tasks and their results are stored, but no message is acknowledged. The broker
    /// delivers these messages again, and the consumer then uses the stored results.
    pub async fn run<H: Handler<B::Delivery>>(
        &self,
        handler: H,
        stop: impl Future<Output = ()>,
    ) -> Result<ConsumerReport, ConsumeError> {
        // A large future would enlarge the caller's.
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

/// Counts of a consumer's messages over one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerReport {
    /// Deliveries that the consumer received from the broker.
    pub delivered: u64,
    /// Messages that were acknowledged after their results were stored.
    pub acked: u64,
    /// Messages that were returned to the broker, to be delivered again.
    pub retried: u64,
    /// Messages that were moved to the dead letters.
    pub parked: u64,
    /// Messages without a confirmed settlement. The broker delivers these messages again, and the
    /// consumer then uses the stored results of their keys.
    pub unsettled: u64,
    /// Messages that were not finished within [`Rules::grace`]. The broker delivers these messages
    /// again.
    pub unfinished: u64,
}

/// The error of a consumer that ended before `stop` resolved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumeError {
    /// The consumer cannot handle any message until a person changes a setting.
    #[error("the consumer stopped: {why}")]
    #[non_exhaustive]
    Stopped {
        /// The required change, and its reason.
        why: String,
        /// Counts of the consumer's messages over this run.
        ended: ConsumerReport,
    },
    /// The broker permanently refuses deliveries.
    #[error("the consumer gets no messages: {error}")]
    #[non_exhaustive]
    Broker {
        /// The broker's answer.
        #[source]
        error: BrokerError,
        /// Counts of the consumer's messages over this run.
        ended: ConsumerReport,
    },
}

impl Advise for ConsumeError {
    fn advice(&self) -> Advice {
        Self::advice(self)
    }
}

impl ConsumeError {
    /// Returns the next step after the error. For `Broker` it is the advice of the broker's error;
    /// for `Stopped` a person has to change a setting.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Stopped { .. } => Advice::Misconfigured,
            Self::Broker { error, .. } => error.advice(),
        }
    }
}
