//! Two claims of one key are never valid at the same time (README, promise 4; idempotency 1).

use super::Invariant;
use crate::names;
use crate::trace::Event;

/// The world compares all claims of a key after each event and reports overlaps as events. This
/// invariant turns each such event into a violation.
#[derive(Debug, Default)]
pub(crate) struct Claims;

impl Invariant for Claims {
    fn name(&self) -> &'static str {
        "one claim per key"
    }

    fn source(&self) -> &'static str {
        "Context::is_valid: while the claim is ours no other handler has the key"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match event {
            Event::Overlap { name, .. } if names::is_key(*name) => Err(event.to_string()),
            _ => Ok(()),
        }
    }
}
