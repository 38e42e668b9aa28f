//! A call for all permits of a semaphore gets each of them, or none (semaphore 10). That no permit
//! has two holders, and that a call which got none leaves nothing, are other invariants.

use super::Invariant;
use crate::names::PERMITS;
use crate::trace::Event;

#[derive(Debug, Default)]
pub(crate) struct Permits;

impl Invariant for Permits {
    fn name(&self) -> &'static str {
        "all permits or none"
    }

    fn source(&self) -> &'static str {
        "docs/design/semaphore.md, rule 10"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match *event {
            Event::AllPermits { slots, permits, .. }
                if slots != (1 << PERMITS) - 1 || permits != usize::from(PERMITS) =>
            {
                Err(event.to_string())
            }
            _ => Ok(()),
        }
    }
}
