//! Monotonic tokens: each new holder's token is larger than every earlier one (README, promise 2;
//! locks 4).

use std::collections::BTreeMap;

use super::Invariant;
use crate::trace::Event;

/// The tokens of a name in the order of their grants, with the moment each was known.
#[derive(Debug, Default)]
pub(crate) struct Tokens(BTreeMap<u16, Vec<(u64, u64)>>);

impl Invariant for Tokens {
    fn name(&self) -> &'static str {
        "monotonic tokens"
    }

    fn source(&self) -> &'static str {
        "README, promise 2: each new holder's token is larger than every earlier one of that name"
    }

    fn see(&mut self, at: u64, event: &Event) -> Result<(), String> {
        let Event::Holds { name, token, asked, left, .. } = *event else { return Ok(()) };
        let known = self.0.entry(name).or_default();
        // A guard that was valid when it arrived was granted after all that were known before it.
        // One that lapsed on the way (its process was paused) was granted some time after it was
        // asked for.
        let since = if left > 0 { at } else { asked };
        let earlier = known.iter().filter(|(when, _)| *when <= since).map(|(_, t)| *t).max();
        let twice = known.iter().any(|(_, t)| *t == token);
        known.push((at, token));
        match earlier {
            Some(t) if token <= t => Err(format!("{event}, but token {t} was out before")),
            _ if twice => Err(format!("{event}, a token that was given before")),
            _ => Ok(()),
        }
    }
}
