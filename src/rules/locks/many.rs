//! Several names together: all get one owner and one fencing token, or none is granted.

use super::beside::Busy;
use super::{Ask, Held, Row, Wake, release as release_one};
use crate::op::{LockMode, Reply};
use crate::rules::header::Header;
use crate::token::OwnerToken;

/// (multi_lock 1, 2, 6).
pub(super) fn acquire(h: &Header, ask: &Ask, rows: &mut [Row]) -> Reply {
    if h.is_quarantined() {
        return h.quarantined();
    }
    let busy: Vec<Busy> = rows.iter_mut().filter_map(|row| row.bar(h, ask)).collect();
    if !busy.is_empty() {
        return refuse(&busy);
    }
    let most = rows.iter().map(|row| h.honest(row.fence)).max().unwrap_or(0);
    // A repeated take-over is granted again, with a new fence, as that of one name is.
    let is_repeated = !ask.collects() && rows.iter().all(|row| row.is_owned_by(ask.owner));
    let fence = if is_repeated { most } else { h.next_fence(most, ask.proposal) };
    for row in rows {
        row.reserved = None;
        if !is_repeated {
            row.held = Some(Held::by(ask.owner, h.after(ask.ttl)));
        }
        if row.fence < fence {
            row.set_fence(h, fence);
        }
    }
    Reply::Granted { fence }
}

/// States the latest end of the busy names.
fn refuse(busy: &[Busy]) -> Reply {
    let ends = || busy.iter().map(|name| name.remaining);
    let remaining = if ends().any(|rest| rest.is_none()) { None } else { ends().max().flatten() };
    let foreign = busy.iter().any(|name| name.foreign);
    Reply::Held { remaining, foreign }
}

/// Releases the names that the owner has (multi_lock 5).
pub(super) fn release(h: &Header, owner: OwnerToken, rows: &mut [Row]) -> (Reply, Vec<Wake>) {
    let (mut result, mut wakes) = (Reply::Done, Vec::new());
    for row in rows {
        let (reply, wake) = release_one(h, owner, (LockMode::Exclusive, false), row);
        wakes.push(wake);
        match reply {
            Reply::NotOwner => result = Reply::NotOwner,
            Reply::Absent if result == Reply::Done => result = Reply::Absent,
            _ => {}
        }
    }
    (result, wakes)
}
