//! Checks the fencing tokens of writes to a resource. A write by a valid holder is never refused
//! because of a newer token (README, promises 1 and 2). Two holders never write with the same
//! token.

use std::collections::BTreeMap;

use super::{Rule, rule};
use crate::trace::{Event, HoldId};

/// Returns the rule that fencing tokens put all writes at the resource in order.
pub(super) fn fencing() -> Rule {
    // For each name and token, the number of the hold whose writes had this token.
    let mut wrote = BTreeMap::<(u16, u64), HoldId>::new();
    let (name, source) =
        ("fencing tokens order all writes", "README, promises 1 and 2: fencing orders every write");
    rule(name, source, move |_, event| {
        let Event::Write { hold, name, token, shared, valid, accepted } = *event else {
            return Ok(());
        };
        if valid && !accepted {
            return Err(format!("{event}, although its guard is valid"));
        }
        if shared {
            return Ok(());
        }
        let first = *wrote.entry((name, token)).or_insert(hold);
        if first != hold {
            return Err(format!("{event}, but hold {first} wrote under the same token"));
        }
        Ok(())
    })
}
