//! Publishing so that nothing is lost: with a key, confirmed by the stream.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::header::{HeaderMap, HeaderValue, NATS_MESSAGE_ID};
use async_nats::{Client, jetstream};
use palisade::idempotency::consumer::BrokerError;
use palisade::idempotency::consumer::headers::CREATED;
use tokio::time::timeout;

use crate::error::{failed, no_answer};

/// How long the server may take to confirm.
const PATIENCE: Duration = Duration::from_secs(10);

/// Publishes messages with a key and a time, and waits until their stream has them.
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
    /// A publisher to this subject, which a stream has to have.
    pub fn new(client: Client, subject: &str) -> Self {
        Self { context: jetstream::new(client), subject: subject.to_owned() }
    }

    /// Publishes a message under the key of its request (`Nats-Msg-Id`), with when the request was
    /// made. The stream drops a copy that comes within its duplicate window, whatever its body is.
    ///
    /// # Errors
    /// [`BrokerError`]: it may or may not have been published. Publish it again with the same key:
    /// its consumers know a copy.
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
