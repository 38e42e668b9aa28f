//! One delivery of a NATS message, and the code that settles it: the code acknowledges the message,
//! has it delivered again, or makes it a dead letter.

use std::borrow::Cow;
use std::error::Error as _;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::header::{HeaderMap, HeaderValue, NATS_MESSAGE_ID};
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{self, AckKind, ErrorCode};
use palisade::Failed;
use palisade_consumer::headers::CREATED;
use palisade_consumer::{BrokerError, DeadLetter, Delivery, Disposition, json};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use crate::error::{failed, lost, no_answer};
use crate::session::{Link, PATIENCE, dead_letters};

/// One delivery of a NATS message to a handler.
pub struct Message {
    raw: jetstream::Message,
    link: Arc<Link>,
    sequence: u64,
    /// End of the ack wait. Until then the server delivers the message to no other consumer.
    /// Heartbeats move this time.
    until: Mutex<Instant>,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The body may be secret.
        f.debug_struct("Message")
            .field("subject", &self.raw.subject)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl Message {
    /// Creates a delivery. `requested_at` is the time at which the pull for the message was sent.
    /// The ack wait is counted from that time.
    pub(crate) fn new(
        raw: jetstream::Message,
        link: &Arc<Link>,
        requested_at: Instant,
    ) -> Result<Self, BrokerError> {
        let info = raw.info().map_err(|e| BrokerError::passing(format!("a delivery: {e}")))?;
        let sequence = info.stream_sequence;
        let until = Mutex::new(requested_at + link.ack_wait);
        Ok(Self { raw, link: Arc::clone(link), sequence, until })
    }

    /// Returns the body of the message.
    pub fn payload(&self) -> &[u8] {
        &self.raw.payload
    }

    /// Parses the body as JSON. If the handler returns the error of this function, the message
    /// becomes a dead letter. The same body would fail at each delivery.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failed> {
        json(self.payload())
    }

    /// Returns the subject to which the message was published.
    pub fn subject(&self) -> &str {
        &self.raw.subject
    }

    /// Returns the value of the first header with this name. Returns `None` if there is no such
    /// header.
    pub fn header(&self, name: &str) -> Option<&str> {
        Some(self.raw.headers.as_ref()?.get(name)?.as_str())
    }

    /// Returns the message's sequence number in the stream. Two copies of one message have
    /// different sequence numbers.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the delivery as async-nats's type. Do not acknowledge the delivery: the consumer
    /// acknowledges it after the result is stored.
    pub fn delivery(&self) -> &jetstream::Message {
        &self.raw
    }

    /// Returns the maximum time for the server to confirm an acknowledgement. The time is at most a
    /// sixth of the ack wait.
    fn patience(&self) -> Duration {
        (self.link.ack_wait / 6).min(PATIENCE)
    }

