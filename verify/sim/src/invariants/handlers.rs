//! Checks that no handler of an idempotency key starts after a caller received the key's result.
//! Each start has a larger token than all earlier starts (README, promises 2 and 4; idempotency 1).

use std::collections::{BTreeMap, BTreeSet};

use super::{Rule, rule};
use crate::trace::Event;

/// Returns the rule for starts of handlers. If `in_order` is true, the token of each start must be
/// larger than those of the earlier starts.
pub(super) fn handlers(in_order: bool) -> Rule {
    let mut answered = BTreeSet::<u16>::new();
    let mut tokens = BTreeMap::<u16, u64>::new();
    let (name, source) = (
        "no handler starts after a result",
        "README, promise 4: the handler is not started again once anyone has seen its result",
    );
    rule(name, source, move |_, event| match *event {
        Event::Result { name, .. } | Event::NotKept { name, .. } => {
            answered.insert(name);
            Ok(())
        }
        Event::Starts { name, token, .. } => {
            if answered.contains(&name) {
                return Err(format!("{event}, but its result was answered before"));
            }
            let highest = tokens.entry(name).or_default();
            if in_order && token <= *highest {
                return Err(format!("{event}, but token {highest} was out before"));
            }
            *highest = token.max(*highest);
            Ok(())
        }
        _ => Ok(()),
    })
}
