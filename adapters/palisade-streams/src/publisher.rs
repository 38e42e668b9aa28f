//! Adds entries to a Redis stream with an idempotency key, by which consumers recognise copies.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use palisade::error::ConfigError;
use palisade::idempotency::consumer::BrokerError;
use palisade::internal::{Endpoint, Line};
use tokio::sync::Mutex;

use crate::error::{address, failed};
use crate::session::{answered, connect};

/// A publisher to a Redis stream. It adds each entry with an idempotency key and the time of its
/// request. A broken connection is replaced when the next entry is added.
pub struct Publisher {
    endpoint: Result<Endpoint, ConfigError>,
    stream: Arc<str>,
    now: Mutex<Option<Arc<Line>>>,
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address is left out, because it may contain a password.
        f.debug_struct("Publisher").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Publisher {
    /// Creates a publisher to this stream. It connects when the first entry is added, and also
    /// reports only then if the address cannot be used.
    pub fn new(url: &str, stream: &str) -> Self {
        Self { endpoint: Endpoint::parse(url), stream: Arc::from(stream), now: Mutex::default() }
    }

    /// Adds an entry with the idempotency key `key` of its request. `made` is the time when the
    /// request was made.
    ///
    /// # Errors
    /// [`BrokerError`] if the entry was not confirmed. It may have been added nevertheless. Add it
    /// again with the same key, by which consumers recognise the copy.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the entry may or may not be added; adding it again with the same
    /// key is safe.
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
        added.map_err(|e| failed(&self.stream, &e, connection.secrets()))
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
