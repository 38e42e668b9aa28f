//! The consumer: what comes on a session, handed to the worker.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use palisade::idempotency::Context;
use palisade::idempotency::consumer::{ConsumeError, Ended, Sessions, Worker};
use palisade::{Failed, Idempotency, Probed};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::builder::ConsumerBuilder;
use crate::error::BrokerError;
use crate::message::Message;
use crate::session::{Plan, Session};

/// Consumes one topic as a member of a group: each message takes effect once.
pub struct Consumer {
    pub(crate) worker: Worker,
    pub(crate) plan: Plan,
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("topic", &self.plan.topic)
            .field("group", &self.plan.group)
            .finish_non_exhaustive()
    }
}

impl Consumer {
    /// A consumer of this topic at these brokers (`host:port,host:port`), in this group, that
    /// remembers what was done in this namespace. All consumers of a group must use the same
    /// namespace on the same nodes.
    pub fn builder(brokers: &str, topic: &str, group: &str, of: Idempotency) -> ConsumerBuilder {
        ConsumerBuilder::new(brokers, topic, group, of)
    }

    /// Consumes until `stop` resolves: each message runs the handler once, however often it comes.
    /// Goes on when the brokers come back after they were away.
    ///
    /// # Errors
    /// [`ConsumeError`]: the brokers refuse the login, the topic or the group, or no message can be
    /// handled until a person changed something.
    ///
    /// # Cancellation safety
    /// As [`Worker::run`].
    pub async fn run<T, E, F, Fut>(
        &self,
        handler: F,
        stop: impl Future<Output = ()>,
    ) -> Result<Ended, ConsumeError<BrokerError>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Into<Failed> + 'static,
        F: Fn(Context, Arc<Message>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        self.worker.run(self.source(), handler, stop).await
    }

    /// As [`run`](Self::run), with a probe that looks whether an earlier attempt took effect, for
    /// messages of which that is not known. Without one they become dead letters
    /// (`at_most_once`) or run again (`at_least_once`).
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancellation safety
    /// As [`Worker::run`].
    pub async fn run_probed<T, E, P, PF, F, Fut>(
        &self,
        probe: P,
        handler: F,
        stop: impl Future<Output = ()>,
    ) -> Result<Ended, ConsumeError<BrokerError>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Into<Failed> + 'static,
        P: Fn(Context, Arc<Message>) -> PF + Send + Sync + 'static,
        PF: Future<Output = Probed<T>> + Send + 'static,
        F: Fn(Context, Arc<Message>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        self.worker.run_probed(self.source(), probe, handler, stop).await
    }

    fn source(&self) -> Sessions<Session> {
        Sessions::new(self.plan.clone())
    }
}
