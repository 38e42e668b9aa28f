//! Checks keys in a namespace that accepts a short loss. The handler of a key that must be parked
//! may start again only if the record of the earlier start may be lost in an accepted loss.

use std::collections::BTreeMap;

use super::{Rule, rule};
use crate::plan::Ms;
use crate::trace::Event;

/// Returns the rule of a namespace that accepts losses of at most `accepts`, over nodes with this
/// failover window.
pub(super) fn accepted(accepts: Ms, window: Ms) -> Rule {
    let (accepts, window) = (accepts * 1_000, window * 1_000);
    // Starts of each key: the time of the start, and the result that its handler would have. All
    // times are true times in microseconds.
    let mut starts = BTreeMap::<u16, Vec<(u64, u64)>>::new();
    // Losses: the time up to which a node's data were complete, and the time of the loss of the
    // later data.
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
                // True if a write at this time may be lost in an accepted loss. A replaced master
                // may still grant during its failover window.
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
