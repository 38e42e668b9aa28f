//! No loss is silent. A holder is notified of a loss at its own deadline or earlier. A lost lease
//! never becomes valid again (README, promise 3; renewal 5).

use super::Invariant;
use crate::trace::Event;

/// Tolerance in microseconds. Timers have a resolution of one millisecond, and the clocks of
/// processes run at different rates.
const TIMER: u64 = 4_000;

#[derive(Debug, Default)]
pub(crate) struct SilentLoss;

impl Invariant for SilentLoss {
    fn name(&self) -> &'static str {
        "no lease is lost silently"
    }

    fn source(&self) -> &'static str {
        "README, promise 3: a holder learns that it lost, at the latest when its own deadline \
         passes"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match event {
            Event::LossReported { late, .. } if *late > TIMER => Err(event.to_string()),
            Event::Revived { .. } => Err(event.to_string()),
            _ => Ok(()),
        }
    }
}
