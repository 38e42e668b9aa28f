//! A grant that must be on all replicas is on all replicas when the call returns (durability 1).

use super::Invariant;
use crate::trace::Event;

/// The world records the grants that the replicas of each node have confirmed. This invariant
/// checks the grants that calls returned.
#[derive(Debug, Default)]
pub(crate) struct Durable;

impl Invariant for Durable {
    fn name(&self) -> &'static str {
        "a grant is as durable as requested"
    }

    fn source(&self) -> &'static str {
        "docs/design/durability.md, 1: AllReplicas counts after the replicas have it; fewer are \
         rolled back"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match event {
            Event::Unkept { .. } => Err(event.to_string()),
            _ => Ok(()),
        }
    }
}
