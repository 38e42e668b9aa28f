//! A ticket of a hand-over is redeemed at most once, and no other owner holds the lock between the
//! old holder and the new one (hand_over 3).

use std::collections::{BTreeMap, BTreeSet};

use super::Invariant;
use crate::trace::Event;

/// What is known of the holders of all names.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    /// Tokens of the redeemed tickets of each name.
    redeemed: BTreeSet<(u16, u64)>,
    /// Largest token of each name that a holder has had, apart from those who took the lock over.
    latest: BTreeMap<u16, u64>,
}

impl Invariant for Tickets {
    fn name(&self) -> &'static str {
        "a ticket is redeemed once and in time"
    }

    fn source(&self) -> &'static str {
        "docs/design/hand_over.md, rule 3"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match *event {
            Event::Holds { name, token, is_taker: false, shared: false, .. } => {
                let latest = self.latest.entry(name).or_default();
                *latest = token.max(*latest);
            }
            Event::Resumed { name, token, left, .. } => {
                if !self.redeemed.insert((name, token)) {
                    return Err(format!("{event}, for the second time"));
                }
                // A guard that has lapsed by now may be reported after that of the next holder.
                let latest = self.latest.get(&name).copied().unwrap_or(0);
                if left > 0 && latest > token {
                    return Err(format!("{event}, after a holder had token {latest}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
