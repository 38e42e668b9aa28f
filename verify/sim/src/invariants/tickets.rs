//! Checks that a hand-over ticket, by which a holder gives its lock to another process, is redeemed
//! at most once. No other owner holds the lock between the old holder and the new one (rule
//! hand_over 3).

use std::collections::{BTreeMap, BTreeSet};

use super::{Rule, rule};
use crate::trace::Event;

/// Returns the rule that each hand-over ticket is redeemed at most once, and in time.
pub(super) fn tickets() -> Rule {
    // For each redeemed ticket: the name of its lock and its token.
    let mut redeemed = BTreeSet::<(u16, u64)>::new();
    // For each name, the largest token of a holder. A holder that took the lock over from another
    // owner does not count.
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
                // If the lease of the redeemed guard has already expired (`left` is 0), the event
                // of the next holder may have come before this event.
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
