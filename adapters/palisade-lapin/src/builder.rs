//! The settings of a consumer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lapin::ConnectionProperties;
use lapin::message::Delivery;
use palisade::Idempotency;
use palisade::error::ConfigError;
use palisade::idempotency::consumer::{Rules, Worker};

use crate::consumer::Consumer;
use crate::session::Plan;

/// RabbitMQ's default.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Settings of a [`Consumer`].
#[must_use = "a builder does nothing until `build`"]
pub struct ConsumerBuilder {
    plan: Plan,
    of: Idempotency,
    rules: Rules,
    consumer_timeout: Duration,
}

impl fmt::Debug for ConsumerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address may have a password.
        f.debug_struct("ConsumerBuilder")
            .field("queue", &self.plan.queue)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl ConsumerBuilder {
    pub(crate) fn new(uri: &str, queue: &str, of: Idempotency) -> Self {
        let plan = Plan {
            uri: uri.to_owned(),
            properties: ConnectionProperties::default(),
            queue: Arc::from(queue),
            key_of: None,
            prefetch: 0,
            longest: Duration::ZERO,
        };
        Self { plan, of, rules: Rules::default(), consumer_timeout: CONSUMER_TIMEOUT }
    }

    /// How much at once, and what becomes of failures. The prefetch is the concurrency.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// Where the key is, if not in the property `message_id`: whatever the *producer* gave the
    /// request, the same in every copy of it. Not the delivery tag.
    pub fn key(mut self, of: impl Fn(&Delivery) -> Option<String> + Send + Sync + 'static) -> Self {
        self.plan.key_of = Some(Arc::new(of));
        self
    }

    /// The properties of the connection, for example its name. lapin's recovery stays off: the
    /// consumer replaces a connection that breaks.
    pub fn connection_properties(mut self, properties: ConnectionProperties) -> Self {
        self.plan.properties = properties;
        self
    }

    /// The broker's `consumer_timeout`, if it is not the default of 30 minutes: it takes a message
    /// away from a handler that runs longer. The message then finds its own handler in flight and
    /// waits for it, so no effect is doubled, but each lease costs a redelivery.
    pub fn consumer_timeout(mut self, timeout: Duration) -> Self {
        self.consumer_timeout = timeout;
        self
    }

    /// Checks the settings. Nothing is connected before [`Consumer::run`].
    ///
    /// # Errors
    /// [`ConfigError`] naming the field, the value and the rule.
    pub fn build(mut self) -> Result<Consumer, ConfigError> {
        let queue = &self.plan.queue;
        // The longest name of a queue is 255 bytes, and those for delays are longer.
        if queue.is_empty() || queue.len() > 230 {
            let rule = "1 to 230 bytes, so that the queues for delays can be named after it";
            return Err(ConfigError::new("queue", format!("{queue:?}"), rule));
        }
        let worker = Worker::new(self.of, self.rules.clone())?;
        self.plan.prefetch = u16::try_from(self.rules.max_in_hand()).unwrap_or(u16::MAX);
        let (lease, timeout) = (worker.lease(), self.consumer_timeout);
        self.plan.longest = lease.max(self.rules.longest_wait());
        if timeout < 2 * lease {
            let rule = format!(
                "at least twice the lease ({lease:?}): the broker would hand a message to another \
                 consumer while the claim of the first one may still run; raise \
                 `consumer_timeout` in rabbitmq.conf, or shorten the lease"
            );
            return Err(ConfigError::new("consumer_timeout", format!("{timeout:?}"), rule));
        }
        Ok(Consumer { worker, plan: self.plan })
    }
}
