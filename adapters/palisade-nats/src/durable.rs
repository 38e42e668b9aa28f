//! The durable JetStream consumer of a palisade consumer, with the settings that only JetStream
//! has.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use palisade::error::ConfigError;
use palisade_consumer::{Broker, BrokerError, Terms};

use crate::message::Message;
use crate::session::{Failures, Session};

/// A durable consumer of a JetStream stream. A [`Consumer`](crate::Consumer) pulls its messages.
///
/// The idempotency key of a message is its header `Nats-Msg-Id`. The consumer pulls only as many
/// messages as it can handle at the same time. Each process counts only the failures of its own
/// handler. So with several processes a message is tried more often before it becomes a dead
/// letter.
#[derive(Clone)]
pub struct Durable {
    pub(crate) client: Client,
    pub(crate) stream: String,
    pub(crate) name: String,
    pub(crate) ack_wait: Option<Duration>,
    pub(crate) failures: Arc<Failures>,
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durable")
            .field("stream", &self.stream)
            .field("name", &self.name)
            .field("ack_wait", &self.ack_wait)
            .finish_non_exhaustive()
    }
}

impl Durable {
    /// Describes the durable consumer `name` of the stream `stream`. If the server has no such
    /// durable consumer, palisade creates it when messages are consumed. All processes with the
    /// same durable consumer must use the same namespace on the same Redis nodes. Do not switch off
    /// the automatic reconnecting of `client`, which is on by default.
    pub fn new(client: Client, stream: &str, name: &str) -> Self {
        let [stream, name] = [stream, name].map(str::to_owned);
        Self { client, stream, name, ack_wait: None, failures: Arc::default() }
    }

    /// Sets the ack wait: the time without a heartbeat after which the server delivers a message to
    /// another consumer. The setting applies only if this process creates the durable consumer. The
    /// ack wait must be at least the lease, because the claim of a dead consumer may last for a
    /// lease. Default: one and a half leases. The consumer sends heartbeats for a message while its
    /// handler runs. So the server does not deliver the message again, even if the handler takes
    /// longer than the ack wait.
    #[must_use]
    pub fn ack_wait(mut self, wait: Duration) -> Self {
        self.ack_wait = Some(wait);
        self
    }
}

impl Broker for Durable {
    type Session = Session;
    type Delivery = Message;

    fn check(&self, terms: &Terms) -> Result<(), ConfigError> {
        for (field, name) in [("stream", &self.stream), ("durable", &self.name)] {
            let bad = |c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);
            if name.is_empty() || name.len() > 200 || name.contains(bad) {
                let rule = "1 to 200 bytes without whitespace and without . * > / \\";
                return Err(ConfigError::new(field, format!("{name:?}"), rule));
            }
        }
        terms.taken_over_after("ack_wait", self.ack_wait).map(drop)
    }

    async fn open(&self, terms: &Terms) -> Result<Session, BrokerError> {
        Session::open(self, terms).await
    }
}
