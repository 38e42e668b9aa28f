//! No client receives "vacant" for a name if a holder was valid from the request to the reply
//! (election 4, quarantine 9).

use super::Invariant;
use crate::trace::Event;

/// The world records the holders that believe to be valid. This invariant checks the replies.
#[derive(Debug, Default)]
pub(crate) struct Vacant;

impl Invariant for Vacant {
    fn name(&self) -> &'static str {
        "no vacant answer while a holder is valid"
    }

    fn source(&self) -> &'static str {
        "docs/design/election.md, 4: no owner that could still reach a majority: vacant"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match event {
            Event::Vacant { hold: Some(_), .. } => Err(event.to_string()),
            _ => Ok(()),
        }
    }
}
