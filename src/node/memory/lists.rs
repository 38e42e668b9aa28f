//! Lists of the candidates of elections, on a node in memory.

use std::sync::Arc;

use super::shelf::{Perish, Shelf};
use crate::op::{Enlist, Listed, MAX_LISTED, Reply};
use crate::rules::header::Header;
use crate::token::OwnerToken;

/// In the order in which they were first written.
#[derive(Clone, Debug, Default)]
struct List(Vec<Entry>);

#[derive(Clone, Debug)]
struct Entry {
    owner: OwnerToken,
    till: u64,
    text: Arc<[u8]>,
}

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

    pub(super) fn enlist(&mut self, h: &Header, op: &Enlist) -> Reply {
        let Enlist { key, owner, ttl, entry, .. } = op;
        if let Some(text) = entry {
            let list = &mut self.0.open(key, h.now).0;
            let till = h.after(*ttl);
            match list.iter().position(|entry| entry.owner == *owner) {
                Some(at) => (list[at].till, list[at].text) = (till, Arc::clone(text)),
                None if list.len() >= MAX_LISTED => {}
                None => list.push(Entry { owner: *owner, till, text: Arc::clone(text) }),
            }
        } else if let Some(list) = self.0.live(key, h.now) {
            list.0.retain(|entry| entry.owner != *owner);
        }
        let shown = |entry: &Entry| Listed {
            owner: entry.owner,
            remaining: h.until(entry.till),
            entry: Arc::clone(&entry.text),
        };
        let list = self.0.live(key, h.now);
        Reply::Candidates(list.map_or_else(Vec::new, |list| list.0.iter().map(shown).collect()))
    }
}
