//! A session with the NATS server. The connection belongs to the user's client, which reconnects by
//! itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::consumer::pull::{self, Batch};
use async_nats::jetstream::consumer::{AckPolicy, Config, Consumer};
use async_nats::jetstream::context::{CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{self, Stream};
use async_nats::jetstream::{Context, ErrorCode};
use futures_util::StreamExt as _;
use palisade_consumer::{BrokerError, Terms};
use tokio::time::{Instant, timeout};

use crate::durable::Durable;
use crate::error::{failed, no_answer, no_stream};
use crate::message::Message;

pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(500);
/// Maximum number of unacknowledged messages of one durable consumer, including delayed ones.
const MAX_ACK_PENDING: i64 = 65_536;
/// Maximum number of messages whose failures are counted. If there are more, the count of the
/// oldest message is dropped.
const FAILURES_MAX: usize = 65_536;

/// Returns the name of the stream with the dead letters of `stream`. The last part of a dead
/// letter's subject names the durable consumer that could not handle the message.
pub fn dead_letters(stream: &str) -> String {
    format!("{stream}_dead")
}

/// Numbers of failures of the handler in this process, by the message's sequence number in the
/// stream. The server's count of deliveries cannot replace these numbers, because most redeliveries
/// are not failures.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<BTreeMap<u64, u32>>);

impl Failures {
    pub(crate) fn of(&self, sequence: u64) -> u32 {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(&sequence).copied().unwrap_or(0)
    }

    /// Sets the number of failures of a message. If the number is zero, the message is no longer
    /// counted.
    pub(crate) fn set(&self, sequence: u64, failures: u32) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if failures == 0 {
            counts.remove(&sequence);
            return;
        }
        counts.insert(sequence, failures);
        if counts.len() > FAILURES_MAX {
            counts.pop_first();
        }
    }
}

pub(crate) struct Link {
    pub(crate) context: Context,
    pub(crate) of: Durable,
    /// The ack wait in the server's configuration of the durable consumer. After this time without
    /// a heartbeat, the server delivers a message again.
    pub(crate) ack_wait: Duration,
}

/// A session with the NATS server. It uses a durable consumer whose settings were checked.
pub struct Session {
    durable: Consumer<pull::Config>,
    link: Arc<Link>,
}

impl Session {
    pub(crate) async fn open(of: &Durable, terms: &Terms) -> Result<Self, BrokerError> {
        let mut context = async_nats::jetstream::new(of.client.clone());
        context.set_timeout(PATIENCE);
        let stream = context.get_stream(&of.stream).await.map_err(|e| match e.kind() {
            GetStreamErrorKind::JetStream(said)
                if said.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                no_stream(&of.stream)
            }
            _ => failed("the stream", e),
        })?;
        declare_dead_letters(&context, &stream).await?;
        let config = pull::Config {
            durable_name: Some(of.name.clone()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: terms.taken_over_after("ack_wait", of.ack_wait)?,
            max_deliver: -1,
            max_ack_pending: MAX_ACK_PENDING,
            ..pull::Config::default()
        };
        let durable = stream.get_or_create_consumer(&of.name, config).await;
        let durable: Consumer<pull::Config> =
            durable.map_err(|e| failed("the durable consumer", e))?;
        let found = &durable.cached_info().config;
        check(found, terms.lease).map_err(|rule| {
            BrokerError::refused(format!("the durable consumer {:?}: {rule}", of.name))
        })?;
        let link = Link { context, of: of.clone(), ack_wait: found.ack_wait };
        Ok(Self { link: Arc::new(link), durable })
    }

    async fn pull(
        &self,
        mut batch: Batch,
        requested_at: Instant,
    ) -> Result<Vec<Message>, BrokerError> {
        let mut messages = Vec::new();
        loop {
            let what = "messages";
            // The server ends each pull with a status message. So no message of this pull arrives
            // after the end of `batch`.
            let e = match timeout(POLL + PATIENCE, batch.next()).await {
                Ok(Some(Ok(raw))) => {
                    messages.push(Message::new(raw, &self.link, requested_at)?);
                    continue;
                }
                Ok(None) => return Ok(messages),
                Ok(Some(Err(e))) => BrokerError::passing(format!("{what}: {e}")),
                Err(_) => no_answer(what),
            };
            // If messages have arrived, return the messages. Return the error only if there are no
            // messages.
            return if messages.is_empty() { Err(e) } else { Ok(messages) };
        }
    }
}

impl palisade_consumer::Session for Session {
    type Delivery = Message;

    async fn next(&mut self, room: usize) -> Result<Vec<Message>, BrokerError> {
        let error = |e| failed("a pull", e);
        let requested_at = Instant::now();
        let there = self.durable.fetch().max_messages(room).messages().await.map_err(error)?;
        let messages = self.pull(there, requested_at).await?;
        if !messages.is_empty() {
            return Ok(messages);
        }
        let requested_at = Instant::now();
        let next = self.durable.batch().max_messages(1).expires(POLL).messages().await;
        self.pull(next.map_err(error)?, requested_at).await
    }

    async fn close(self) {}
}

/// Checks the configuration of a durable consumer, because another program may have created it. If
/// the consumer is not usable, the error contains the reason and a remedy.
fn check(found: &Config, lease: Duration) -> Result<(), String> {
    if found.deliver_subject.is_some() {
        return Err("it is a push consumer, which delivers messages before they can be handled; \
                    delete it, and a pull consumer is created in its place"
            .to_owned());
    }
    if found.ack_policy != AckPolicy::Explicit {
        return Err(format!(
            "its ack policy is {:?}, which acknowledges messages that were not handled; delete \
             it, and it is created again",
            found.ack_policy
        ));
    }
    if found.max_deliver > 0 {
        return Err(format!(
            "its max deliver is {}: after so many deliveries the server drops a message without a \
             dead letter; set it to -1",
            found.max_deliver
        ));
    }
    if !found.backoff.is_empty() {
        return Err("it has a backoff, which takes the place of its ack wait; remove it".to_owned());
    }
    if found.ack_wait < lease {
        return Err(format!(
            "its ack wait is {:?}; at least the lease ({lease:?}): a message that is taken over \
             earlier finds the claim of the consumer that died, and waits for it",
            found.ack_wait
        ));
    }
    Ok(())
}

/// Creates the stream of dead letters, unless it exists. The stream gets as many replicas as the
/// consumed stream.
async fn declare_dead_letters(context: &Context, of: &Stream) -> Result<(), BrokerError> {
    let of = &of.cached_info().config;
    let name = dead_letters(&of.name);
    let config = stream::Config {
        subjects: vec![format!("{name}.>")],
        num_replicas: of.num_replicas,
        storage: of.storage,
        description: Some(format!("dead letters of the stream {}", of.name)),
        name,
        ..stream::Config::default()
    };
    let Err(e) = context.get_or_create_stream(config).await else { return Ok(()) };
    match e.kind() {
        // Another process created the stream at the same moment.
        CreateStreamErrorKind::JetStream(of) if of.error_code() == ErrorCode::STREAM_NAME_EXIST => {
            Ok(())
        }
        _ => Err(failed("the stream of dead letters", e)),
    }
}
