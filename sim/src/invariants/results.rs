//! One result per key, for ever: whoever is answered with a result is answered with the same one
//! (DESIGN 1.4, 5.7).

use std::collections::BTreeMap;

use super::Invariant;
use crate::trace::Event;

#[derive(Debug, Default)]
pub(crate) struct Results(BTreeMap<u16, u64>);

impl Invariant for Results {
    fn name(&self) -> &'static str {
        "one result per key"
    }

    fn source(&self) -> &'static str {
        "DESIGN 1.4: a result once seen never changes, within retention"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        let Event::Result { name, value, .. } = *event else { return Ok(()) };
        let first = *self.0.entry(name).or_insert(value);
        if first == value {
            return Ok(());
        }
        Err(format!("{event}, but {first} was answered before"))
    }
}
