//! One delivery of a RabbitMQ message, and the code that settles it: the code acknowledges the
//! message, has it delivered again, or makes it a dead letter.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lapin::BasicProperties;
use lapin::message::Delivery as Raw;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use lapin::types::{AMQPValue, FieldTable};
use palisade::Failed;
use palisade_consumer::headers::FAILURES;
use palisade_consumer::{
    BrokerError, DeadLetter, DeadLetterReason, Delivery, Disposition, json, pause,
};
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

use crate::error::Unconfirmed;
use crate::session::{Link, PATIENCE};

/// Headers that name further queues. A copy of a message does not have these headers, because the
/// broker would send the copy to the further queues, too.
const SENDER_SELECTED: [&str; 2] = ["CC", "BCC"];
/// Of a message that could not be put into a delay queue. Less than 30 s, for which the consumer
/// waits until a message is acknowledged or returned.
const HELD_MAX: Duration = Duration::from_secs(15);

/// One delivery of a RabbitMQ message to a handler.
pub struct Message {
    raw: Raw,
    link: Arc<Link>,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The body may be secret.
        f.debug_struct("Message")
            .field("queue", &self.link.queue)
            .field("delivery_tag", &self.raw.delivery_tag)
            .field("message_id", self.raw.properties.message_id())
            .finish_non_exhaustive()
    }
}

impl Message {
    pub(crate) fn new(raw: Raw, link: &Arc<Link>) -> Self {
        Self { raw, link: Arc::clone(link) }
    }

    /// Returns the body of the message.
    pub fn payload(&self) -> &[u8] {
        &self.raw.data
    }

