//! An entry of a stream, and what becomes of it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::session::{Entry, Session, StreamError};
use crate::idempotency::Failed;
use crate::idempotency::consumer::{Delivery, Disposition, json};

/// One delivery of an entry.
pub struct Message {
    session: Arc<Session>,
    id: String,
    fields: HashMap<String, Vec<u8>>,
    /// How often it was delivered, or as the last consumer that gave it back had it.
    deliveries: u32,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The body may be secret.
        f.debug_struct("Message").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Message {
    pub(super) fn new(session: &Arc<Session>, (id, fields, deliveries): Entry) -> Self {
        Self { session: Arc::clone(session), id, fields, deliveries }
    }

    /// The entry's id: this copy's own.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A field of the entry.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        self.fields.get(name).map(Vec::as_slice)
    }

    /// The field `body`; empty if there is none.
    pub fn body(&self) -> &[u8] {
        self.field("body").unwrap_or_default()
    }

    /// The body, from JSON. What cannot be read never can: the error makes the message a dead
    /// letter.
    ///
    /// # Errors
    /// [`Failed::permanent`] with what the body has wrong.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, Failed> {
        json(self.body())
    }

    fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.field(name)?).ok()
    }
}

impl Delivery for Message {
    type Error = StreamError;

    fn key(&self) -> Result<Cow<'_, str>, String> {
        self.text("key").filter(|key| !key.is_empty()).map(Cow::Borrowed).ok_or_else(|| {
            "the entry has no field `key` with text; have its producer set one that is the same \
             in every copy"
                .to_owned()
        })
    }

    fn created_at(&self) -> Option<SystemTime> {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.text("created")?.parse().ok()?))
    }

    fn body(&self) -> &[u8] {
        Message::body(self)
    }

    fn failures(&self) -> u32 {
        self.deliveries.saturating_sub(1)
    }

    async fn settle(&self, how: &Disposition, failures: u32) -> Result<(), StreamError> {
        match how {
            Disposition::Ack => self.session.ack(&self.id).await,
            // The next delivery adds one.
            Disposition::Retry(wait) => self.session.hold(&self.id, *wait, Some(failures)).await,
            Disposition::Stop(_) => {
                self.session.hold(&self.id, Duration::ZERO, Some(failures)).await
            }
            Disposition::Park(why) => {
                let mut letter: Vec<(&str, &[u8])> =
                    self.fields.iter().map(|(name, value)| (name.as_str(), &value[..])).collect();
                // In an order that does not depend on the map.
                letter.sort_unstable();
                letter.push(("reason", why.reason.code().as_bytes()));
                letter.push(("detail", why.detail.as_bytes()));
                letter.push(("id", self.id.as_bytes()));
                self.session.park(&self.id, &letter).await
            }
        }
    }

    fn heartbeat(&self) -> Option<Duration> {
        Some(self.session.plan.min_idle / 3)
    }

    async fn extend(&self) -> Result<(), StreamError> {
        self.session.hold(&self.id, self.session.plan.min_idle, None).await
    }
}
