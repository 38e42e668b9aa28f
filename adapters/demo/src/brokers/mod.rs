//! The brokers of the demo. Each broker is a real server on a free loopback port. Only Kafka is
//! different: it is librdkafka's mock cluster.

mod kafka;
mod nats;
mod rabbitmq;
mod streams;

use std::future::Future;
use std::time::{Duration, SystemTime};

use clap::ValueEnum;
use palisade::Idempotency;
use palisade_consumer::Rules;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Failure;
use crate::child::Work;
use crate::invoices::Letter;
use kafka::Kafka;
use nats::Nats;
use rabbitmq::Rabbit;
use streams::Streams;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Kafka,
    Nats,
    Rabbitmq,
    Streams,
}

const WINDOW: usize = 100;

async fn publish_all<F, Fut>(letters: &[Letter], publish: F)
where
    F: Fn(Letter, SystemTime) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = bool> + Send,
{
    let mut under_way = JoinSet::new();
    for letter in letters {
        while under_way.len() >= WINDOW {
            let _ = under_way.join_next().await;
        }
        let (publish, letter, made) = (publish.clone(), letter.clone(), SystemTime::now());
        under_way.spawn(async move {
            // The broker may have stored a message without confirming it. Then the next try stores
            // a second copy of the message.
            while !publish(letter.clone(), made).await {
                sleep(Duration::from_millis(200)).await;
            }
        });
    }
    while under_way.join_next().await.is_some() {}
}

#[derive(Debug)]
pub(crate) struct Dead {
    pub(crate) key: String,
    pub(crate) reason: String,
}

/// Dropping the value ends the broker's processes.
pub(crate) enum Broker {
    Kafka(Kafka),
    Nats(Nats),
    Rabbitmq(Rabbit),
    Streams(Streams),
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Nats => "nats",
            Self::Rabbitmq => "rabbitmq",
            Self::Streams => "streams",
        }
    }

    /// Returns a factor. The time between two kills of consumers is multiplied by it. On Kafka's
    /// mock cluster each death of a consumer stops the whole group for 4 s twice: when the
    /// replacement joins, and when the dead member is removed.
    pub(crate) fn calmer(self) -> u32 {
        if self == Self::Kafka { 20 } else { 1 }
    }

    pub(crate) async fn consume(
        self,
        uri: &str,
        of: Idempotency,
        rules: Rules,
        work: Work,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Failure> {
        match self {
            Self::Kafka => work.consume(kafka::topic(uri), of, rules, stop).await,
            Self::Nats => work.consume(nats::durable(uri).await?, of, rules, stop).await,
            Self::Rabbitmq => work.consume(rabbitmq::queue(uri), of, rules, stop).await,
            Self::Streams => work.consume(streams::stream(uri), of, rules, stop).await,
        }
    }
}

impl Broker {
    pub(crate) async fn start(kind: Kind) -> Result<Self, Failure> {
        Ok(match kind {
            Kind::Kafka => Self::Kafka(Kafka::start()?),
            Kind::Nats => Self::Nats(Nats::start().await?),
            Kind::Rabbitmq => Self::Rabbitmq(Rabbit::start().await?),
            Kind::Streams => Self::Streams(Streams::start().await?),
        })
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Kafka(_) => Kind::Kafka,
            Self::Nats(_) => Kind::Nats,
            Self::Rabbitmq(_) => Kind::Rabbitmq,
            Self::Streams(_) => Kind::Streams,
        }
    }

    pub(crate) fn uri(&self) -> String {
        match self {
            Self::Kafka(kafka) => kafka.uri(),
            Self::Nats(nats) => nats.uri(),
            Self::Rabbitmq(rabbit) => rabbit.uri(),
            Self::Streams(streams) => streams.uri(),
        }
    }

    /// Kills the broker with SIGKILL and starts it again with its data. Kafka's mock cluster fails
    /// all requests for a while instead.
    pub(crate) async fn restart(&self) -> Result<(), Failure> {
        match self {
            Self::Kafka(kafka) => kafka.restart().await,
            Self::Nats(nats) => nats.restart().await,
            Self::Rabbitmq(rabbit) => rabbit.restart().await,
            Self::Streams(streams) => streams.restart().await,
        }
    }

    pub(crate) async fn publish_all(&self, letters: &[Letter]) -> Result<(), Failure> {
        match self {
            Self::Kafka(kafka) => kafka.publish_all(letters).await,
            Self::Nats(nats) => nats.publish_all(letters).await,
            Self::Rabbitmq(rabbit) => rabbit.publish_all(letters).await,
            Self::Streams(streams) => streams.publish_all(letters).await,
        }
    }

    pub(crate) async fn left(&self) -> Result<usize, Failure> {
        match self {
            Self::Kafka(kafka) => kafka.left(),
            Self::Nats(nats) => nats.left().await,
            Self::Rabbitmq(rabbit) => rabbit.left().await,
            Self::Streams(streams) => streams.left().await,
        }
    }

    pub(crate) async fn dead_letters(&self) -> Result<Vec<Dead>, Failure> {
        match self {
            Self::Kafka(kafka) => kafka.dead_letters(),
            Self::Nats(nats) => nats.dead_letters().await,
            Self::Rabbitmq(rabbit) => rabbit.dead_letters().await,
            Self::Streams(streams) => streams.dead_letters().await,
        }
    }
}
