//! Lists of the candidates of elections, on a node in memory.

use super::shelf::{Perish, Shelf};
use crate::op::{Enlist, Reply};
use crate::rules::candidates::{Entry, decide};
use crate::rules::header::Header;

#[derive(Clone, Debug, Default)]
struct List(Vec<Entry>);

impl Perish for List {
    fn refresh(&mut self, now: u64) -> bool {
        self.0.retain(|entry| entry.till > now);
        !self.0.is_empty()
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Lists(Shelf<List>);

impl Lists {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Also returns whether who watches the list is to be told.
    pub(super) fn enlist(&mut self, h: &Header, op: &Enlist) -> (Reply, bool) {
        let old = self.0.live(&op.key, h.now).map_or(&[][..], |list| &list.0);
        let ruling = decide(h, op, old);
        let tells = ruling.tells(op);
        if let Some(list) = ruling.list {
            self.0.put(&op.key, List(list), h.now);
        }
        (ruling.reply, tells)
    }
}
