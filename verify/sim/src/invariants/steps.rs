//! Checks that a step does not begin again under the same key after a handler has received the
//! step's value.

use std::collections::BTreeMap;

use super::{Rule, rule};
use crate::plan::Decision;
use crate::trace::Event;

/// Returns the rule that no handler runs a finished step again.
pub(super) fn steps() -> Rule {
    // For each step of each key, the token with which the step was first done.
    let mut done = BTreeMap::<(u16, usize), u64>::new();
    // For each key, the largest token with which a handler started.
    let mut started = BTreeMap::<u16, u64>::new();
    // For each key, the largest token at the time when an operator deleted (purged) its finished
    // steps.
    let mut forgotten = BTreeMap::<u16, u64>::new();
    let (name, source) = (
        "no step is done twice",
        "Context::step: a later attempt answers what is recorded instead of running it again",
    );
    rule(name, source, move |_, event| {
        match *event {
            Event::Starts { name, token, .. } => {
                let largest = started.entry(name).or_default();
                *largest = token.max(*largest);
                Ok(())
            }
            // A handler with a smaller token may not have detected yet that a later handler
            // replaced it. So only a start with a larger token is an error.
            Event::StepBegins { name, step, token } => match done.get(&(name, step)) {
                Some(first) if *first < token => Err(format!("{event}, but token {first} had it")),
                _ => Ok(()),
            },
            Event::Decided { name, decision: Decision::Purge, .. } => {
                done.retain(|(of, _), _| *of != name);
                let largest = started.get(&name).copied().unwrap_or_default();
                forgotten.insert(name, largest);
                Ok(())
            }
            Event::StepDone { name, step, token } => {
                // A step with an older token was stored before the operator deleted the steps,
                // although its handler receives the reply only now.
                if forgotten.get(&name).is_none_or(|most| token > *most) {
                    done.entry((name, step)).or_insert(token);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    })
}
