//! The consumer: what comes on a session, handed to the worker.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use lapin::Error;
use palisade::idempotency::Context;
use palisade::idempotency::consumer::{self, ConsumeError, Ended, Sessions, Worker};
use palisade::{Failed, Idempotency, Probed};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::builder::ConsumerBuilder;
use crate::message::Message;
use crate::session::{Plan, Session, is_passing};

/// How long a fetch waits for a message.
const POLL: Duration = Duration::from_millis(500);

/// Consumes one queue: each message takes effect once.
pub struct Consumer {
    pub(crate) worker: Worker,
    pub(crate) plan: Plan,
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address may have a password.
        f.debug_struct("Consumer")
            .field("queue", &self.plan.queue)
            .field("prefetch", &self.plan.prefetch)
            .finish_non_exhaustive()
    }
}

impl Consumer {
    /// A consumer of this queue at the broker with this address (`amqp://user:password@host/vhost`)
    /// that remembers what was done in this namespace. All consumers of a queue must use the same
    /// namespace on the same nodes.
    pub fn builder(uri: &str, queue: &str, of: Idempotency) -> ConsumerBuilder {
        ConsumerBuilder::new(uri, queue, of)
    }

    /// Consumes until `stop` resolves: each message runs the handler once, however often it comes.
    /// Connects again when the broker goes away.
    ///
    /// # Errors
    /// [`ConsumeError`]: the broker refuses the login or the queue, or no message can be handled
    /// until a person changed something.
    ///
    /// # Cancellation safety
    /// As [`Worker::run`].
    pub async fn run<T, E, F, Fut>(
        &self,
        handler: F,
        stop: impl Future<Output = ()>,
    ) -> Result<Ended, ConsumeError<Error>>
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
    ) -> Result<Ended, ConsumeError<Error>>
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

    fn source(&self) -> Sessions<Connected> {
        Sessions::new(self.plan.clone())
    }
}

/// A session, and what comes on it.
struct Connected {
    session: Arc<Session>,
    consumer: lapin::Consumer,
    plan: Plan,
}

impl consumer::Session for Connected {
    type Plan = Plan;
    type Delivery = Message;
    type Error = Error;

    async fn open(plan: &Plan) -> Result<Self, Error> {
        let (session, consumer) = Session::open(plan).await?;
        Ok(Self { session: Arc::new(session), consumer, plan: plan.clone() })
    }

    fn is_broken(&self) -> bool {
        self.session.is_broken()
    }

    async fn next(&mut self, room: usize) -> Result<Vec<Message>, Error> {
        let Self { session, consumer, plan } = self;
        let mut messages = Vec::new();
        let Ok(mut next) = timeout(POLL, consumer.next()).await else { return Ok(messages) };
        loop {
            let Some(Ok(raw)) = next else {
                // The queue was deleted, the channel closed or the connection lost.
                session.give_up();
                break;
            };
            messages.push(Message::new(raw, session, plan.key_of.as_ref(), &plan.queue));
            if messages.len() >= room {
                break;
            }
            // What has come already, without waiting.
            let Some(come) = consumer.next().now_or_never() else { break };
            next = come;
        }
        Ok(messages)
    }

    async fn close(self) {
        self.session.close().await;
    }

    fn is_passing(error: &Error) -> bool {
        is_passing(error)
    }
}
