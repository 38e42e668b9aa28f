//! Checks that a node grants nothing in quarantine. The quarantine begins with a new data history,
//! and lasts for `max_ttl` and the failover window L by the node's own clock (rules quarantine 3, 4
//! in docs/design).

use std::collections::{BTreeMap, BTreeSet};

use super::{Rule, rule};
use crate::plan::Ms;
use crate::trace::Event;

/// Returns the rule that a node grants nothing in quarantine, a time after the node may have lost
/// data.
pub(super) fn quarantine() -> Rule {
    // For each node and data history, the end of its quarantine by the node's own clock.
    let mut ends = BTreeMap::<(usize, u64), u64>::new();
    let (name, source) = (
        "no grant in quarantine",
        "docs/design/quarantine.md, 3: until since + max_ttl + L the node grants nothing",
    );
    rule(name, source, move |_, event| match *event {
        Event::NewLife { node, life, at, quarantine, .. } => {
            ends.entry((node, life)).or_insert(at + quarantine);
            Ok(())
        }
        Event::Granting { node, life, at, .. } => match ends.get(&(node, life)) {
            Some(end) if at < *end => {
                Err(format!("node {node} grants {} ns before its quarantine ends", end - at))
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    })
}

/// Histories that may begin in one life of a server's data. What happens to the data begins a new
/// life, but for a renaming that nobody can prove, and a client with longer leases.
const BEGINNINGS: usize = 6;

/// Returns the rule that no quarantine is longer than `longest`, in ms, and that none begins again
/// without a reason.
pub(super) fn ends(longest: Ms) -> Rule {
    let (name, source) = (
        "a quarantine ends",
        "docs/design/quarantine.md, 4: it is as long as the longest lease and L",
    );
    let mut beginnings = BTreeMap::<(usize, u64), BTreeSet<u64>>::new();
    rule(name, source, move |_, event| match *event {
        // The server counts in whole milliseconds.
        Event::Refrains { node, since_ms, .. } if since_ms > longest + 1 => {
            Err(format!("node {node} is still in quarantine {since_ms} ms after it began"))
        }
        Event::Refrains { node, life, began, .. } => {
            let all = beginnings.entry((node, life)).or_default();
            all.insert(began);
            if all.len() > BEGINNINGS {
                return Err(format!("the quarantine of node {node} began {} times", all.len()));
            }
            Ok(())
        }
        _ => Ok(()),
    })
}
