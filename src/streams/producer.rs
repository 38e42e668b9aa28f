//! Adds entries with a key, by which consumers recognise copies.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex;

use super::session::{StreamError, connect};

/// Adds entries with a key and a time. A connection that broke is replaced with the next entry.
pub struct Producer {
    url: String,
    stream: Arc<str>,
    now: Mutex<Option<MultiplexedConnection>>,
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address may have a password.
        f.debug_struct("Producer").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Producer {
    /// A producer for this stream. Connects with the first entry.
    pub fn new(url: &str, stream: &str) -> Self {
        Self { url: url.to_owned(), stream: Arc::from(stream), now: Mutex::default() }
    }

    /// Adds an entry under the key of its request, with the time when the request was made.
    ///
    /// # Errors
    /// [`StreamError`]: it may or may not have been added. Add it again with the same key: its
    /// consumers recognise a copy.
    ///
    /// # Cancellation safety
    /// Dropped, the entry may or may not be added; adding it again with the same key is safe.
    pub async fn add(&self, key: &str, made: SystemTime, body: &[u8]) -> Result<(), StreamError> {
        let made = made.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let mut add = redis::cmd("XADD");
        add.arg(&*self.stream).arg("*").arg("key").arg(key);
        add.arg("created").arg(made.to_string()).arg("body").arg(body);
        let error = |e| StreamError::new(&self.stream, &e);
        let mut connection = self.connection().await.map_err(error)?;
        let added: Result<(), _> = add.query_async(&mut connection).await;
        if added.is_err() {
            *self.now.lock().await = None;
        }
        added.map_err(error)
    }

    async fn connection(&self) -> Result<MultiplexedConnection, redis::RedisError> {
        let mut now = self.now.lock().await;
        if let Some(connection) = &*now {
            return Ok(connection.clone());
        }
        let connection = connect(&self.url).await?;
        *now = Some(connection.clone());
        Ok(connection)
    }
}
