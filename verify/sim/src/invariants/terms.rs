//! Each term has one leader. No reader receives the value of another candidate under this term
//! (election 1, 2).

use std::collections::BTreeMap;

use super::Invariant;
use crate::trace::Event;

/// For each term, the owner that a client reported.
#[derive(Debug, Default)]
pub(crate) struct Terms(BTreeMap<(u16, u64), usize>);

impl Invariant for Terms {
    fn name(&self) -> &'static str {
        "one leader per term"
    }

    fn source(&self) -> &'static str {
        "docs/design/election.md, 1: an election is a lock; its term is the fencing token"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        let (name, term, who) = match *event {
            Event::Holds { name, token, client, shared: false, .. } => (name, token, client),
            Event::Sees { name, term, leader, .. } => (name, term, leader),
            _ => return Ok(()),
        };
        let first = *self.0.entry((name, term)).or_insert(who);
        if first == who {
            return Ok(());
        }
        Err(format!("{event}, but the term was client {first}'s"))
    }
}