    fn until(&self) -> Instant {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the maximum time for the server to confirm an acknowledgement that is sent now.
    /// Returns an error if the ack wait may end within that time.
    ///
    /// The server applies an acknowledgement to the newest delivery of a message
    /// (nats-server#4786). So this delivery must not be acknowledged after the ack wait, when
    /// another consumer may have received the message.
    fn still_ours(&self) -> Result<Duration, BrokerError> {
        let patience = self.patience();
        if Instant::now() + patience > self.until() {
            return Err(lost());
        }
        Ok(patience)
    }

    async fn acknowledge(&self, kind: AckKind) -> Result<(), BrokerError> {
        let what = "an acknowledgement";
        let sent = timeout(self.still_ours()?, self.raw.double_ack_with(kind)).await;
        let sent = sent.map_err(|_| no_answer(what))?;
        sent.map_err(|e| BrokerError::passing(format!("{what}: {e}")))
    }

    /// Publishes a copy of the message to the stream of dead letters, while this delivery is
    /// certainly the newest one (consumers 5). Returns when the server has confirmed the copy. If
    /// the copy is too large for the server, publishes a smaller dead letter: only the position of
    /// the message in its stream, and the reason.
    async fn park(&self, why: &DeadLetter) -> Result<(), BrokerError> {
        let patience = self.still_ours()?;
        let origin = format!("{}:{}", self.link.of.stream, self.sequence);
        let mut copied = HeaderMap::new();
        for (name, values) in self.raw.headers.iter().flat_map(HeaderMap::iter) {
            // Do not copy headers that have a meaning for the server.
            if !AsRef::<str>::as_ref(name).to_ascii_lowercase().starts_with("nats-") {
                for value in values {
                    copied.append(name.clone(), value.clone());
                }
            }
        }
        let whole = self.publish(Some(copied), why.headers(&origin), &origin);
        let published = match timeout(patience, whole).await {
            Ok(Err(e)) if is_too_large(&e) => {
                let alone = why.headers_alone(&origin, self.payload().len());
                timeout(self.still_ours()?, self.publish(None, alone, &origin)).await
            }
            published => published,
        };
        let what = "a dead letter";
        published.map_err(|_| no_answer(what))?.map_err(|e| failed(what, e))
    }

    /// Publishes a dead letter. `ours` are the headers with the reason. `copied` are the headers of
    /// the message. If `copied` is given, the dead letter also has the message's body.
    async fn publish(
        &self,
        copied: Option<HeaderMap>,
        ours: Vec<(&'static str, String)>,
        origin: &str,
    ) -> Result<(), PublishError> {
        let of = &self.link.of;
        let body = copied.as_ref().map(|_| self.raw.payload.clone()).unwrap_or_default();
        let mut headers = copied.unwrap_or_default();
        // If the acknowledgement of a message is lost, the server delivers the message again, and
        // its dead letter is published again. Both dead letters have this id. So the server drops
        // the second dead letter.
        headers.insert(NATS_MESSAGE_ID, format!("{}:{origin}", of.name).as_str());
        for (name, value) in ours {
            // A value such as a key with a line break cannot be in a header. Such a value is left
            // out.
            if let Ok(value) = value.parse::<HeaderValue>() {
                headers.insert(name, value);
            }
        }
        let subject = format!("{}.{}", dead_letters(&of.stream), of.name);
        let sent = self.link.context.publish_with_headers(subject, headers, body).await?;
        sent.await.map(drop)
    }
}

fn is_too_large(e: &PublishError) -> bool {
    let code = e.source().and_then(|e| e.downcast_ref::<jetstream::Error>());
    e.kind() == PublishErrorKind::MaxPayloadExceeded
        || code.is_some_and(|e| e.error_code() == ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM)
}

impl Delivery for Message {
    fn key(&self) -> Result<Cow<'_, str>, String> {
        let id = self.header(NATS_MESSAGE_ID.as_ref());
        id.filter(|id| !id.is_empty()).map(Cow::Borrowed).ok_or_else(|| {
            "the message has no header `Nats-Msg-Id`; have its producer set one that is the same \
             in every copy, or say with the consumer's `key` where it is"
                .to_owned()
        })
    }

    fn created_at(&self) -> Option<SystemTime> {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.header(CREATED)?.parse().ok()?))
    }

    fn body(&self) -> &[u8] {
        self.payload()
    }

    fn failures(&self) -> u32 {
        self.link.of.failures.of(self.sequence)
    }

    async fn settle(&self, how: &Disposition, failures: u32) -> Result<(), BrokerError> {
        let counts = &self.link.of.failures;
        match how {
            Disposition::Ack => self.acknowledge(AckKind::Ack).await?,
            Disposition::Park(why) => {
                self.park(why).await?;
                self.acknowledge(AckKind::Ack).await?;
            }
            Disposition::Retry(wait) if !wait.is_zero() => {
                counts.set(self.sequence, failures);
                return self.acknowledge(AckKind::Nak(Some(*wait))).await;
            }
            Disposition::Retry(_) | Disposition::Stop(_) => {
                counts.set(self.sequence, failures);
                return self.acknowledge(AckKind::Nak(None)).await;
            }
        }
        counts.set(self.sequence, 0);
        Ok(())
    }

    fn heartbeat(&self) -> Option<Duration> {
        Some(self.link.ack_wait / 3)
    }

    async fn extend(&self) -> Result<(), BrokerError> {
        let sent = Instant::now();
        self.acknowledge(AckKind::Progress).await?;
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = sent + self.link.ack_wait;
        Ok(())
    }
}
