//! The consumer: the worker's loop over sessions that are replaced when they break.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use lapin::Error;
use palisade::idempotency::Context;
use palisade::idempotency::consumer::{ConsumeError, Ended, Source, Worker};
use palisade::{Failed, Idempotency, Probed};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

use crate::builder::ConsumerBuilder;
use crate::message::{KeyOf, Message};
use crate::session::{Plan, Session, is_passing};

/// How long a fetch waits for a message.
const POLL: Duration = Duration::from_millis(500);
/// How long it may take to connect and to declare the queues, which a busy broker does slowly.
const OPEN: Duration = Duration::from_secs(30);
/// How long it takes at least until the broker is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// Consumes one queue: each message takes effect once.
pub struct Consumer {
    pub(crate) worker: Worker,
    pub(crate) plan: Plan,
    pub(crate) key_of: Option<KeyOf>,
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

    fn source(&self) -> Sessions {
        let queue = Arc::from(self.plan.queue.as_str());
        Sessions { plan: self.plan.clone(), key_of: self.key_of.clone(), queue, now: None }
    }
}

/// One session after the other.
struct Sessions {
    plan: Plan,
    key_of: Option<KeyOf>,
    queue: Arc<str>,
    now: Option<(Arc<Session>, lapin::Consumer)>,
}

impl Sessions {
    /// True if there is a session.
    async fn connect(&mut self) -> Result<bool, Error> {
        if let Some((session, _)) = &self.now
            && session.is_broken()
        {
            session.close().await;
            self.now = None;
        }
        if self.now.is_some() {
            return Ok(true);
        }
        match timeout(OPEN, Session::open(&self.plan)).await {
            Ok(Ok((session, consumer))) => {
                tracing::debug!(target: "palisade::consumer", queue = %self.queue, "connected");
                self.now = Some((Arc::new(session), consumer));
                Ok(true)
            }
            Ok(Err(e)) if is_passing(&e) => {
                tracing::warn!(
                    target: "palisade::consumer", queue = %self.queue, error = %e,
                    "no connection to the broker; trying again"
                );
                Ok(false)
            }
            Ok(Err(e)) => Err(e),
            Err(_) => {
                tracing::warn!(
                    target: "palisade::consumer", queue = %self.queue,
                    "no answer from the broker; trying again"
                );
                Ok(false)
            }
        }
    }
}

impl Source for Sessions {
    type Delivery = Message;
    type Error = Error;

    async fn fetch(&mut self, room: usize) -> Result<Vec<Message>, Error> {
        if !self.connect().await? {
            sleep(AGAIN).await;
            return Ok(Vec::new());
        }
        let Some((session, consumer)) = &mut self.now else { return Ok(Vec::new()) };
        let mut messages = Vec::new();
        let Ok(mut next) = timeout(POLL, consumer.next()).await else { return Ok(messages) };
        loop {
            let Some(Ok(raw)) = next else {
                // The queue was deleted, the channel closed or the connection lost.
                session.give_up();
                break;
            };
            messages.push(Message::new(raw, session, self.key_of.as_ref(), &self.queue));
            if messages.len() >= room {
                break;
            }
            // What has come already, without waiting.
            let Some(come) = consumer.next().now_or_never() else { break };
            next = come;
        }
        Ok(messages)
    }

    async fn close(&mut self) {
        if let Some((session, _)) = self.now.take() {
            session.close().await;
        }
    }
}
