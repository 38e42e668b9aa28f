//! The Kafka messages that wait for another delivery to the handler.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::message::Message as _;
use tokio::time::Instant;

use crate::group::Read;

#[derive(Debug, Default)]
pub(crate) struct Delayed {
    /// The messages, ordered by the time at which they are due. The number distinguishes messages
    /// that are due at the same time.
    waiting: BTreeMap<(Instant, u64), Read>,
    waited: u64,
}

impl Delayed {
    pub(crate) fn hold(&mut self, read: Read, wait: Duration) {
        self.waited += 1;
        let due = (Instant::now() + wait, self.waited);
        self.waiting.insert(due, read);
    }

    pub(crate) fn due(&mut self, room: usize) -> Vec<Read> {
        let now = Instant::now();
        let mut due = Vec::new();
        while due.len() < room {
            match self.waiting.first_entry() {
                Some(first) if first.key().0 <= now => due.push(first.remove()),
                _ => break,
            }
        }
        due
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((due, _), _)| *due)
    }

    pub(crate) fn drop_partition(&mut self, gone: i32) {
        self.waiting.retain(|_, read| read.raw.partition() != gone);
    }
}
