//! Kafka brokers: librdkafka's mock cluster in this process, on real sockets. It stores nothing on
//! disk, so its brokers are never killed, but fail all requests for a while.

use std::time::Duration;

use palisade_consumer::headers::{DETAIL, KEY, REASON};
use palisade_kafka::{Publisher, Topic, dead_letters};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _, OwnedMessage};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::{Dead, publish_all};
use crate::Failure;
use crate::invoices::Letter;

const TOPIC: &str = "invoices";
const GROUP: &str = "ledger";
const BROKERS: i32 = 3;
const PARTITIONS: i32 = 8;
/// Consumers and publishers send only these kinds, and requests for the brokers' addresses. A
/// failed request ends its connection.
///
/// The brokers are not stopped: the mock cluster would close a broker's listener and later bind the
/// same port again, and abort the whole process if it is in use, for example by a child process
/// that has inherited the listener.
const REQUESTS: [RDKafkaApiKey; 11] = [
    RDKafkaApiKey::Produce,
    RDKafkaApiKey::Fetch,
    RDKafkaApiKey::ListOffsets,
    RDKafkaApiKey::OffsetCommit,
    RDKafkaApiKey::OffsetFetch,
    RDKafkaApiKey::FindCoordinator,
    RDKafkaApiKey::JoinGroup,
    RDKafkaApiKey::Heartbeat,
    RDKafkaApiKey::LeaveGroup,
    RDKafkaApiKey::SyncGroup,
    RDKafkaApiKey::InitProducerId,
];
/// The clients send fewer requests in one outage.
const OUTAGE: [RDKafkaRespErr; 1_000] = [RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT; 1_000];
const AWAY: Duration = Duration::from_millis(1_500);
const ASKED: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(30);
/// The session timeout is short, so that the group soon removes a dead consumer, but longer than 3
/// s, for which the mock cluster waits for the first members, and than an outage on a busy machine:
/// a removed member could return under the name of a newer one, and the cluster would abort
/// (`Assertion !member->resp`).
const SETTINGS: [(&str, &str); 4] = [
    ("session.timeout.ms", "7000"),
    ("heartbeat.interval.ms", "500"),
    ("max.poll.interval.ms", "9000"),
    ("reconnect.backoff.max.ms", "500"),
];

pub(crate) struct Kafka {
    cluster: MockCluster<'static, DefaultProducerContext>,
}

impl Kafka {
    pub(crate) fn start() -> Result<Self, Failure> {
        let cluster = MockCluster::new(BROKERS)?;
        for topic in [TOPIC, &dead_letters(TOPIC)] {
            cluster.create_topic(topic, PARTITIONS, 3)?;
        }
        Ok(Self { cluster })
    }

    /// Returns a consumer that reads the group's offsets without joining the group.
    fn observer(&self) -> Result<BaseConsumer, Failure> {
        Ok(config(&self.uri()).set("group.id", GROUP).create()?)
    }

    pub(crate) fn uri(&self) -> String {
        self.cluster.bootstrap_servers()
    }

    pub(crate) async fn restart(&self) -> Result<(), Failure> {
        for request in REQUESTS {
            self.cluster.request_errors(request, &OUTAGE);
        }
        sleep(AWAY).await;
        let seen = block_in_place(|| {
            self.observer()?.fetch_watermarks(TOPIC, 0, ASKED).map_err(Failure::from)
        });
        if seen.is_ok() {
            return Err("the mock cluster's brokers answer in an outage".into());
        }
        for request in REQUESTS {
            self.cluster.clear_request_errors(request);
        }
        Ok(())
    }

    pub(crate) async fn publish_all(&self, letters: &[Letter]) -> Result<(), Failure> {
        let publisher = Publisher::new(&config(&self.uri()), TOPIC)?;
        publish_all(letters, move |letter, made| {
            let publisher = publisher.clone();
            let text = letter.body;
            async move { publisher.publish(&letter.key, made, text.as_bytes()).await.is_ok() }
        })
        .await;
        Ok(())
    }

    /// Returns the number of messages in the topic that the group has not committed yet.
    pub(crate) fn left(&self) -> Result<usize, Failure> {
        block_in_place(|| {
            let (observer, mut asked) = (self.observer()?, TopicPartitionList::new());
            asked.add_partition_range(TOPIC, 0, PARTITIONS - 1);
            let committed = observer.committed_offsets(asked, PATIENCE)?;
            let mut left = 0;
            for of in committed.elements() {
                let (low, high) = observer.fetch_watermarks(TOPIC, of.partition(), PATIENCE)?;
                let done = if let Offset::Offset(done) = of.offset() { done } else { low };
                left += usize::try_from(high - done)?;
            }
            Ok(left)
        })
    }

    pub(crate) fn dead_letters(&self) -> Result<Vec<Dead>, Failure> {
        block_in_place(|| {
            let (reader, topic) = (self.observer()?, dead_letters(TOPIC));
            let (mut all, mut want) = (TopicPartitionList::new(), 0);
            for partition in 0..PARTITIONS {
                all.add_partition_offset(&topic, partition, Offset::Beginning)?;
                let (low, high) = reader.fetch_watermarks(&topic, partition, PATIENCE)?;
                want += usize::try_from(high - low)?;
            }
            reader.assign(&all)?;
            let mut dead = Vec::new();
            while dead.len() < want {
                let letter = reader.poll(PATIENCE).ok_or("a dead letter cannot be read")??;
                dead.push(dead_letter(&letter.detach()));
            }
            Ok(dead)
        })
    }
}

fn dead_letter(letter: &OwnedMessage) -> Dead {
    let text = |name| {
        let found = letter.headers().and_then(|all| all.iter().find(|h| h.key == name)?.value);
        String::from_utf8_lossy(found.unwrap_or_default()).into_owned()
    };
    Dead { key: text(KEY), reason: format!("{}: {}", text(REASON), text(DETAIL)) }
}

fn config(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("reconnect.backoff.max.ms", "500");
    config.set_log_level(rdkafka::config::RDKafkaLogLevel::Error);
    config
}

pub(crate) fn topic(uri: &str) -> Topic {
    let topic = Topic::new(uri, TOPIC, GROUP);
    SETTINGS.iter().fold(topic, |topic, (name, value)| topic.set(name, value))
}
