//! The times in which two holders of one name are valid never overlap (README, promise 1; locks 2).

use super::Invariant;
use crate::names;
use crate::trace::Event;

/// The world compares all guards of a name after each event and reports overlaps as events. This
/// invariant turns each such event into a violation.
#[derive(Debug, Default)]
pub(crate) struct Exclusion;

impl Invariant for Exclusion {
    fn name(&self) -> &'static str {
        "one holder per name"
    }

    fn source(&self) -> &'static str {
        "README, promise 1: two validity intervals of the same name never overlap"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match event {
            Event::Overlap { name, .. } if !names::is_key(*name) => Err(event.to_string()),
            _ => Ok(()),
        }
    }
}
