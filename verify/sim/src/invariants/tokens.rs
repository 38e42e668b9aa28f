//! Monotonic tokens: each new holder's token is larger than every earlier one (README, promise 2;
//! locks 4).

use std::collections::BTreeMap;

use super::Invariant;
use crate::trace::Event;

/// The tokens of a name in the order of their grants.
#[derive(Debug, Default)]
pub(crate) struct Tokens(BTreeMap<u16, Vec<Known>>);

#[derive(Debug)]
struct Known {
    token: u64,
    /// When it was known.
    at: u64,
    /// The lock was taken from a holder that had asked before this.
    taken: Option<u64>,
}

impl Invariant for Tokens {
    fn name(&self) -> &'static str {
        "monotonic tokens"
    }

    fn source(&self) -> &'static str {
        "README, promise 2: each new holder's token is larger than every earlier one of that name"
    }

    fn see(&mut self, at: u64, event: &Event) -> Result<(), String> {
        let Event::Holds { name, token, is_taker, asked, left, .. } = *event else { return Ok(()) };
        let known = self.0.entry(name).or_default();
        // A guard that was valid when it arrived was granted after all that were known before it.
        // One that lapsed on the way (its process was paused) was granted some time after it was
        // asked for.
        let since = if left > 0 { at } else { asked };
        // Or it was taken away meanwhile, which its holder does not know yet.
        let overruled = |k: &Known| k.taken.is_some_and(|by| asked < by);
        let earlier = known.iter().filter(|k| k.at <= since && !overruled(k));
        let earlier = earlier.map(|k| k.token).max();
        let twice = known.iter().any(|k| k.token == token);
        known.push(Known { token, at, taken: is_taker.then_some(asked) });
        match earlier {
            Some(t) if token <= t => Err(format!("{event}, but token {t} was out before")),
            _ if twice => Err(format!("{event}, a token that was given before")),
            _ => Ok(()),
        }
    }
}
