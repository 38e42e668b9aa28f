//! Publishes messages to Kafka with an idempotency key, and waits until they are replicated.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use palisade_consumer::BrokerError;
use palisade_consumer::headers::{CREATED, KEY};
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::dead::producer;
use crate::error::failed;

/// Maximum time for which a record waits for room in rdkafka's send queue.
const ROOM: Duration = Duration::from_secs(10);

/// A publisher to a Kafka topic. It adds to each message an idempotency key and the time of the
/// request. It waits until the brokers have confirmed the message.
#[derive(Clone)]
pub struct Publisher {
    producer: FutureProducer,
    topic: String,
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").field("topic", &self.topic).finish_non_exhaustive()
    }
}

impl Publisher {
    /// Creates a publisher to `topic`. `config` has librdkafka's settings. Only `bootstrap.servers`
    /// is required.
    ///
    /// # Errors
    /// [`BrokerError`] if a setting cannot be used.
    pub fn new(config: &ClientConfig, topic: &str) -> Result<Self, BrokerError> {
        let producer = producer(config).map_err(|e| failed("the settings", e))?;
        Ok(Self { producer, topic: topic.to_owned() })
    }

    /// Publishes a message. `key` is the idempotency key of the message's request. `made` is the
    /// time at which the request was made. The Kafka record has the same key. So all copies of the
    /// message are in one partition.
    ///
    /// # Errors
    /// [`BrokerError`] if the brokers did not confirm the message. The message may have been
    /// published nevertheless. Publish the message again with the same key. Consumers recognise the
    /// copy by its key.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the message may or may not be published. The caller can safely
    /// publish the message again with the same key.
    pub async fn publish(
        &self,
        key: &str,
        made: SystemTime,
        body: &[u8],
    ) -> Result<(), BrokerError> {
        let what = "a message is not confirmed, publish it again with the same key";
        let made = made.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis().to_string();
        let headers = OwnedHeaders::new()
            .insert(Header { key: KEY, value: Some(key) })
            .insert(Header { key: CREATED, value: Some(&made) });
        let record = FutureRecord::to(&self.topic).key(key).payload(body).headers(headers);
        let sent = self.producer.send(record, ROOM).await;
        sent.map(drop).map_err(|(e, _)| failed(what, e))
    }
}
