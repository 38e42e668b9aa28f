//! A step does not begin again under the same key after a handler has received the value of the
//! step.

use std::collections::BTreeMap;

use super::Invariant;
use crate::plan::Decision;
use crate::trace::Event;

#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// For each step of each key, the token with which the step was first done.
    done: BTreeMap<(u16, usize), u64>,
    /// For each key, the largest token with which a handler started.
    started: BTreeMap<u16, u64>,
    /// For each key, the largest token at the time when an operator purged the steps of the key.
    forgotten: BTreeMap<u16, u64>,
}

impl Invariant for Steps {
    fn name(&self) -> &'static str {
        "no step is done twice"
    }

    fn source(&self) -> &'static str {
        "Context::step: a later attempt answers what is recorded instead of running it again"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        match *event {
            Event::Starts { name, token, .. } => {
                let started = self.started.entry(name).or_default();
                *started = token.max(*started);
                Ok(())
            }
            // A handler with a smaller token may not know that it was overtaken. So only a larger
            // token is an error.
            Event::StepBegins { name, step, token } => match self.done.get(&(name, step)) {
                Some(done) if *done < token => Err(format!("{event}, but token {done} had it")),
                _ => Ok(()),
            },
            Event::Decided { name, decision: Decision::Purge, .. } => {
                self.done.retain(|(of, _), _| *of != name);
                let started = self.started.get(&name).copied().unwrap_or_default();
                self.forgotten.insert(name, started);
                Ok(())
            }
            Event::StepDone { name, step, token } => {
                // A step with an older token was stored before the purge, although its handler
                // receives the reply only now.
                if self.forgotten.get(&name).is_none_or(|most| token > *most) {
                    self.done.entry((name, step)).or_insert(token);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
