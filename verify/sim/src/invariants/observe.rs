//! Checks that observers of an election receive terms and values in order. If an observer may have
//! missed some of them, the next value that it receives is marked with a gap
//! (rule election 5 in docs/design).

use std::collections::BTreeMap;

use super::{Rule, rule};
use crate::trace::Event;

/// Returns the rule that observers receive terms and values in order.
pub(super) fn observe() -> Rule {
    // For each observer, the last term and the last number of a value that it received.
    let mut last = BTreeMap::<u64, (u64, u64)>::new();
    let (name, source) = (
        "observers see terms in order, gaps marked",
        "Election::observe: each change once, terms never backwards, gap if some may be missed",
    );
    rule(name, source, move |_, event| {
        let Event::Sees { watch, term, number, gap, .. } = *event else { return Ok(()) };
        let Some((was_term, was_number)) = last.insert(watch, (term, number)) else {
            return Ok(());
        };
        if (term, number) < (was_term, was_number) {
            return Err(format!("{event}, after number {was_number} of term {was_term}"));
        }
        if !gap && (term != was_term || number > was_number + 1) {
            return Err(format!("{event}: unmarked, after number {was_number} of {was_term}"));
        }
        Ok(())
    })
}
