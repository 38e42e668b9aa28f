//! Checks that fencing tokens grow. The token of a new writer is larger than all earlier tokens.
//! The token of a new reader is not smaller than that of an earlier writer. Sources: promise 2 of
//! README.md, rule locks 4 and the tokens of readers in docs/design.

use std::collections::BTreeMap;

use super::{Rule, rule};
use crate::trace::Event;

#[derive(Debug)]
struct Known {
    token: u64,
    /// True if the holder is a reader.
    shared: bool,
    /// Time at which the grant was reported.
    at: u64,
    /// Time of the request, if this holder got the lock by a takeover.
    taken: Option<u64>,
}

/// Returns the rule that fencing tokens grow with the holders of a name.
pub(super) fn tokens() -> Rule {
    // For each name, the tokens in the order in which their grants were reported.
    let mut tokens = BTreeMap::<u16, Vec<Known>>::new();
    let (name, source) = (
        "tokens grow monotonically",
        "README, promise 2: each new holder's token is larger than every earlier one of that name",
    );
    rule(name, source, move |at, event| {
        let Event::Holds { name, token, is_taker, shared, requested_at, left, .. } = *event else {
            return Ok(());
        };
        let known = tokens.entry(name).or_default();
        // A guard that is still valid when it is returned was granted after all tokens that were
        // reported before. A paused process may return a guard that has already expired. That guard
        // was granted at some time after its request, so only the tokens reported before the
        // request count.
        let since = if left > 0 { at } else { requested_at };
        // The token of a takeover does not count for a guard that was requested before the
        // takeover. The takeover may have ended this guard's hold before its holder received it.
        let overruled = |k: &Known| k.taken.is_some_and(|by| requested_at < by);
        // Readers that hold the lock at the same time may have tokens in any order.
        let earlier =
            known.iter().filter(|k| k.at <= since && !overruled(k) && !(shared && k.shared));
        let earlier = earlier.map(|k| k.token).max();
        let twice = !shared && known.iter().any(|k| !k.shared && k.token == token);
        known.push(Known { token, shared, at, taken: is_taker.then_some(requested_at) });
        match earlier {
            Some(t) if token < t || token == t && !shared => {
                Err(format!("{event}, but token {t} was out before"))
            }
            _ if twice => Err(format!("{event}, a token that was given before")),
            _ => Ok(()),
        }
    })
}
