//! One delivery of a Kafka record, and how it is settled.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use palisade::Failed;
use palisade_consumer::headers::{CREATED, KEY};
use palisade_consumer::{BrokerError, Delivery, Disposition, json, pause};
use rdkafka::message::{Message as _, OwnedMessage};
use serde::de::DeserializeOwned;

use crate::dead::DeadLetters;
use crate::group::{Group, Read};

/// One delivery of a Kafka record to a handler.
pub struct Message {
    read: Read,
    group: Arc<Group>,
    dead: Arc<DeadLetters>,
    settled: AtomicBool,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The body may be secret.
        f.debug_struct("Message")
            .field("topic", &self.read.raw.topic())
            .field("partition", &self.read.raw.partition())
            .field("offset", &self.read.raw.offset())
            .finish_non_exhaustive()
    }
}

impl Message {
    pub(crate) fn new(read: Read, group: &Arc<Group>, dead: &Arc<DeadLetters>) -> Self {
        let (group, dead) = (Arc::clone(group), Arc::clone(dead));
        Self { read, group, dead, settled: AtomicBool::new(false) }
    }

    /// Returns the body. The body is empty if the record has no value.
    pub fn payload(&self) -> &[u8] {
        self.read.raw.payload().unwrap_or_default()
    }

    /// Parses the body as JSON. If the handler returns the error of this function, the message
    /// becomes a dead letter. The same body would fail at each delivery.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failed> {
        json(self.payload())
    }

    /// Returns the value of the first header with this name. Returns `None` if there is no such
    /// header, or if its value is not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.read.headers.iter().find(|(found, _)| found == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }

    /// Returns the record as rdkafka's type, with its topic, partition, offset and record key.
    /// rdkafka panics when a caller reads a header of this record and the header's name is not
    /// UTF-8. [`header`](Self::header) skips such headers.
    pub fn record(&self) -> &OwnedMessage {
        &self.read.raw
    }
}

impl Delivery for Message {
    fn key(&self) -> Result<Cow<'_, str>, String> {
        self.header(KEY).filter(|key| !key.is_empty()).map(Cow::Borrowed).ok_or_else(|| {
            format!(
                "the record has no header `{KEY}`; have its producer set one that is the same in \
                 every copy, or say with the consumer's `key` where it is"
            )
        })
    }

    fn created_at(&self) -> Option<SystemTime> {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.header(CREATED)?.parse().ok()?))
    }

    fn body(&self) -> &[u8] {
        self.payload()
    }

    fn failures(&self) -> u32 {
        self.read.failures
    }

    async fn settle(&self, how: &Disposition, failures: u32) -> Result<(), BrokerError> {
        let again = |wait| {
            let read = Read { failures, unsettled: 0, ..self.read.clone() };
            self.group.hold(read, wait)
        };
        match how {
            Disposition::Ack => self.group.finish(&self.read)?,
            Disposition::Park(why) => {
                // The next consumer of the partition reads the record again (consumers 5).
                self.group.has(&self.read)?;
                self.dead.park(&self.read, why).await?;
                self.group.finish(&self.read)?;
            }
            Disposition::Retry(wait) => again(*wait)?,
            Disposition::Stop(_) => again(Duration::ZERO)?,
        }
        self.settled.store(true, Ordering::Release);
        Ok(())
    }
}

impl Drop for Message {
    /// Delivers the record again if its handling did not come to an end. Otherwise the record would
    /// stay unfinished, and no later offset of its partition could be committed.
    fn drop(&mut self) {
        if !self.settled.load(Ordering::Acquire) {
            let unsettled = self.read.unsettled.saturating_add(1);
            let read = Read { unsettled, ..self.read.clone() };
            // An error means that another consumer got the partition. That consumer reads the
            // record again.
            let _ = self.group.hold(read, pause(self.read.unsettled));
        }
    }
}
