//! Checks that each idempotency key has one result for ever. All callers that receive a result
//! receive the same one (README, promise 4; idempotency 1).

use std::collections::BTreeMap;

use super::{Rule, rule};
use crate::trace::Event;

/// Returns the rule for results. If `one` is true, each key has one result. Otherwise a key may
/// have two results, because data may be lost and the clocks may differ by more than the clock
/// error E (docs of `RedlockBuilder::clock_error`).
pub(super) fn results(one: bool) -> Rule {
    // For each key, its first result. `kept` is true if the first report about the key said that
    // the result is stored.
    let mut values = BTreeMap::<u16, u64>::new();
    let mut kept = BTreeMap::<u16, bool>::new();
    let (name, source) = (
        "one result per key",
        "README, promise 4: a result once seen never changes, within retention",
    );
    rule(name, source, move |_, event| {
        let (name, is_kept) = match *event {
            Event::Result { name, value, kept: is_kept, .. } => {
                let first = *values.entry(name).or_insert(value);
                if one && first != value {
                    return Err(format!("{event}, but {first} was answered before"));
                }
                (name, is_kept)
            }
            Event::NotKept { name, .. } => (name, false),
            _ => return Ok(()),
        };
        if *kept.entry(name).or_insert(is_kept) != is_kept {
            return Err(format!("{event}, but the opposite was answered before"));
        }
        Ok(())
    })
}
