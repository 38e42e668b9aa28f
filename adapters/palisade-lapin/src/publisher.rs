//! Publishing so that nothing is lost: persistent, to a queue that is there, confirmed.

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

/// Publishes messages with a key and a time, and waits until the broker has them. A connection that
/// broke is replaced with the next message.
pub struct Publisher {
    uri: String,
    queue: String,
    now: Mutex<Option<(Connection, Channel)>>,
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address may have a password.
        f.debug_struct("Publisher").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Publisher {
    /// A publisher to this queue, which is declared as a durable quorum queue if it is not there.
    /// Connects with the first message.
    pub fn new(uri: &str, queue: &str) -> Self {
        Self { uri: uri.to_owned(), queue: queue.to_owned(), now: Mutex::default() }
    }

    /// Publishes a message under the key of its request, with when the request was made (whole
    /// seconds are sent). Messages from several tasks are on their way together.
    ///
    /// # Errors
    /// [`BrokerError`]: it may or may not have been published. Publish it again with the same key:
    /// its consumers know a duplicate.
    ///
    /// # Cancellation safety
    /// Dropped, the message may or may not be published; publishing it again with the same key is
    /// safe.
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
