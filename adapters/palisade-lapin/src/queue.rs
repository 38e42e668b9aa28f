//! The RabbitMQ queue of a consumer, with the settings that only RabbitMQ has.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lapin::ConnectionProperties;
use palisade::error::ConfigError;
use palisade_consumer::{Broker, BrokerError, Terms};

use crate::message::Message;
use crate::session::Session;

/// Default of RabbitMQ's setting `consumer_timeout`.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// A RabbitMQ queue that a [`Consumer`](crate::Consumer) reads.
///
/// The idempotency key of a message is its property `message_id`. The prefetch count is the maximum
/// number of messages that the consumer handles at the same time.
#[derive(Clone)]
pub struct Queue {
    pub(crate) uri: String,
    pub(crate) properties: ConnectionProperties,
    pub(crate) name: Arc<str>,
    consumer_timeout: Duration,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address may contain a password.
        f.debug_struct("Queue").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Queue {
    /// Describes the queue `name` on the broker at the address `uri`
    /// (`amqp://user:password@host/vhost`). A consumer reads the queue.
    pub fn new(uri: &str, name: &str) -> Self {
        Self {
            uri: uri.to_owned(),
            properties: ConnectionProperties::default(),
            name: Arc::from(name),
            consumer_timeout: CONSUMER_TIMEOUT,
        }
    }

    /// Sets the properties of the connection to the broker, for example its name. Leave lapin's
    /// automatic recovery off, because the consumer itself replaces a broken connection.
    #[must_use]
    pub fn connection_properties(mut self, properties: ConnectionProperties) -> Self {
        self.properties = properties;
        self
    }

    /// Gives the consumer the value of the broker's setting `consumer_timeout`. Call this method if
    /// the value differs from the default of 30 minutes. After this time the broker no longer waits
    /// for an acknowledgement and delivers the message again. The new delivery finds that the key
    /// is claimed, and waits for the running handler. So no effect is doubled. But the broker
    /// delivers the message once more for each lease that the handler still runs.
    #[must_use]
    pub fn consumer_timeout(mut self, timeout: Duration) -> Self {
        self.consumer_timeout = timeout;
        self
    }
}

impl Broker for Queue {
    type Session = Session;
    type Delivery = Message;

    fn check(&self, terms: &Terms) -> Result<(), ConfigError> {
        let name = &self.name;
        // A queue name in AMQP has at most 255 bytes. The name of a delay queue is this name and a
        // suffix.
        if name.is_empty() || name.len() > 230 {
            let rule = "1 to 230 bytes, so that the queues for delays can be named after it";
            return Err(ConfigError::new("queue", format!("{name:?}"), rule));
        }
        let (lease, timeout) = (terms.lease, self.consumer_timeout);
        if timeout < 2 * lease {
            let rule = format!(
                "at least twice the lease ({lease:?}): the broker would hand a message to another \
                 consumer while the claim of the first one may still run; raise \
                 `consumer_timeout` in rabbitmq.conf, or shorten the lease"
            );
            return Err(ConfigError::new("consumer_timeout", format!("{timeout:?}"), rule));
        }
        Ok(())
    }

    async fn open(&self, terms: &Terms) -> Result<Session, BrokerError> {
        Session::open(self, terms).await.map_err(crate::error::refused)
    }
}
