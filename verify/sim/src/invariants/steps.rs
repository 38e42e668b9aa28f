//! A step that a handler was answered is not begun again under its key.

use std::collections::BTreeMap;

use super::Invariant;
use crate::trace::Event;

/// Under which token each step of each key was first done.
#[derive(Debug, Default)]
pub(crate) struct Steps(BTreeMap<(u16, usize), u64>);

impl Invariant for Steps {
    fn name(&self) -> &'static str {
        "steps once"
    }

    fn source(&self) -> &'static str {
        "Context::step: a later attempt answers what is recorded instead of running it again"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match *event {
            // Who begins it with a smaller token may have been overtaken without knowing.
            Event::StepBegins { name, step, token } => match self.0.get(&(name, step)) {
                Some(done) if *done < token => Err(format!("{event}, but token {done} had it")),
                _ => Ok(()),
            },
            Event::StepDone { name, step, token } => {
                self.0.entry((name, step)).or_insert(token);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
