//! The topic that is consumed, with the settings that only Kafka has.

use std::fmt;

use palisade::error::ConfigError;
use palisade::idempotency::consumer::{Broker, BrokerError, Terms};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;

use crate::message::Message;
use crate::session::Session;

/// Settings that are the consumer's own.
const OURS: [&str; 3] = ["group.id", "enable.auto.commit", "enable.auto.offset.store"];

/// A topic, read as a member of a group: what a [`Consumer`](crate::Consumer) consumes.
///
/// The key of a message is its header `x-palisade-key`. Failures are counted in this process: where
/// a partition moves to another one its count begins again.
#[derive(Clone)]
pub struct Topic {
    /// With the address, and what the user has set.
    pub(crate) config: ClientConfig,
    pub(crate) name: String,
    pub(crate) group: String,
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The settings may have a password.
        f.debug_struct("Topic")
            .field("name", &self.name)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl Topic {
    /// The topic with this name at these brokers (`host:port,host:port`), for this group. All
    /// consumers of a group must use the same namespace on the same nodes.
    pub fn new(brokers: &str, name: &str, group: &str) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers);
        let [name, group] = [name, group].map(str::to_owned);
        Self { config, name, group }
    }

    /// A setting of librdkafka, for example `security.protocol`. Also used to write dead letters.
    /// What is committed, and when, is the consumer's own.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.config.set(name, value);
        self
    }

    /// Returns the settings of a member of the group.
    pub(crate) fn consumer(&self) -> ClientConfig {
        let mut config = self.config.clone();
        if config.get("auto.offset.reset").is_none() {
            // A new group begins with what is there already.
            config.set("auto.offset.reset", "earliest");
        }
        config.set("group.id", &self.group);
        config.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
        config
    }
}

impl Broker for Topic {
    type Session = Session;
    type Delivery = Message;

    fn check(&self, _: &Terms) -> Result<(), ConfigError> {
        for (field, name) in [("topic", &self.name), ("group", &self.group)] {
            // The longest name of a topic is 249 bytes, and that of the dead letters is longer.
            if name.is_empty() || name.len() > 240 {
                let value = format!("{name:?}");
                return Err(ConfigError::new(field, value, "1 to 240 bytes"));
            }
        }
        if let Some(name) = OURS.into_iter().find(|name| self.config.get(name).is_some()) {
            let value = self.config.get(name).unwrap_or_default().to_owned();
            let rule = "not set: what is committed, and when, is the consumer's own";
            return Err(ConfigError::new(name, value, rule));
        }
        // librdkafka knows its settings; a value may be a password.
        match self.consumer().create_native_config() {
            Ok(_) => Ok(()),
            Err(KafkaError::ClientConfig(_, rule, name, _)) => {
                Err(ConfigError::new("set", name, rule))
            }
            Err(e) => Err(ConfigError::new("set", "a setting", e.to_string())),
        }
    }

    async fn open(&self, terms: &Terms) -> Result<Session, BrokerError> {
        Session::open(self, terms)
    }
}
