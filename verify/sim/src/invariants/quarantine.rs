//! No grant in quarantine. A node with a new data history grants nothing for `max_ttl` + L by its
//! own clock (quarantine 3, 4).

use std::collections::BTreeMap;

use super::Invariant;
use crate::trace::Event;

/// End of each history's quarantine, by the node's own clock.
#[derive(Debug, Default)]
pub(crate) struct Quarantine(BTreeMap<(usize, u64), u64>);

impl Invariant for Quarantine {
    fn name(&self) -> &'static str {
        "no grant in quarantine"
    }

    fn source(&self) -> &'static str {
        "docs/design/quarantine.md, 3: until since + max_ttl + L the node grants nothing"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match *event {
            Event::NewLife { node, life, at, quarantine, .. } => {
                self.0.entry((node, life)).or_insert(at + quarantine);
                Ok(())
            }
            Event::Granting { node, life, at, .. } => match self.0.get(&(node, life)) {
                Some(end) if at < *end => {
                    Err(format!("node {node} grants {} ns before its quarantine ends", end - at))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
