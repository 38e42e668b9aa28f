//! Writes dead letters to a Kafka topic of their own.

use std::time::Duration;

use palisade_consumer::headers::KEY;
use palisade_consumer::{BrokerError, DeadLetter};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, Message as _, OwnedHeaders, OwnedMessage};
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::error::failed;
use crate::group::Read;
use crate::topic::Topic;

/// In milliseconds.
const CONFIRM: &str = "10000";

/// Returns the name of the topic that holds the dead letters of `topic`.
pub fn dead_letters(topic: &str) -> String {
    format!("{topic}.dead")
}

pub(crate) struct DeadLetters {
    producer: FutureProducer,
    topic: String,
}

/// Returns a Kafka producer. The producer reports a record as sent when all in-sync replicas have
/// stored it. Retries of the producer do not duplicate records (`enable.idempotence`).
pub(crate) fn producer(config: &rdkafka::ClientConfig) -> KafkaResult<FutureProducer> {
    let mut config = config.clone();
    config.set("enable.idempotence", "true").set("message.timeout.ms", CONFIRM);
    // The settings may be those of a consumer. At the default log level librdkafka would warn about
    // each setting that producers do not support.
    config.set_log_level(RDKafkaLogLevel::Error);
    config.create()
}

impl DeadLetters {
    pub(crate) fn new(of: &Topic) -> KafkaResult<Self> {
        Ok(Self { producer: producer(&of.config)?, topic: dead_letters(&of.name) })
    }

    /// Writes a copy of a record to the topic of dead letters, and returns when the brokers have
    /// confirmed the copy. If the copy is too large for the brokers, writes a smaller dead letter:
    /// only the position of the record in its topic, and the reason.
    pub(crate) async fn park(&self, of: &Read, why: &DeadLetter) -> Result<(), BrokerError> {
        let raw = &of.raw;
        let origin = format!("{}/{}:{}", raw.topic(), raw.partition(), raw.offset());
        let ours = why.headers(&origin);
        // The copy does not have the key header of the record. If the consumer used a key, the
        // headers that the dead letter adds (`ours`) contain that key.
        let is_ours = |name: &str| name == KEY || ours.iter().any(|(ours, _)| *ours == name);
        let copied = of.headers.iter().filter(|(name, _)| !is_ours(name));
        let copied = copied.fold(OwnedHeaders::new(), |all, (key, value)| {
            all.insert(Header { key, value: value.as_ref() })
        });
        let mut record = self.letter(copied, &ours);
        (record.key, record.payload) = (raw.key(), raw.payload());
        let sent = self.producer.send(record, Duration::ZERO).await;
        let error = |(e, _): (KafkaError, OwnedMessage)| e;
        let sent = match sent.map_err(error) {
            Err(e) if is_too_large(&e) => {
                let alone = why.headers_alone(&origin, raw.payload().map_or(0, <[u8]>::len));
                let record = self.letter(OwnedHeaders::new(), &alone);
                self.producer.send(record, Duration::ZERO).await.map_err(error)
            }
            sent => sent,
        };
        sent.map(drop).map_err(|e| failed("a dead letter", e))
    }

    fn letter(
        &self,
        copied: OwnedHeaders,
        ours: &[(&str, String)],
    ) -> FutureRecord<'_, [u8], [u8]> {
        let headers = ours
            .iter()
            .fold(copied, |all, (key, value)| all.insert(Header { key, value: Some(value) }));
        FutureRecord::to(&self.topic).headers(headers)
    }
}

fn is_too_large(e: &KafkaError) -> bool {
    matches!(e.rdkafka_error_code(), Some(Code::MessageSizeTooLarge | Code::InvalidMessageSize))
}
