//! Observers receive terms and values in order. If an observer may have missed some of them, the
//! next one is marked with a gap (election 5).

use std::collections::BTreeMap;

use super::Invariant;
use crate::trace::Event;

/// Last term and number that each observer received.
#[derive(Debug, Default)]
pub(crate) struct Observe(BTreeMap<u64, (u64, u64)>);

impl Invariant for Observe {
    fn name(&self) -> &'static str {
        "observers see terms in order, gaps marked"
    }

    fn source(&self) -> &'static str {
        "Election::observe: each change once, terms never backwards, gap if some may be missed"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        let Event::Sees { watch, term, number, gap, .. } = *event else { return Ok(()) };
        let Some((was_term, was_number)) = self.0.insert(watch, (term, number)) else {
            return Ok(());
        };
        if (term, number) < (was_term, was_number) {
            return Err(format!("{event}, after number {was_number} of term {was_term}"));
        }
        if !gap && (term != was_term || number > was_number + 1) {
            return Err(format!("{event}: unmarked, after number {was_number} of {was_term}"));
        }
        Ok(())
    }
}
