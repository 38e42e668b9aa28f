//! A key that is parked when an attempt left no result is not started again, unless the handler
//! said that it did nothing.

use std::collections::BTreeMap;

use super::Invariant;
use crate::trace::Event;

/// The result that the counting start of each key would have.
#[derive(Debug, Default)]
pub(crate) struct Once(BTreeMap<u16, u64>);

impl Invariant for Once {
    fn name(&self) -> &'static str {
        "started once"
    }

    fn source(&self) -> &'static str {
        "Lapsed::Park, Call::created_at: what an earlier attempt may have done is not done again"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match *event {
            Event::Starts { name, value, .. } => match self.0.insert(name, value) {
                Some(first) => {
                    Err(format!("{event}, but the start whose result is {first} came before"))
                }
                None => Ok(()),
            },
            // An operator lets it run again.
            Event::Decided { name, .. } => {
                self.0.remove(&name);
                Ok(())
            }
            Event::NoEffect { name, value } => {
                if self.0.get(&name) == Some(&value) {
                    self.0.remove(&name);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
