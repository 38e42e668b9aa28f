//! Publishes messages to NATS JetStream with an idempotency key, and waits until the stream has
//! stored them.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::header::{HeaderMap, HeaderValue, NATS_MESSAGE_ID};
use async_nats::{Client, jetstream};
use palisade_consumer::BrokerError;
use palisade_consumer::headers::CREATED;
use tokio::time::timeout;

use crate::error::{failed, no_answer};

/// Maximum time for the server to confirm a message.
const PATIENCE: Duration = Duration::from_secs(10);

/// A publisher to a subject of a JetStream stream. It adds to each message an idempotency key and
/// the time of the request. It waits until the stream has confirmed the message.
#[derive(Clone)]
pub struct Publisher {
    context: jetstream::Context,
    subject: String,
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").field("subject", &self.subject).finish_non_exhaustive()
    }
}

impl Publisher {
    /// Creates a publisher to `subject`. The subject must belong to a stream.
    pub fn new(client: Client, subject: &str) -> Self {
        Self { context: jetstream::new(client), subject: subject.to_owned() }
    }

    /// Publishes a message. `key` is the idempotency key of the message's request. The key is sent
    /// in the header `Nats-Msg-Id`. `made` is the time at which the request was made. Within its
    /// duplicate window the stream drops another message with the same key, even if the other
    /// message has a different body.
    ///
    /// # Errors
    /// [`BrokerError`] if the stream did not confirm the message. The message may have been
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
        let what = "a message is not confirmed, publish it again with the same key";
        let made = made.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis().to_string();
        let key: HeaderValue = key.parse().map_err(|e| failed("the key", e))?;
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, key);
        headers.insert(CREATED, made.as_str());
        let body = body.to_vec().into();
        let publish = async {
            let subject = self.subject.clone();
            self.context.publish_with_headers(subject, headers, body).await?.await
        };
        match timeout(PATIENCE, publish).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(failed(what, e)),
            Err(_) => Err(no_answer(what)),
        }
    }
}
