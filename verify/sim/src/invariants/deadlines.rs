//! No request takes effect after its deadline.

use super::Invariant;
use crate::trace::Event;

/// Maximum lateness, in microseconds, that can come from the resolution of server clocks (whole
/// milliseconds).
const PRECISION: u64 = 2_000;

#[derive(Debug)]
pub(crate) struct Deadlines;

impl Invariant for Deadlines {
    fn name(&self) -> &'static str {
        "nothing takes effect after its deadline"
    }

    fn source(&self) -> &'static str {
        "op::Batch::not_after: after this the batch must not take effect"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match event {
            Event::LateEffect { late, .. } if *late > PRECISION => Err(event.to_string()),
            _ => Ok(()),
        }
    }
}
