//! Publishes persistent messages to a durable RabbitMQ queue, and waits until the broker has
//! confirmed the messages.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use lapin::options::ConfirmSelectOptions;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Error};
use palisade_consumer::BrokerError;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::message::no_answer;
use crate::session::{PATIENCE, confirmed};
use crate::topology;

/// A publisher to a RabbitMQ queue. It adds to each message an idempotency key and the time of the
/// request. It waits until the broker has confirmed the message. If the connection breaks, the next
/// call of [`publish`](Self::publish) opens a new connection.
pub struct Publisher {
    uri: String,
    queue: String,
    now: Mutex<Option<(Connection, Channel)>>,
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address may contain a password.
        f.debug_struct("Publisher").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Publisher {
    /// Creates a publisher to `queue`. The publisher connects when the first message is published.
    /// Then it declares the queue as a durable quorum queue, unless the queue already exists.
    pub fn new(uri: &str, queue: &str) -> Self {
        Self { uri: uri.to_owned(), queue: queue.to_owned(), now: Mutex::default() }
    }

    /// Publishes a message. `key` is the idempotency key of the message's request. `made` is the
    /// time at which the request was made. This time is sent in whole seconds. Several tasks can
    /// publish at the same time.
    ///
    /// # Errors
    /// [`BrokerError`] if the broker did not confirm the message. The message may have been
    /// published nevertheless. Publish the message again with the same key. Consumers recognise the
    /// copy by its key.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the message may or may not be published. The caller can safely
    /// publish the message again with the same key.
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