    /// Parses the body as JSON. If the handler returns the error of this function, the message
    /// becomes a dead letter. The same body would fail at each delivery.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failed> {
        json(self.payload())
    }

    /// Returns the AMQP properties of the message, including its headers.
    pub fn properties(&self) -> &BasicProperties {
        &self.raw.properties
    }

    /// Returns the delivery as lapin's type. Do not acknowledge the delivery: the consumer
    /// acknowledges it after the result is stored.
    pub fn delivery(&self) -> &Raw {
        &self.raw
    }

    /// Returns the properties for a copy of the message. They are the properties of the message,
    /// and the headers `more`. Some properties are left out, because they would route the copy to
    /// another queue, let it expire, or make the broker refuse it.
    fn copied(&self, more: impl IntoIterator<Item = (&'static str, AMQPValue)>) -> BasicProperties {
        let old = &self.raw.properties;
        let mut headers = FieldTable::default();
        for (name, value) in old.headers().iter().flat_map(FieldTable::inner) {
            if !SENDER_SELECTED.contains(&name.as_str()) {
                headers.insert(name.clone(), value.clone());
            }
        }
        for (name, value) in more {
            headers.insert(name.into(), value);
        }
        let mut new = BasicProperties::default().with_headers(headers);
        if let Some(id) = old.message_id() {
            new = new.with_message_id(id.clone());
        }
        if let Some(at) = old.timestamp() {
            new = new.with_timestamp(*at);
        }
        if let Some(kind) = old.kind() {
            new = new.with_type(kind.clone());
        }
        if let Some(app) = old.app_id() {
            new = new.with_app_id(app.clone());
        }
        if let Some(of) = old.content_type() {
            new = new.with_content_type(of.clone());
        }
        if let Some(of) = old.content_encoding() {
            new = new.with_content_encoding(of.clone());
        }
        if let Some(to) = old.correlation_id() {
            new = new.with_correlation_id(to.clone());
        }
        if let Some(to) = old.reply_to() {
            new = new.with_reply_to(to.clone());
        }
        if let Some(priority) = old.priority() {
            new = new.with_priority(*priority);
        }
        new
    }

    /// Returns the properties and the body of the dead letter for this message. Usually the dead
    /// letter is a full copy. If the headers of a full copy do not fit in one AMQP frame, the
    /// broker would end the connection. In this case the dead letter contains only the name of the
    /// message's queue and the reason.
    fn dead(&self, why: &DeadLetter) -> (BasicProperties, &[u8]) {
        let text =
            |(name, text): (&'static str, String)| (name, AMQPValue::LongString(text.into()));
        let copy = self.copied(why.headers(&self.link.queue).into_iter().map(text));
        if self.link.has_room(&copy) {
            return (copy, self.payload());
        }
        let mut alone = FieldTable::default();
        let body = self.payload().len();
        for (name, value) in why.headers_alone(&self.link.queue, body).into_iter().map(text) {
            alone.insert(name.into(), value);
        }
        (BasicProperties::default().with_headers(alone), &[])
    }

    async fn park(&self, why: &DeadLetter) -> Result<(), Unconfirmed> {
        let (properties, body) = self.dead(why);
        self.link.park(properties, body).await
    }

    async fn ack(&self) -> Result<(), Unconfirmed> {
        let sent = self.raw.acker.ack(BasicAckOptions::default()).await?;
        sent.then_some(()).ok_or_else(gone)
    }

    async fn give_back(&self) -> Result<(), Unconfirmed> {
        let requeue = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
        let sent = self.raw.acker.nack(requeue).await?;
        sent.then_some(()).ok_or_else(gone)
    }

    /// Returns the properties for a copy of the message. The headers contain `failures`, the number
    /// of failures of the message's handler. Returns `None` if the headers do not fit in one AMQP
    /// frame.
    fn counted(&self, failures: u32) -> Option<BasicProperties> {
        let copy = self.copied([(FAILURES, AMQPValue::LongLongInt(failures.into()))]);
        self.link.has_room_later(&copy).then_some(copy)
    }

    async fn apply(&self, how: &Disposition, failures: u32) -> Result<(), Unconfirmed> {
        // The broker delivers what was not acknowledged on a closed channel again (consumers 5). So
        // no copy is made of it, and no dead letter.
        if !self.raw.acker.usable() {
            return Err(gone());
        }
        let copied = match how {
            Disposition::Ack => return self.ack().await,
            Disposition::Stop(_) => return self.give_back().await,
            Disposition::Retry(wait) if wait.is_zero() => return self.give_back().await,
            Disposition::Retry(wait) => {
                if let Some(copy) = self.counted(failures) {
                    self.link.retry(*wait, copy, self.payload()).await
                } else {
                    // The failures of this message cannot be counted. So its retries would never
                    // end. The message becomes a dead letter instead.
                    let why = DeadLetter::new(
                        DeadLetterReason::Exhausted,
                        "it failed, and its headers leave no room to count that: send it with \
                         smaller ones",
                    );
                    self.park(&why).await
                }
            }
            Disposition::Park(why) => self.park(why).await,
        };
        copied?;
        self.link.stored();
        self.ack().await
    }
}

fn gone() -> Unconfirmed {
    Unconfirmed::gone("the channel was closed before the acknowledgement")
}

impl Delivery for Message {
    fn key(&self) -> Result<Cow<'_, str>, String> {
        let id = self.raw.properties.message_id().as_ref();
        id.map(|id| Cow::Borrowed(id.as_str())).filter(|id| !id.is_empty()).ok_or_else(|| {
            "the message has no `message_id`; have its producer set one that is the same in every \
             copy, or say with the consumer's `key` where it is"
                .to_owned()
        })
    }

    fn created_at(&self) -> Option<SystemTime> {
        let secs = (*self.raw.properties.timestamp())?;
        UNIX_EPOCH.checked_add(Duration::from_secs(secs))
    }

    fn body(&self) -> &[u8] {
        self.payload()
    }

    fn failures(&self) -> u32 {
        let headers = self.raw.properties.headers().as_ref();
        let found = headers.and_then(|h| h.inner().get(FAILURES));
        let found = found.and_then(AMQPValue::as_long_long_int);
        found.and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
    }

    async fn settle(&self, how: &Disposition, failures: u32) -> Result<(), BrokerError> {
        let at_once = Disposition::Retry(Duration::ZERO);
        let how = match how {
            // The handler did not fail. The message's headers leave no room for a copy in a delay
            // queue. So the message waits in this process. The timeout `PATIENCE` for the broker's
            // reply begins after this wait.
            Disposition::Retry(wait)
                if !wait.is_zero()
                    && failures == self.failures()
                    && self.counted(failures).is_none() =>
            {
                sleep((*wait).min(HELD_MAX)).await;
                &at_once
            }
            how => how,
        };
        let settled = timeout(PATIENCE, self.apply(how, failures)).await;
        let Err(error) = settled.unwrap_or_else(|_| Err(no_answer())) else { return Ok(()) };
        match &error {
            // Mark the whole session as broken, so that its channels are closed. The broker
            // delivers an unacknowledged message again only after the message's channel was closed.
            Unconfirmed::Gone(_) => self.link.give_up(),
            Unconfirmed::NotStored(error) => {
                tracing::warn!(
                    target: "palisade::consumer", queue = %self.link.queue, %error,
                    "a copy was not stored; the message is returned"
                );
                // Return the message to its queue, because the broker does not deliver the message
                // again while the channel is open. Wait first. Without the wait the broker would
                // deliver the message at once, and the copy would probably fail again.
                sleep(pause(self.link.refused()).min(HELD_MAX)).await;
                let _ = self.give_back().await;
            }
        }
        Err(error.into_error())
    }
}

pub(crate) fn no_answer() -> Unconfirmed {
    Unconfirmed::gone(format!("no answer from the broker within {PATIENCE:?}"))
}
