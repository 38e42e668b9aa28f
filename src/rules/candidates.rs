//! The rule of the list of an election's candidates (election 11).

use std::sync::Arc;

use super::header::Header;
use crate::op::{Enlist, Listed, MAX_LISTED, Reply};
use crate::token::OwnerToken;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) owner: OwnerToken,
    /// In ns.
    pub(crate) till: u64,
    pub(crate) text: Arc<[u8]>,
}

#[derive(Debug)]
pub(crate) struct Ruling {
    pub(crate) reply: Reply,
    /// What the list becomes, in the order in which the entries were first written; `None` if it
    /// stays.
    pub(crate) list: Option<Vec<Entry>>,
}

impl Ruling {
    /// Who watches the list is to be told. Nobody watches one without entries.
    pub(crate) fn tells(&self, op: &Enlist) -> bool {
        op.news && self.list.as_ref().is_some_and(|list| !list.is_empty())
    }
}

pub(crate) fn decide(h: &Header, op: &Enlist, old: &[Entry]) -> Ruling {
    let Enlist { owner, ttl, entry, .. } = op;
    let mut list: Vec<_> = old.iter().filter(|entry| entry.till > h.now).cloned().collect();
    let own = list.iter().position(|entry| entry.owner == *owner);
    let writes = match (own, entry) {
        (Some(at), Some(text)) => {
            (list[at].till, list[at].text) = (h.after(*ttl), Arc::clone(text));
            true
        }
        (Some(at), None) => {
            list.remove(at);
            true
        }
        (None, Some(text)) if list.len() < MAX_LISTED => {
            list.push(Entry { owner: *owner, till: h.after(*ttl), text: Arc::clone(text) });
            true
        }
        (None, _) => false,
    };
    let shown = |entry: &Entry| Listed {
        owner: entry.owner,
        remaining: h.until(entry.till),
        entry: Arc::clone(&entry.text),
    };
    let reply = Reply::Candidates(list.iter().map(shown).collect());
    Ruling { reply, list: writes.then_some(list) }
}
