//! The settings of a consumer.

use std::fmt;
use std::sync::Arc;

use palisade::Idempotency;
use palisade::error::ConfigError;
use palisade::idempotency::consumer::{Rules, Worker};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::message::OwnedMessage;

use crate::consumer::Consumer;
use crate::message::KeyOf;
use crate::session::Plan;

/// For each message that is handled at once, how many may be read and not finished.
const AHEAD: usize = 16;
/// Settings that are the consumer's own.
const OURS: [&str; 3] = ["group.id", "enable.auto.commit", "enable.auto.offset.store"];

/// Settings of a [`Consumer`].
#[must_use = "a builder does nothing until `build`"]
pub struct ConsumerBuilder {
    config: ClientConfig,
    topic: String,
    group: String,
    of: Idempotency,
    rules: Rules,
    key_of: Option<KeyOf>,
}

impl fmt::Debug for ConsumerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The settings may have a password.
        f.debug_struct("ConsumerBuilder")
            .field("topic", &self.topic)
            .field("group", &self.group)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl ConsumerBuilder {
    pub(crate) fn new(brokers: &str, topic: &str, group: &str, of: Idempotency) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers);
        let [topic, group] = [topic, group].map(str::to_owned);
        Self { config, topic, group, of, rules: Rules::default(), key_of: None }
    }

    /// How much at once, and what becomes of failures. They are counted in this process: where a
    /// partition moves to another one its count begins again.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// A setting of librdkafka, for example `security.protocol`. Also used to write dead letters.
    /// What is committed, and when, is the consumer's own.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.config.set(name, value);
        self
    }

    /// Where the key is, if not in the header `x-palisade-key`: whatever the *producer* gave the
    /// request, the same in every copy of it, and in no other request. Neither the offset nor, as
    /// a rule, the record's key, which only chooses the partition.
    pub fn key(
        mut self,
        of: impl Fn(&OwnedMessage) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.key_of = Some(Arc::new(of));
        self
    }

    /// Checks the settings. Nothing is connected before [`Consumer::run`].
    ///
    /// # Errors
    /// [`ConfigError`] naming the field, the value and the rule.
    pub fn build(self) -> Result<Consumer, ConfigError> {
        for (field, name) in [("topic", &self.topic), ("group", &self.group)] {
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
        let ahead = AHEAD * self.rules.max_in_hand();
        let worker = Worker::new(self.of, self.rules)?;
        let (config, topic, group) = (self.config, self.topic, self.group);
        let plan = Plan { config, topic, group, ahead, key_of: self.key_of };
        // librdkafka knows its settings; a value may be a password.
        match plan.consumer().create_native_config() {
            Ok(_) => Ok(Consumer { worker, plan }),
            Err(KafkaError::ClientConfig(_, rule, name, _)) => {
                Err(ConfigError::new("set", name, rule))
            }
            Err(e) => Err(ConfigError::new("set", "a setting", e.to_string())),
        }
    }
}
