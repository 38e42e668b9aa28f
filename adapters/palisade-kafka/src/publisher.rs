//! The publisher: adds the key, and waits until all replicas have the message.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use palisade::idempotency::consumer::BrokerError;
use palisade::idempotency::consumer::headers::{CREATED, KEY};
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::dead::producer;
use crate::error::failed;

/// Maximum time that a record waits for room in the producer's queue.
const ROOM: Duration = Duration::from_secs(10);

/// Publishes messages with a key and a time, and waits until the brokers have confirmed them.
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
    /// Creates a publisher to this topic. The settings are librdkafka's; `bootstrap.servers` is
    /// required.
    ///
    /// # Errors
    /// [`BrokerError`] if a setting cannot be used.
    pub fn new(config: &ClientConfig, topic: &str) -> Result<Self, BrokerError> {
        let producer = producer(config).map_err(|e| failed("the settings", e))?;
        Ok(Self { producer, topic: topic.to_owned() })
    }

    /// Publishes a message under the key of its request. `made` is the time when the request was
    /// made. The key is also the record's key, so that all copies are in one partition.
    ///
    /// # Errors
    /// [`BrokerError`] if the message was not confirmed. It may have been published all the same.
    /// Publish it again with the same key: consumers recognise a copy.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the message may or may not be published; publishing it again with
    /// the same key is safe.
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
