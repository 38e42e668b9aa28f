//! After an attempt without a result, a key that must be parked does not start its handler again,
//! unless the handler reported that it had no effect.

use std::collections::BTreeMap;

use super::Invariant;
use crate::trace::Event;

/// For each key, the result of the start that counts.
#[derive(Debug, Default)]
pub(crate) struct Once(BTreeMap<u16, u64>);

impl Invariant for Once {
    fn name(&self) -> &'static str {
        "no rerun of a key that must be parked"
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
            // After an operator's decision, the handler may start again.
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
