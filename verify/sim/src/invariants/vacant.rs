//! No client receives "vacant" for a name whose holder was valid from before the question until the
//! answer (election 4, quarantine 9).

use super::Invariant;
use crate::trace::Event;

/// The world records which holders believe that they are valid; this invariant judges the answers.
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
