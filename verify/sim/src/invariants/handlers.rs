//! No handler starts after a caller received the result. Each start has a larger token than all
//! earlier starts (README, promises 2 and 4; idempotency 1).

use std::collections::{BTreeMap, BTreeSet};

use super::Invariant;
use crate::trace::Event;

#[derive(Debug, Default)]
pub(crate) struct Handlers {
    /// True if the tokens of the starts must grow.
    in_order: bool,
    answered: BTreeSet<u16>,
    highest: BTreeMap<u16, u64>,
}

impl Handlers {
    pub(crate) fn new(in_order: bool) -> Self {
        Self { in_order, ..Self::default() }
    }
}

impl Invariant for Handlers {
    fn name(&self) -> &'static str {
        "no handler starts after a result"
    }

    fn source(&self) -> &'static str {
        "README, promise 4: the handler is not started again once anyone has seen its result"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match *event {
            Event::Result { name, .. } | Event::NotKept { name, .. } => {
                self.answered.insert(name);
                Ok(())
            }
            Event::Starts { name, token, .. } => {
                if self.answered.contains(&name) {
                    return Err(format!("{event}, but its result was answered before"));
                }
                let highest = self.highest.entry(name).or_default();
                if self.in_order && token <= *highest {
                    return Err(format!("{event}, but token {highest} was out before"));
                }
                *highest = token.max(*highest);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
