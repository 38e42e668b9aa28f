//! No grant in quarantine. A node with a new data history grants nothing for `max_ttl` + L by its
//! own clock (quarantine 3, 4).

use std::collections::BTreeMap;

use super::{Rule, rule};
use crate::trace::Event;

/// Returns the rule of quarantines.
pub(super) fn quarantine() -> Rule {
    // End of each history's quarantine, by the node's own clock.
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
