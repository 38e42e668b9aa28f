//! The brokers: each a real server on a free loopback port.

mod rabbitmq;
mod streams;

use std::future::Future;

use clap::ValueEnum;
use palisade::Idempotency;
use palisade::idempotency::consumer::Rules;

use crate::Failure;
use crate::child::Work;
use crate::invoices::Letter;
use rabbitmq::Rabbit;
use streams::Streams;

/// Which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Rabbitmq,
    Streams,
}

/// A dead letter.
#[derive(Debug)]
pub(crate) struct Dead {
    pub(crate) key: String,
    pub(crate) reason: String,
}

/// A broker that runs; ended on drop.
pub(crate) enum Broker {
    Rabbitmq(Rabbit),
    Streams(Streams),
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rabbitmq => "rabbitmq",
            Self::Streams => "streams",
        }
    }

    /// Consumes until `stop` resolves.
    pub(crate) async fn consume(
        self,
        uri: &str,
        of: Idempotency,
        rules: Rules,
        work: Work,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Failure> {
        match self {
            Self::Rabbitmq => rabbitmq::consume(uri, of, rules, work, stop).await,
            Self::Streams => streams::consume(uri, of, rules, work, stop).await,
        }
    }
}

impl Broker {
    pub(crate) async fn start(kind: Kind) -> Result<Self, Failure> {
        Ok(match kind {
            Kind::Rabbitmq => Self::Rabbitmq(Rabbit::start().await?),
            Kind::Streams => Self::Streams(Streams::start().await?),
        })
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Rabbitmq(_) => Kind::Rabbitmq,
            Self::Streams(_) => Kind::Streams,
        }
    }

    pub(crate) fn uri(&self) -> String {
        match self {
            Self::Rabbitmq(rabbit) => rabbit.uri(),
            Self::Streams(streams) => streams.uri(),
        }
    }

    /// SIGKILL, and started again with its data.
    pub(crate) async fn restart(&self) -> Result<(), Failure> {
        match self {
            Self::Rabbitmq(rabbit) => rabbit.restart().await,
            Self::Streams(streams) => streams.restart().await,
        }
    }

    /// Publishes all; what was not confirmed is published again.
    pub(crate) async fn publish_all(&self, letters: &[Letter]) -> Result<(), Failure> {
        match self {
            Self::Rabbitmq(rabbit) => rabbit.publish_all(letters).await,
            Self::Streams(streams) => streams.publish_all(letters).await,
        }
    }

    /// Messages that still have to be delivered, those that wait for their time included.
    pub(crate) async fn left(&self) -> Result<usize, Failure> {
        match self {
            Self::Rabbitmq(rabbit) => rabbit.left().await,
            Self::Streams(streams) => streams.left().await,
        }
    }

    /// All dead letters.
    pub(crate) async fn dead_letters(&self) -> Result<Vec<Dead>, Failure> {
        match self {
            Self::Rabbitmq(rabbit) => rabbit.dead_letters().await,
            Self::Streams(streams) => streams.dead_letters().await,
        }
    }
}
