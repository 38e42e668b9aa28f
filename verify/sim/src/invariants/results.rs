//! Each key has one result for ever. All callers that receive a result receive the same one
//! (README, promise 4; idempotency 1).

use std::collections::BTreeMap;

use super::Invariant;
use crate::trace::Event;

/// Result of each key. For each key also true if the result was returned as kept.
#[derive(Debug)]
pub(crate) struct Results {
    /// False if a key may have two results. This happens if data were lost and the clocks differ by
    /// more than E (docs of `RedlockBuilder::clock_error`).
    one: bool,
    values: BTreeMap<u16, u64>,
    kept: BTreeMap<u16, bool>,
}

impl Results {
    pub(crate) fn new(one: bool) -> Self {
        Self { one, values: BTreeMap::new(), kept: BTreeMap::new() }
    }
}

impl Invariant for Results {
    fn name(&self) -> &'static str {
        "one result per key"
    }

    fn source(&self) -> &'static str {
        "README, promise 4: a result once seen never changes, within retention"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        let (name, is_kept) = match *event {
            Event::Result { name, value, kept, .. } => {
                let first = *self.values.entry(name).or_insert(value);
                if self.one && first != value {
                    return Err(format!("{event}, but {first} was answered before"));
                }
                (name, kept)
            }
            Event::NotKept { name, .. } => (name, false),
            _ => return Ok(()),
        };
        if *self.kept.entry(name).or_insert(is_kept) != is_kept {
            return Err(format!("{event}, but the opposite was answered before"));
        }
        Ok(())
    }
}
