//! Checks keys in a namespace that accepts a short loss. The handler of a key that must be parked
//! may start again only if the record of the earlier start may be lost in an accepted loss.

use std::collections::BTreeMap;

use super::Invariant;
use crate::plan::Ms;
use crate::trace::Event;

/// State of the invariant. All times are true times in microseconds.
#[derive(Debug)]
pub(crate) struct Accepted {
    accepts: u64,
    window: u64,
    /// Starts of each key: the time of the start, and the result that its handler would have.
    starts: BTreeMap<u16, Vec<(u64, u64)>>,
    /// Losses: the time up to which a node's data were complete, and the time of the loss of the
    /// later data.
    losses: Vec<(u64, u64)>,
}

impl Accepted {
    pub(crate) fn new(accepts: Ms, window: Ms) -> Self {
        let (starts, losses) = (BTreeMap::new(), Vec::new());
        Self { accepts: accepts * 1_000, window: window * 1_000, starts, losses }
    }

    /// Returns true if a write at the time `at` may be lost in an accepted loss.
    fn may_be_lost(&self, at: u64) -> bool {
        self.losses.iter().any(|&(since, lost)| {
            // A replaced master may still grant during its failover window.
            let is_in = since <= at && at <= lost + self.window;
            is_in && at.max(lost) - since <= self.accepts
        })
    }
}

impl Invariant for Accepted {
    fn name(&self) -> &'static str {
        "a key is rerun only after an accepted loss"
    }

    fn source(&self) -> &'static str {
        "IdempotencyBuilder::accept_loss: a loss of at most this length does not count"
    }

    fn see(&mut self, at: u64, event: &Event) -> Result<(), String> {
        match *event {
            Event::Lost { since, .. } => {
                self.losses.push((since, at));
                Ok(())
            }
            Event::Starts { name, value, .. } => {
                let known = self.starts.get(&name).into_iter().flatten();
                let known = known.copied().find(|(before, _)| !self.may_be_lost(*before));
                self.starts.entry(name).or_default().push((at, value));
                known.map_or(Ok(()), |(before, first)| {
                    Err(format!(
                        "{event}, but the start at {before} µs, whose result is {first}, is known, \
                         or was lost with more than is accepted"
                    ))
                })
            }
            Event::NoEffect { name, value } => {
                if let Some(starts) = self.starts.get_mut(&name) {
                    starts.retain(|(_, other)| *other != value);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
