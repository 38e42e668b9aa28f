//! The topic with the dead letters.

use std::time::Duration;

use palisade::idempotency::consumer::DeadLetter;
use palisade::idempotency::consumer::headers::KEY;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders, OwnedMessage};
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::error::BrokerError;
use crate::session::Plan;

/// How long the brokers may take to confirm a dead letter, in milliseconds.
const CONFIRM: &str = "10000";

/// The topic with the dead letters of `topic`.
pub fn dead_letters(topic: &str) -> String {
    format!("{topic}.dead")
}

/// Writes dead letters.
pub(crate) struct DeadLetters {
    producer: FutureProducer,
    topic: String,
}

/// A producer that returns when all replicas have a record, and writes none twice by itself.
pub(crate) fn producer(config: &rdkafka::ClientConfig) -> KafkaResult<FutureProducer> {
    let mut config = config.clone();
    config.set("enable.idempotence", "true").set("message.timeout.ms", CONFIRM);
    // A warning for each setting that is a consumer's only.
    config.set_log_level(RDKafkaLogLevel::Error);
    config.create()
}

impl DeadLetters {
    pub(crate) fn new(plan: &Plan) -> KafkaResult<Self> {
        Ok(Self { producer: producer(&plan.config)?, topic: dead_letters(&plan.topic) })
    }

    /// Writes a copy; returns when the brokers have it.
    pub(crate) async fn park(
        &self,
        of: &OwnedMessage,
        key: Option<&str>,
        why: &DeadLetter,
    ) -> Result<(), BrokerError> {
        let mut headers = of.headers().map_or_else(OwnedHeaders::new, |headers| {
            headers.iter().filter(|h| h.key != KEY).fold(OwnedHeaders::new(), OwnedHeaders::insert)
        });
        let origin = format!("{}/{}:{}", of.topic(), of.partition(), of.offset());
        headers = headers.insert(Header { key: KEY, value: key });
        for (name, value) in why.headers(&origin) {
            headers = headers.insert(Header { key: name, value: Some(&value) });
        }
        let mut record = FutureRecord::<[u8], [u8]>::to(&self.topic).headers(headers);
        record.key = of.key();
        record.payload = of.payload();
        let sent = self.producer.send(record, Duration::ZERO).await;
        let error = |(e, _): (KafkaError, OwnedMessage)| BrokerError::new("a dead letter", e);
        sent.map(drop).map_err(error)
    }
}
