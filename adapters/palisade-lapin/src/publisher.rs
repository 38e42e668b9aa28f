//! Publishes persistent messages to a durable RabbitMQ queue, and waits until they are confirmed.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use lapin::options::ConfirmSelectOptions;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Error};
use palisade::idempotency::consumer::BrokerError;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::message::no_answer;
use crate::session::{PATIENCE, confirmed};
use crate::topology;

/// A publisher to a RabbitMQ queue. It gives each message an idempotency key and the time of its
/// request, and waits until the broker has confirmed the message. A broken connection is replaced
/// when the next message is published.
pub struct Publisher {
    uri: String,
    queue: String,
    now: Mutex<Option<(Connection, Channel)>>,
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address is left out, because it may contain a password.
        f.debug_struct("Publisher").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Publisher {
    /// Creates a publisher to this queue. It connects when the first message is published, and then
    /// declares the queue as a durable quorum queue if it does not exist.
    pub fn new(uri: &str, queue: &str) -> Self {
        Self { uri: uri.to_owned(), queue: queue.to_owned(), now: Mutex::default() }
    }

    /// Publishes a message with the idempotency key `key` of its request. `made` is the time when
    /// the request was made, which is sent in whole seconds. Several tasks can publish at the same
    /// time.
    ///
    /// # Errors
    /// [`BrokerError`] if the message was not confirmed. It may have been published nevertheless.
    /// Publish it again with the same key, by which consumers recognise the copy.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the message may or may not be published; publishing it again with
    /// the same key is safe.
    pub async fn publish(
        &self,
        key: &str,
        made: SystemTime,
        body: &[u8],
    ) -> Result<(), BrokerError> {
        let made = made.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let long = |e| BrokerError::refused(format!("a key has at most 255 bytes: {e}"));
        let key = ShortString::try_new(key).map_err(long)?;
        let properties = BasicProperties::default().with_message_id(key).with_timestamp(made);
        let publish = async {
            let channel = self.channel().await?;
            confirmed(&channel, &self.queue, properties, body).await
        };
        let published = timeout(PATIENCE, publish).await.unwrap_or_else(|_| Err(no_answer()));
        let Err(error) = published else { return Ok(()) };
        *self.now.lock().await = None;
        let error = error.into_error();
        let sentence = format!("not confirmed, publish it again with the same key: {error}");
        Err(BrokerError::passing(sentence).because(error))
    }

    async fn channel(&self) -> Result<Channel, Error> {
        let mut now = self.now.lock().await;
        if let Some((connection, channel)) = &*now
            && connection.status().connected()
        {
            return Ok(channel.clone());
        }
        let connection = Connection::connect(&self.uri, ConnectionProperties::default()).await?;
        topology::ensure(&connection, &self.queue).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        *now = Some((connection, channel.clone()));
        Ok(channel)
    }
}
