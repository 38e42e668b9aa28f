//! What readers add to a lock: shared grants, of which it can have several at a time.

use std::time::Duration;

use super::queue::since;
use super::{Ask, Row, Wake};
use crate::op::{MAX_LISTED, Readers, Reply, SharedGrant};
use crate::rules::header::Header;
use crate::token::OwnerToken;

pub(crate) const READERS_MAX: usize = 4_096;

impl Row {
    pub(crate) fn is_read_by(&self, owner: OwnerToken, now: u64) -> bool {
        self.readers.iter().any(|(reader, till)| *reader == owner && *till > now)
    }

    pub(super) fn read_until(&mut self, owner: OwnerToken, till: u64) {
        match self.readers.iter_mut().find(|(reader, _)| *reader == owner) {
            Some(reader) => reader.1 = till,
            None => self.readers.push((owner, till)),
        }
    }

    /// (readers 9): the time for which writers that began to wait earlier keep a reader out.
    pub(super) fn writers_ahead(&self, h: &Header, ask: &Ask) -> Option<Duration> {
        let since = ask.place().map_or(h.facts.node_micros, |place| since(h, place));
        let ahead = self.queue.iter().filter(|w| w.since < since && w.is_fresh_writer(h.now));
        ahead.map(|writer| h.until(writer.fresh_till(h))).max()
    }

    /// The time until one of too many readers leaves.
    pub(super) fn full(&mut self, h: &Header) -> Option<Duration> {
        self.readers.retain(|(_, till)| *till > h.now);
        let is_full = self.readers.len() >= READERS_MAX;
        self.readers.iter().map(|(_, till)| h.until(*till)).min().filter(|_| is_full)
    }

    pub(super) fn readers(&self, h: &Header) -> Readers {
        let live = self.readers.iter().filter(|(_, till)| *till > h.now);
        let mut listed: Vec<_> = live
            .map(|(owner, till)| SharedGrant { owner: *owner, remaining: h.until(*till) })
            .collect();
        let count = u32::try_from(listed.len()).unwrap_or(u32::MAX);
        listed.sort_by_key(|reader| std::cmp::Reverse(reader.remaining));
        listed.truncate(MAX_LISTED);
        Readers { fence: self.fence, count, listed }
    }

    /// (readers 7): grants that are over go, too.
    pub(super) fn release_shared(&mut self, h: &Header, owner: OwnerToken) -> (Reply, Wake) {
        let before = self.readers.len();
        self.readers.retain(|(reader, _)| *reader != owner);
        let reply = if self.readers.len() < before { Reply::Done } else { Reply::Absent };
        self.readers.retain(|(_, till)| *till > h.now);
        (reply, if self.readers.is_empty() { self.wake(h) } else { Wake::default() })
    }
}
