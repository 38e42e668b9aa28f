//! Checks that no caller receives the result of another request under the same idempotency key.

use std::collections::BTreeMap;

use super::{Rule, rule};
use crate::trace::Event;

/// Returns the rule that no caller receives the result of a request with another fingerprint.
pub(super) fn requests() -> Rule {
    // For each result, the fingerprint (`print`) of its request, if the request had one.
    let mut prints = BTreeMap::<u64, u8>::new();
    let (name, source) = (
        "no result of another request",
        "Call::fingerprint: Mismatch instead of another request's result",
    );
    rule(name, source, move |_, event| match *event {
        Event::Starts { value, print, .. } if print > 0 => {
            prints.insert(value, print);
            Ok(())
        }
        Event::Result { value, print, .. } if print > 0 => match prints.get(&value) {
            Some(of) if *of != print => Err(format!("{event}, but it is request {of}'s")),
            _ => Ok(()),
        },
        _ => Ok(()),
    })
}
