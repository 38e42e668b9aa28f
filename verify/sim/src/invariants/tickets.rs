//! A ticket of a hand-over is redeemed at most once, and no other owner holds the lock between the
//! old holder and the new one (hand_over 3).

use std::collections::{BTreeMap, BTreeSet};

use super::{Rule, rule};
use crate::trace::Event;

/// Returns the rule of tickets.
pub(super) fn tickets() -> Rule {
    // Tokens of the redeemed tickets of each name.
    let mut redeemed = BTreeSet::<(u16, u64)>::new();
    // Largest token of each name that a holder has had, apart from those who took the lock over.
    let mut latest = BTreeMap::<u16, u64>::new();
    let (name, source) =
        ("a ticket is redeemed once and in time", "docs/design/hand_over.md, rule 3");
    rule(name, source, move |_, event| {
        match *event {
            Event::Holds { name, token, is_taker: false, shared: false, .. } => {
                let largest = latest.entry(name).or_default();
                *largest = token.max(*largest);
            }
            Event::Resumed { name, token, left, .. } => {
                if !redeemed.insert((name, token)) {
                    return Err(format!("{event}, for the second time"));
                }
                // A guard that has lapsed by now may be reported after that of the next holder.
                let largest = latest.get(&name).copied().unwrap_or(0);
                if left > 0 && largest > token {
                    return Err(format!("{event}, after a holder had token {largest}"));
                }
            }
            _ => {}
        }
        Ok(())
    })
}
