//! The Redis stream of a consumer, with the settings that only Redis Streams have.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use palisade::error::ConfigError;
use palisade::internal::Endpoint;
use palisade_consumer::{Broker, BrokerError, Terms};

use crate::message::Message;
use crate::session::Session;

/// A Redis stream that a [`Consumer`](crate::Consumer) reads as a member of a consumer group.
///
/// The idempotency key of a message is its field `key`. Two kinds of events count as failures of a
/// message. The first is an error of the message's handler. The second is the death of a process
/// that had the message.
#[derive(Clone)]
pub struct Stream {
    url: String,
    pub(crate) name: Arc<str>,
    pub(crate) group: Arc<str>,
    min_idle: Option<Duration>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address may contain a password.
        f.debug_struct("Stream")
            .field("name", &self.name)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl Stream {
    /// Describes the stream `name` on the server at the address `url`. A consumer reads the stream
    /// as a member of the consumer group `group`. The stream and the group are created if they do
    /// not exist. All consumers of a group must use the same namespace on the same Redis nodes.
    pub fn new(url: &str, name: &str, group: &str) -> Self {
        Self { url: url.to_owned(), name: name.into(), group: group.into(), min_idle: None }
    }

    /// Sets the idle time after which another consumer may take over an entry. This time is also
    /// the longest delay of a retry. The time must be at least the lease, because the claim of a
    /// dead consumer may last for a lease. Use the same time in all consumers of the group.
    /// Default: one and a half leases.
    #[must_use]
    pub fn min_idle(mut self, idle: Duration) -> Self {
        self.min_idle = Some(idle);
        self
    }

    pub(crate) fn endpoint(&self) -> Result<Endpoint, ConfigError> {
        Endpoint::parse(&self.url)
    }

    /// Returns the idle time after which another consumer may take over an entry.
    pub(crate) fn idle(&self, terms: &Terms) -> Result<Duration, ConfigError> {
        terms.taken_over_after("min_idle", self.min_idle)
    }
}

impl Broker for Stream {
    type Session = Session;
    type Delivery = Message;

    fn check(&self, terms: &Terms) -> Result<(), ConfigError> {
        for (field, name) in [("stream", &self.name), ("group", &self.group)] {
            if name.is_empty() {
                return Err(ConfigError::new(field, "\"\"", "not empty"));
            }
        }
        self.endpoint()?;
        self.idle(terms).map(drop)
    }

    async fn open(&self, terms: &Terms) -> Result<Session, BrokerError> {
        Session::open(self, terms).await
    }
}
