//! The idempotency records of a node in memory. What an op makes of one says `rules::records`.

use super::shelf::{Perish, Shelf};
use crate::op::{Op, Reply};
use crate::rules::header::Header;
#[cfg(feature = "test-util")]
use crate::rules::records::RecordChange;
use crate::rules::records::{Row, Ruling, Waiters, decide};

#[derive(Clone, Debug, Default)]
struct Entry {
    row: Row,
    awaited: bool,
}

impl Perish for Entry {
    fn refresh(&mut self, now: u64) -> bool {
        !self.row.has_expired(now)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Records(Shelf<Entry>);

impl Records {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// True if a caller waits for the end of the claim, which is over.
    pub(super) fn execute(&mut self, h: &Header, key: &str, op: &Op) -> (Reply, bool) {
        let row = self.0.live(key, h.now).map(|entry| &entry.row);
        let Ruling { reply, row, waiters } = decide(h, op, row);
        let entry = match row {
            Some(row) => {
                let entry = self.0.open(key, h.now);
                entry.row = row;
                Some(entry)
            }
            None => self.0.live(key, h.now),
        };
        let wakes = match (entry, waiters) {
            (None, _) | (_, Waiters::Stay) => false,
            (Some(entry), Waiters::Join) => {
                entry.awaited = true;
                false
            }
            (Some(entry), Waiters::Wake) => std::mem::take(&mut entry.awaited),
        };
        (reply, wakes)
    }

    #[cfg(feature = "test-util")]
    pub(super) fn change(
        &mut self,
        (key, seen): (&str, u64),
        change: RecordChange,
        (now, longer): (u64, u64),
    ) -> bool {
        let Some(entry) = self.0.live(key, now) else { return false };
        let changed = change.of(&entry.row, seen, now, longer);
        changed.map(|row| entry.row = row).is_some()
    }
}
