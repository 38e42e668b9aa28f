//! No caller receives the result of another request under the same key.

use std::collections::BTreeMap;

use super::Invariant;
use crate::trace::Event;

/// For each result, the fingerprint (`print`) of its request, if the request had one.
#[derive(Debug, Default)]
pub(crate) struct Requests(BTreeMap<u64, u8>);

impl Invariant for Requests {
    fn name(&self) -> &'static str {
        "no result of another request"
    }

    fn source(&self) -> &'static str {
        "Call::fingerprint: Mismatch instead of another request's result"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match *event {
            Event::Starts { value, print, .. } if print > 0 => {
                self.0.insert(value, print);
                Ok(())
            }
            Event::Result { value, print, .. } if print > 0 => match self.0.get(&value) {
                Some(of) if *of != print => Err(format!("{event}, but it is request {of}'s")),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
