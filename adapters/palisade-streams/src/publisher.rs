//! Adds entries to a Redis stream with an idempotency key.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use palisade::error::ConfigError;
use palisade::internal::{Endpoint, Line};
use palisade_consumer::BrokerError;
use tokio::sync::Mutex;

use crate::error::{address, failed};
use crate::session::{answered, connect};

/// A publisher to a Redis stream. It adds entries with an idempotency key and the time of the
/// request. If the connection breaks, the next call of [`publish`](Self::publish) opens a new
/// connection.
pub struct Publisher {
    endpoint: Result<Endpoint, ConfigError>,
    stream: Arc<str>,
    now: Mutex<Option<Arc<Line>>>,
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address may contain a password.
        f.debug_struct("Publisher").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Publisher {
    /// Creates a publisher to `stream`. The publisher connects when the first entry is added. An
    /// invalid address is also reported only then.
    pub fn new(url: &str, stream: &str) -> Self {
        Self { endpoint: Endpoint::parse(url), stream: Arc::from(stream), now: Mutex::default() }
    }

    /// Adds an entry. `key` is the idempotency key of the entry's request. `made` is the time at
    /// which the request was made.
    ///
    /// # Errors
    /// [`BrokerError`] if the server did not confirm the entry. The entry may have been added
    /// nevertheless. Add the entry again with the same key. Consumers recognise the copy by its
    /// key.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the entry may or may not be added. The caller can safely add the
    /// entry again with the same key.
    pub async fn publish(
        &self,
        key: &str,
        made: SystemTime,
        body: &[u8],
    ) -> Result<(), BrokerError> {
        let made = made.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let mut add = redis::cmd("XADD");
        add.arg(&*self.stream).arg("*").arg("key").arg(key);
        add.arg("created").arg(made.to_string()).arg("body").arg(body);
        let connection = self.connection().await?;
        let added: Result<(), _> = answered(add.query_async(&mut (**connection).clone())).await;
        if added.is_err() {
            *self.now.lock().await = None;
        }
        added.map_err(|e| failed(&self.stream, &e, &connection.secrets()))
    }

    async fn connection(&self) -> Result<Arc<Line>, BrokerError> {
        let endpoint = self.endpoint.as_ref();
        let endpoint = endpoint.map_err(|e| address(&self.stream, e))?;
        let mut now = self.now.lock().await;
        if let Some(connection) = &*now {
            return Ok(Arc::clone(connection));
        }
        let opened = connect(endpoint).await;
        let opened = opened.map_err(|e| failed(&self.stream, &e, &endpoint.secrets()))?;
        Ok(Arc::clone(now.insert(Arc::new(opened))))
    }
}
