//! One delivery of an entry of a Redis stream, and the code that settles it: the code acknowledges
//! the entry, has it delivered again, or makes it a dead letter.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use palisade::Failed;
use palisade_consumer::{BrokerError, DeadLetter, Delivery, Disposition, json};
use serde::de::DeserializeOwned;

use crate::session::{ENTRY_MAX, Entry, Link};

/// Maximum number of fields that are copied into a dead letter. A Lua script in Redis can pass at
/// most about 8,000 arguments to a command. Each field needs two arguments.
const COPIED_MAX: usize = 3_000;
/// Maximum length of a copied field in bytes, if an entry is too large for a full copy in its dead
/// letter.
const SHORT: usize = 1_024;

/// One delivery of an entry of a Redis stream to a handler.
pub struct Message {
    link: Arc<Link>,
    /// The delivered entry. `deliveries` is the delivery count in Redis. A retry sets this count to
    /// the number of failures so far.
    entry: Entry,
    /// True if a heartbeat has found the entry gone, so that the log says it once.
    is_lost: AtomicBool,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The body may be secret.
        f.debug_struct("Message").field("id", &self.entry.id).finish_non_exhaustive()
    }
}

impl Message {
    pub(crate) fn new(link: &Arc<Link>, entry: Entry) -> Self {
        Self { link: Arc::clone(link), entry, is_lost: AtomicBool::new(false) }
    }

    /// Returns the entry's id in the stream. Two copies of one message have different ids.
    pub fn id(&self) -> &str {
        &self.entry.id
    }

    /// Returns the value of the entry's last field with this name.
    pub fn field(&self, name: &str) -> Option<&[u8]> {
        let mut named = self.entry.fields.iter().rev().filter(|(n, _)| n == name.as_bytes());
        named.next().map(|(_, value)| value.as_slice())
    }

    /// Returns the value of the field `body`. Returns an empty slice if there is no such field.
    pub fn body(&self) -> &[u8] {
        self.field("body").unwrap_or_default()
    }

    /// Parses the field `body` as JSON. If the handler returns the error of this function, the
    /// message becomes a dead letter. The same body would fail at each delivery.
    ///
    /// # Errors
    /// [`Failed::permanent`] with the parser's error.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failed> {
        json(self.body())
    }

    fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.field(name)?).ok()
    }

    /// If the entry is too large, the copy has only the short fields that identify it.
    async fn park(&self, why: &DeadLetter) -> Result<bool, BrokerError> {
        let Entry { id, fields, too_large, .. } = &self.entry;
        let fits = too_large.is_none() && fields.len() <= COPIED_MAX;
        let names = |(name, value): &&(Vec<u8>, Vec<u8>)| {
            fits || ([&b"key"[..], b"created"].contains(&&name[..]) && value.len() <= SHORT)
        };
        let copied = fields.iter().filter(names).take(COPIED_MAX);
        let mut letter: Vec<_> = copied.map(|(name, value)| (&name[..], &value[..])).collect();
        let reason: [(&str, &str); 3] =
            [("reason", why.reason.code()), ("detail", &why.detail), ("id", id)];
        letter.extend(reason.map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        if !fits {
            let left_out =
                "the entry is too large for a dead letter; read it in its stream by `id`";
            letter.push((b"left_out", left_out.as_bytes()));
        }
        self.link.park(&self.entry, &letter).await
    }
}

impl Delivery for Message {
    fn key(&self) -> Result<Cow<'_, str>, String> {
        if let Some(size) = self.entry.too_large {
            return Err(format!(
                "the entry takes {size} bytes; at most {ENTRY_MAX} are read, each name and value \
                 counted with 64 bytes more; have its producer store the body elsewhere"
            ));
        }
        self.text("key").filter(|key| !key.is_empty()).map(Cow::Borrowed).ok_or_else(|| {
            "the entry has no field `key` with text; have its producer set one that is the same \
             in every copy, or say with the consumer's `key` where it is"
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
        self.entry.deliveries.saturating_sub(1)
    }

    async fn settle(&self, how: &Disposition, failures: u32) -> Result<(), BrokerError> {
        let entry = &self.entry;
        let ours = match how {
            Disposition::Ack => self.link.ack(entry).await,
            // Sets the delivery count to the number of failures so far. Redis adds one to the count
            // when it delivers the entry again.
            Disposition::Retry(wait) => self.link.hold(entry, *wait, Some(failures)).await,
            Disposition::Stop(_) => self.link.hold(entry, Duration::ZERO, Some(failures)).await,
            Disposition::Park(why) => self.park(why).await,
        };
        if ours? { Ok(()) } else { Err(self.link.lost()) }
    }

    fn heartbeat(&self) -> Option<Duration> {
        Some(self.link.min_idle / 3)
    }

    async fn extend(&self) -> Result<(), BrokerError> {
        if self.link.hold(&self.entry, self.link.min_idle, None).await? {
            return Ok(());
        }
        let error = self.link.lost();
        if !self.is_lost.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: "palisade::consumer", id = %self.entry.id, %error,
                "a handler runs for an entry that its consumer does not have any more"
            );
        }
        Err(error)
    }
}
