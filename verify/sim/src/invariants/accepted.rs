//! Checks idempotency keys that accept a short loss of data. After an attempt without a result, the
//! handler of such a key may start again only if the record of that attempt may be lost in an
//! accepted loss.

use std::collections::BTreeMap;

use super::{Rule, rule};
use crate::plan::Ms;
use crate::trace::Event;

/// Returns the rule for idempotency keys that accept losses of data of at most `accepts`
/// milliseconds. `window` is the longest time for which a replaced master may still grant.
pub(super) fn accepted(accepts: Ms, window: Ms) -> Rule {
    let (accepts, window) = (accepts * 1_000, window * 1_000);
    // For each key, its starts: the time of the start, and the result that this handler would
    // return. All times are true times in microseconds.
    let mut starts = BTreeMap::<u16, Vec<(u64, u64)>>::new();
    // For each loss: the time up to which the node's data are complete, and the time at which the
    // later data were lost.
    let mut losses = Vec::<(u64, u64)>::new();
    let (name, source) = (
        "a key is rerun only after an accepted loss",
        "IdempotencyBuilder::accept_loss: a loss of at most this length does not count",
    );
    rule(name, source, move |at, event| {
        match *event {
            Event::Lost { since, .. } => {
                losses.push((since, at));
                Ok(())
            }
            Event::Starts { name, value, .. } => {
                // True if a write at the time `at` may be lost in a loss of data that the keys
                // accept. A replaced master may still grant for `window` after the loss, and these
                // writes are lost too.
                let may_be_lost = |at: u64| {
                    losses.iter().any(|&(since, lost)| {
                        let is_in = since <= at && at <= lost + window;
                        is_in && at.max(lost) - since <= accepts
                    })
                };
                let known = starts.get(&name).into_iter().flatten();
                let known = known.copied().find(|(before, _)| !may_be_lost(*before));
                starts.entry(name).or_default().push((at, value));
                known.map_or(Ok(()), |(before, first)| {
                    Err(format!(
                        "{event}, but the start at {before} µs, whose result is {first}, is known, \
                         or was lost with more than is accepted"
                    ))
                })
            }
            Event::NoEffect { name, value } => {
                if let Some(of_key) = starts.get_mut(&name) {
                    of_key.retain(|(_, other)| *other != value);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    })
}
