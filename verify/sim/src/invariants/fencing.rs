//! Fencing at the resource. A write by a valid holder is never refused because of a newer token
//! (README, promises 1 and 2). Two holders never write with the same token.

use std::collections::BTreeMap;

use super::Invariant;
use crate::trace::{Event, HoldId};

/// For each name and token, the hold that wrote with this token.
#[derive(Debug, Default)]
pub(crate) struct Fencing(BTreeMap<(u16, u64), HoldId>);

impl Invariant for Fencing {
    fn name(&self) -> &'static str {
        "fencing tokens order all writes"
    }

    fn source(&self) -> &'static str {
        "README, promises 1 and 2: fencing orders every write"
    }

    fn see(&mut self, _: u64, event: &Event) -> Result<(), String> {
        let Event::Write { hold, name, token, shared, valid, accepted } = *event else {
            return Ok(());
        };
        if valid && !accepted {
            return Err(format!("{event}, although its guard is valid"));
        }
        if shared {
            return Ok(());
        }
        let first = *self.0.entry((name, token)).or_insert(hold);
        if first != hold {
            return Err(format!("{event}, but hold {first} wrote under the same token"));
        }
        Ok(())
    }
}
