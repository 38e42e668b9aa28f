//! No key on a server remains too long. Each key ends with its ttl. If a living process gave a key
//! up or cancelled the call of the key, the key is deleted as soon as the messages of the process
//! have arrived (locks 8).

use super::Invariant;
use crate::trace::Event;

#[derive(Debug, Default)]
pub(crate) struct Keys;

impl Invariant for Keys {
    fn name(&self) -> &'static str {
        "no key is left behind"
    }

    fn source(&self) -> &'static str {
        "docs/design/locks.md, 8: release by token on all nodes, with the caller's future gone \
         as well"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match event {
            Event::KeyLeft { .. } => Err(event.to_string()),
            _ => Ok(()),
        }
    }
}
