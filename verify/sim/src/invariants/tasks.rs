//! No task remains after all handles and guards were dropped.

use super::Invariant;
use crate::trace::Event;

#[derive(Debug, Default)]
pub(crate) struct Tasks;

impl Invariant for Tasks {
    fn name(&self) -> &'static str {
        "no task outlives its handles"
    }

    fn source(&self) -> &'static str {
        "a handle's tasks end with it"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match event {
            Event::TasksLeft(_) => Err(event.to_string()),
            _ => Ok(()),
        }
    }
}
