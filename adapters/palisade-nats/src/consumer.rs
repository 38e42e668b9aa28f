//! The consumer: what comes on a session, handed to the worker.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use async_nats::Client;
use palisade::idempotency::Context;
use palisade::idempotency::consumer::{ConsumeError, Ended, Sessions, Worker};
use palisade::{Failed, Idempotency, Probed};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::builder::ConsumerBuilder;
use crate::error::NatsError;
use crate::message::Message;
use crate::session::{Plan, Session};

/// Consumes one stream as a durable consumer: each message takes effect once.
pub struct Consumer {
    pub(crate) worker: Worker,
    pub(crate) plan: Plan,
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("stream", &self.plan.stream)
            .field("durable", &self.plan.durable)
            .field("ack_wait", &self.plan.ack_wait)
            .finish_non_exhaustive()
    }
}

impl Consumer {
    /// A consumer of this stream under this durable name that remembers what was done in this
    /// namespace. All processes with one durable name must use the same namespace on the same
    /// nodes. The client's own reconnecting, which is on by default, stays on.
    pub fn builder(
        client: Client,
        stream: &str,
        durable: &str,
        of: Idempotency,
    ) -> ConsumerBuilder {
        ConsumerBuilder::new(client, stream, durable, of)
    }

    /// Consumes until `stop` resolves: each message runs the handler once, however often it comes.
    /// Goes on when the server comes back after it was away.
    ///
    /// # Errors
    /// [`ConsumeError`]: there is no such stream, its durable consumer cannot be used, or no
    /// message can be handled until a person changed something.
    ///
    /// # Cancellation safety
    /// As [`Worker::run`].
    pub async fn run<T, E, F, Fut>(
        &self,
        handler: F,
        stop: impl Future<Output = ()>,
    ) -> Result<Ended, ConsumeError<NatsError>>
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
    ) -> Result<Ended, ConsumeError<NatsError>>
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
