//! Nothing takes effect after its deadline, but for what a clock that was set back allows.

use super::Invariant;
use crate::trace::Event;

/// How much later something may take effect, in microseconds: as far as the clock by which the
/// deadline was reckoned was ahead of the one by which it is judged.
#[derive(Debug)]
pub(crate) struct Deadlines(u64);

impl Deadlines {
    pub(crate) fn new(lateness: u64) -> Self {
        Self(lateness)
    }
}

impl Invariant for Deadlines {
    fn name(&self) -> &'static str {
        "nothing takes effect after its deadline"
    }

    fn source(&self) -> &'static str {
        "op::Batch::not_after: after this the batch must not take effect"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match event {
            Event::LateEffect { late, .. } if *late > self.0 => Err(event.to_string()),
            _ => Ok(()),
        }
    }
}
