//! Checks keys that must be parked. After an attempt without a result, the handler of such a key
//! does not start again, unless the attempt reported that it had no effect.

use std::collections::BTreeMap;

use super::{Rule, rule};
use crate::trace::Event;

/// Returns the rule that the handler of a key that must be parked does not start again.
pub(super) fn once() -> Rule {
    // For each key: the result of the last start of its handler, unless this start had no effect or
    // an operator has decided since.
    let mut counts = BTreeMap::<u16, u64>::new();
    let (name, source) = (
        "no rerun of a key that must be parked",
        "Lapsed::Park, Call::created_at: what an earlier attempt may have done is not done again",
    );
    rule(name, source, move |_, event| {
        match *event {
            Event::Starts { name, value, .. } => match counts.insert(name, value) {
                Some(first) => {
                    Err(format!("{event}, but the start whose result is {first} came before"))
                }
                None => Ok(()),
            },
            // After an operator's decision, the handler may start again.
            Event::Decided { name, .. } => {
                counts.remove(&name);
                Ok(())
            }
            Event::NoEffect { name, value } => {
                if counts.get(&name) == Some(&value) {
                    counts.remove(&name);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    })
}
