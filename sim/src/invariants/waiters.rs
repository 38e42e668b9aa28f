//! Every waiter is served or refused in time, and a free name is served (DESIGN 1.5).

use super::Invariant;
use crate::trace::Event;

/// Whether free names must be served.
#[derive(Debug)]
pub(crate) struct Waiters(bool);

impl Waiters {
    pub(crate) fn new(served: bool) -> Self {
        Self(served)
    }
}

impl Invariant for Waiters {
    fn name(&self) -> &'static str {
        "waiters are answered"
    }

    fn source(&self) -> &'static str {
        "DESIGN 1.5: alive; every wait has a deadline"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match event {
            Event::NotServed { .. } if self.0 => Err(event.to_string()),
            Event::Overdue { .. } | Event::Stuck => Err(event.to_string()),
            _ => Ok(()),
        }
    }
}
