//! The settings of a consumer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, jetstream};
use palisade::Idempotency;
use palisade::error::ConfigError;
use palisade::idempotency::consumer::{Rules, Worker};

use crate::consumer::Consumer;
use crate::message::KeyOf;
use crate::session::{Failures, Plan};

/// Settings of a [`Consumer`].
#[must_use = "a builder does nothing until `build`"]
pub struct ConsumerBuilder {
    client: Client,
    stream: String,
    durable: String,
    of: Idempotency,
    rules: Rules,
    ack_wait: Option<Duration>,
    key_of: Option<KeyOf>,
}

impl fmt::Debug for ConsumerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerBuilder")
            .field("stream", &self.stream)
            .field("durable", &self.durable)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl ConsumerBuilder {
    pub(crate) fn new(client: Client, stream: &str, durable: &str, of: Idempotency) -> Self {
        let [stream, durable] = [stream, durable].map(str::to_owned);
        let (rules, ack_wait, key_of) = (Rules::default(), None, None);
        Self { client, stream, durable, of, rules, ack_wait, key_of }
    }

    /// How much at once, and what becomes of failures. No more is pulled than can be handled at
    /// once. Each process counts the failures that it has seen itself: with several of them a
    /// message is tried more often before it becomes a dead letter.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// After how long without a heartbeat the server delivers a message to another consumer, where
    /// the durable consumer is created here. At least the lease, because the claim of a consumer
    /// that died may last that long. Default: one and a half leases. While a handler runs its
    /// message is not delivered again, however long that takes.
    pub fn ack_wait(mut self, wait: Duration) -> Self {
        self.ack_wait = Some(wait);
        self
    }

    /// Where the key is, if not in the header `Nats-Msg-Id`: whatever the *producer* gave the
    /// request, the same in every copy of it. Not the sequence.
    pub fn key(
        mut self,
        of: impl Fn(&jetstream::Message) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.key_of = Some(Arc::new(of));
        self
    }

    /// Checks the settings. The server is not asked before [`Consumer::run`].
    ///
    /// # Errors
    /// [`ConfigError`] naming the field, the value and the rule.
    pub fn build(self) -> Result<Consumer, ConfigError> {
        for (field, name) in [("stream", &self.stream), ("durable", &self.durable)] {
            let bad = |c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);
            if name.is_empty() || name.len() > 200 || name.contains(bad) {
                let rule = "1 to 200 bytes without whitespace and without . * > / \\";
                return Err(ConfigError::new(field, format!("{name:?}"), rule));
            }
        }
        let worker = Worker::new(self.of, self.rules)?;
        let ack_wait = worker.taken_over_after("ack_wait", self.ack_wait)?;
        let plan = Plan {
            client: self.client,
            stream: self.stream,
            durable: self.durable,
            ack_wait,
            lease: worker.lease(),
            key_of: self.key_of,
            failures: Arc::new(Failures::default()),
        };
        Ok(Consumer { worker, plan })
    }
}
