//! Each waiter is served or refused in time, and a free lock is granted (README, promise 6;
//! overview 7).

use super::Invariant;
use crate::trace::Event;

/// The invariant. The setting is true if a free lock must be granted.
#[derive(Debug)]
pub(crate) struct Waiters(bool);

impl Waiters {
    pub(crate) fn new(served: bool) -> Self {
        Self(served)
    }
}

impl Invariant for Waiters {
    fn name(&self) -> &'static str {
        "every waiter is answered in time"
    }

    fn source(&self) -> &'static str {
        "README, promise 6: every wait ends by its own deadline"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match event {
            Event::NotServed { .. } if self.0 => Err(event.to_string()),
            Event::Overdue { .. } | Event::Stuck => Err(event.to_string()),
            _ => Ok(()),
        }
    }
}
