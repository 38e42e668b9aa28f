//! The consumer: what it is built from, and its session.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::message::Message;
use super::session::{Plan, Reader, Session, StreamError};
use crate::dial::endpoint::Endpoint;
use crate::error::ConfigError;
use crate::idempotency::consumer::{self, ConsumeError, Ended, Rules, Sessions, Worker};
use crate::idempotency::{Context, Failed, Idempotency, Probed};

/// Consumes one stream as a member of a group: each message takes effect once.
pub struct Consumer {
    worker: Worker,
    plan: Plan,
}

/// Settings of a [`Consumer`].
#[must_use = "a builder does nothing until `build`"]
pub struct ConsumerBuilder {
    of: Idempotency,
    rules: Rules,
    min_idle: Option<Duration>,
    url: String,
    stream: String,
    group: String,
}

impl fmt::Debug for ConsumerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address may have a password.
        f.debug_struct("ConsumerBuilder")
            .field("stream", &self.stream)
            .field("group", &self.group)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("stream", &self.plan.stream)
            .field("group", &self.plan.group)
            .field("me", &self.plan.me)
            .finish_non_exhaustive()
    }
}

impl ConsumerBuilder {
    /// How many messages are handled at once, and how failures are handled. Reported failures
    /// count, and deliveries to processes that died.
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// How long an entry's consumer may be idle before another one takes the entry over; also the
    /// longest delay of a retry. At least the lease, because the claim of a dead consumer may last
    /// that long. Use the same value for all consumers of the group. Default: one and a half
    /// leases.
    pub fn min_idle(mut self, idle: Duration) -> Self {
        self.min_idle = Some(idle);
        self
    }

    /// Checks the settings. Nothing is connected before [`Consumer::run`].
    ///
    /// # Errors
    /// [`ConfigError`] naming the field, the value and the rule.
    pub fn build(self) -> Result<Consumer, ConfigError> {
        for (field, name) in [("stream", &self.stream), ("group", &self.group)] {
            if name.is_empty() {
                return Err(ConfigError::new(field, "\"\"", "not empty"));
            }
        }
        let endpoint = Endpoint::parse(&self.url)?;
        let me = self.of.incarnation();
        let worker = Worker::new(self.of, self.rules)?;
        let min_idle = worker.taken_over_after("min_idle", self.min_idle)?;
        let (stream, group) = (Arc::from(self.stream), Arc::from(self.group));
        let plan = Plan { endpoint, stream, group, me: Arc::from(me), min_idle };
        Ok(Consumer { worker, plan })
    }
}

impl Consumer {
    /// A consumer of this stream on the server with this address, in this group, that stores
    /// results in this namespace. All consumers of a group must use the same namespace on the same
    /// nodes.
    pub fn builder(url: &str, stream: &str, group: &str, of: Idempotency) -> ConsumerBuilder {
        let [url, stream, group] = [url, stream, group].map(str::to_owned);
        let (rules, min_idle) = (Rules::default(), None);
        ConsumerBuilder { of, rules, min_idle, url, stream, group }
    }

    /// Consumes until `stop` resolves: the handler runs once for each message, however often it is
    /// delivered. Reconnects when the connection breaks, and creates the group if it does not
    /// exist.
    ///
    /// # Errors
    /// [`ConsumeError`]: the server refuses the login or the stream, or no message can be handled
    /// until a person changed something.
    ///
    /// # Cancellation safety
    /// As [`Worker::run`].
    pub async fn run<T, E, F, Fut>(
        &self,
        handler: F,
        stop: impl Future<Output = ()>,
    ) -> Result<Ended, ConsumeError<StreamError>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Into<Failed> + 'static,
        F: Fn(Context, Arc<Message>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
    {
        self.worker.run(self.source(), handler, stop).await
    }

    /// As [`run`](Self::run), with a probe that checks whether an earlier attempt took effect, for
    /// messages for which that is unknown.
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
    ) -> Result<Ended, ConsumeError<StreamError>>
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

/// What entries come from and what becomes of them.
struct Connected {
    session: Arc<Session>,
    reader: Reader,
}

impl consumer::Session for Connected {
    type Plan = Plan;
    type Delivery = Message;
    type Error = StreamError;

    async fn open(plan: &Plan) -> Result<Self, StreamError> {
        let opened = Session::open(plan).await;
        let (session, reader) =
            opened.map_err(|e| StreamError::new(&plan.stream, &e, &plan.endpoint.secrets()))?;
        Ok(Self { session: Arc::new(session), reader })
    }

    fn is_broken(&self) -> bool {
        self.session.is_broken()
    }

    async fn next(&mut self, room: usize) -> Result<Vec<Message>, StreamError> {
        let Self { session, reader } = self;
        let entries = reader.next(&session.plan, room).await.map_err(|e| session.error(&e))?;
        Ok(entries.into_iter().map(|entry| Message::new(session, entry)).collect())
    }

    async fn close(self) {
        self.session.close().await;
    }

    fn is_passing(error: &StreamError) -> bool {
        error.is_passing()
    }
}
