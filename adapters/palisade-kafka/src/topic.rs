//! The Kafka topic of a consumer, with the settings that only Kafka has.

use std::fmt;

use palisade::error::ConfigError;
use palisade_consumer::{Broker, BrokerError, Terms};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;

use crate::message::Message;
use crate::session::Session;

/// The librdkafka settings that the consumer sets itself. Users must not set them.
const OURS: [&str; 3] = ["group.id", "enable.auto.commit", "enable.auto.offset.store"];

/// A Kafka topic that a [`Consumer`](crate::Consumer) reads as a member of a consumer group.
///
/// The idempotency key of a message is its header `x-palisade-key`. Each process counts the
/// failures of its handler by itself. If a partition moves to another consumer, the counts of the
/// partition's messages begin again.
#[derive(Clone)]
pub struct Topic {
    /// The brokers' addresses and the user's settings for librdkafka.
    pub(crate) config: ClientConfig,
    pub(crate) name: String,
    pub(crate) group: String,
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The settings may contain a password.
        f.debug_struct("Topic")
            .field("name", &self.name)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

impl Topic {
    /// Describes the topic `name` on the brokers `brokers` (`host:port,host:port`). A consumer
    /// reads the topic as a member of the consumer group `group`. All consumers of a group must use
    /// the same namespace on the same Redis nodes.
    pub fn new(brokers: &str, name: &str, group: &str) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers);
        let [name, group] = [name, group].map(str::to_owned);
        Self { config, name, group }
    }

    /// Sets a setting of librdkafka, for example `security.protocol`. The setting also applies to
    /// the producer of dead letters. The consumer itself sets `group.id`, `enable.auto.commit` and
    /// `enable.auto.offset.store`, because these settings decide which offset is committed. So
    /// building a consumer fails if one of them is set here.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.config.set(name, value);
        self
    }

    pub(crate) fn consumer(&self) -> ClientConfig {
        let mut config = self.config.clone();
        if config.get("auto.offset.reset").is_none() {
            // By default a new group would skip the messages that are already in the topic.
            config.set("auto.offset.reset", "earliest");
        }
        config.set("group.id", &self.group);
        // librdkafka commits what the consumer has stored, and nothing else.
        config.set("enable.auto.commit", "true").set("enable.auto.offset.store", "false");
        if config.get("auto.commit.interval.ms").is_none() {
            config.set("auto.commit.interval.ms", "200");
        }
        config
    }
}

impl Broker for Topic {
    type Session = Session;
    type Delivery = Message;

    fn check(&self, _: &Terms) -> Result<(), ConfigError> {
        for (field, name) in [("topic", &self.name), ("group", &self.group)] {
            // A topic name in Kafka has at most 249 bytes. The name of the dead letters' topic is
            // this name and a suffix.
            if name.is_empty() || name.len() > 240 {
                let value = format!("{name:?}");
                return Err(ConfigError::new(field, value, "1 to 240 bytes"));
            }
        }
        if let Some(name) = OURS.into_iter().find(|name| self.config.get(name).is_some()) {
            let value = self.config.get(name).unwrap_or_default().to_owned();
            let rule = "not set: what is committed is the consumer's own";
            return Err(ConfigError::new(name, value, rule));
        }
        // librdkafka checks the other settings. The error does not contain the value of a setting,
        // because the value may be a password.
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
