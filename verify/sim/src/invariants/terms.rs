//! Checks that each term has one leader. No reader receives the value of another candidate under
//! this term (rules election 1, 2 in docs/design).

use std::collections::BTreeMap;

use super::{Rule, rule};
use crate::trace::Event;

pub(super) fn terms() -> Rule {
    // For each term, the owner that a client reported.
    let mut leaders = BTreeMap::<(u16, u64), usize>::new();
    let (name, source) = (
        "one leader per term",
        "docs/design/election.md, 1: an election is a lock; its term is the fencing token",
    );
    rule(name, source, move |_, event| {
        let (name, term, who) = match *event {
            Event::Holds { name, token, client, shared: false, .. } => (name, token, client),
            Event::Sees { name, term, leader, .. } => (name, term, leader),
            _ => return Ok(()),
        };
        let first = *leaders.entry((name, term)).or_insert(who);
        if first == who {
            return Ok(());
        }
        Err(format!("{event}, but the term was client {first}'s"))
    })
}
