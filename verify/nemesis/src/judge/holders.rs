//! Checks an event log for broken rules about holders of locks and leaderships: the times in which
//! they rely on their leases, their tokens, the order of their writes, and guards that report to be
//! valid for too long.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Granted, Violation, tokens};
use crate::client::MAX_TTL;
use crate::event::{Event, EventKind, Nanos, SECOND, TaskId};

/// Time for which both the old holder of a lock and the client that took the lock over may rely on
/// it, after the time at which the takeover reported the lock as free.
///
/// It is needed if a node loses the record of the takeover and confirms the old holder once more.
/// It is two leases and the largest lag of a replica.
const LOST: Nanos = 2 * MAX_TTL.as_nanos() as Nanos + 2 * SECOND;

/// Longest lease, with an allowance for the drift of clocks.
const LONGEST: Nanos = MAX_TTL.as_nanos() as Nanos / 10 * 11;

const CLOSED_FOR: &str = "a takeover says how long it is closed";

/// A hold: the time `[from, end)` in which a holder relies on its lease.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) name: Arc<str>,
    pub(crate) who: TaskId,
    pub(crate) token: u64,
    since: Nanos,
    pub(crate) from: Nanos,
    /// Latest deadline that the holder reported, or the time at which it gave the lease up if that
    /// is earlier.
    pub(crate) end: Nanos,
    /// Renewals of the lease: the time of each report, and the reported deadline.
    pub(crate) renewed: Vec<(Nanos, Nanos)>,
    /// Deadline of the lease when it was granted.
    granted_until: Nanos,
    took: Option<Took>,
}

/// Takeover by which a holder got its lock.
#[derive(Clone, Copy, Debug)]
struct Took {
    /// Largest fencing token that the nodes had given before the takeover.
    fence: u64,
    /// End of the time in which the old holder may still rely on the lock.
    closed: Nanos,
}

impl Hold {
    /// Returns the latest deadline that the holder had reported at the time `at`. Returns the end
    /// of the hold if it is earlier.
    pub(crate) fn deadline_at(&self, at: Nanos) -> Nanos {
        let known = self.renewed.iter().filter(|(seen, _)| *seen <= at).map(|(_, until)| *until);
        known.fold(self.granted_until, Nanos::max).min(self.end)
    }
}

pub(crate) fn holds(events: &[Event]) -> Vec<Hold> {
    let mut open: BTreeMap<(Arc<str>, TaskId, u64), Hold> = BTreeMap::new();
    let mut all = Vec::new();
    for e in events {
        match &e.kind {
            EventKind::Held { name, token, since, until } => {
                let (name, who, token, since) = (Arc::clone(name), e.who, *token, *since);
                let key = (Arc::clone(&name), who, token);
                let (end, renewed) = (*until, Vec::new());
                let (from, granted_until, took) = (e.at, end, None);
                let hold =
                    Hold { name, who, token, since, from, end, renewed, granted_until, took };
                all.extend(open.insert(key, hold));
            }
            EventKind::Valid { name, token, until } => {
                if let Some(hold) = open.get_mut(&(Arc::clone(name), e.who, *token))
                    && *until > hold.end
                {
                    hold.renewed.push((e.at, *until));
                    hold.end = *until;
                }
            }
            EventKind::Took { name, token, fence, closed } => {
                if let Some(hold) = open.get_mut(&(Arc::clone(name), e.who, *token)) {
                    hold.took = Some(Took { fence: *fence, closed: *closed });
                }
            }
            EventKind::Over { name, token, .. } => {
                if let Some(mut hold) = open.remove(&(Arc::clone(name), e.who, *token)) {
                    // A client that took the lock over can give it up early. The lock then stays
                    // closed until the time `closed`, or until the client's own lease ends if that
                    // is earlier.
                    let kept = hold.took.map_or(0, |took| took.closed.min(hold.granted_until));
                    hold.end = hold.end.min(e.at.max(kept));
                    all.push(hold);
                }
            }
            _ => {}
        }
    }
    all.extend(open.into_values());
    all.sort_by(|a, b| (&a.name, a.from).cmp(&(&b.name, b.from)));
    all
}

pub(crate) fn judge(events: &[Event]) -> Vec<Violation> {
    let holds = holds(events);
    let mut found = overlaps(&holds);
    found.extend(closed_for(&holds));
    let mut granted: BTreeMap<Arc<str>, Vec<Granted>> = BTreeMap::new();
    for h in &holds {
        let g = Granted { since: h.since, at: h.from, token: h.token, by: by(h.who) };
        granted.entry(Arc::clone(&h.name)).or_default().push(g);
    }
    found.extend(tokens(&granted));
    found.extend(writes(events));
    for e in events {
        if let EventKind::Valid { name, until, .. } = &e.kind
            && e.at > *until
        {
            let late = (e.at - until) as f64 / 1e6;
            let text = format!("{}: {late:.3} ms after its own deadline", by(e.who));
            found.push(Violation::new("no guard is valid past its deadline", name, e.at, text));
        }
    }
    found
}

/// Returns a violation for each takeover that announced a wait longer than the longest lease.
fn closed_for(holds: &[Hold]) -> impl Iterator<Item = Violation> {
    holds.iter().filter_map(|h| {
        let span = h.took?.closed.saturating_sub(h.from);
        (span > LONGEST).then(|| {
            let text = format!("{} was told to wait for {} s", by(h.who), super::seconds(span));
            Violation::new(CLOSED_FOR, &h.name, h.from, text)
        })
    })
}

fn overlaps(holds: &[Hold]) -> Vec<Violation> {
    let mut found = Vec::new();
    for of in holds.chunk_by(|a, b| a.name == b.name) {
        let mut open: Vec<&Hold> = Vec::new();
        for h in of.iter().filter(|h| h.from < h.end) {
            open.retain(|o| o.end > h.from);
            for before in &open {
                let (victim, taker) =
                    if before.token < h.token { (*before, h) } else { (h, *before) };
                if taken_over(of, victim, taker) {
                    found.extend(too_long(victim, taker));
                    continue;
                }
                let ms = (before.end.min(h.end) - h.from) as f64 / 1e6;
                let text = format!(
                    "{} (token {}) and {} (token {}) for {ms:.3} ms",
                    by(before.who),
                    before.token,
                    by(h.who),
                    h.token
                );
                found.push(Violation::new("one holder at a time", &h.name, h.from, text));
            }
            open.push(h);
        }
    }
    found
}

/// Returns true if the lock went from `victim` to `taker` by one or several takeovers, and by
/// nothing else.
///
/// Each takeover must have taken the lock from the holder with the next smaller token. The fence
/// that the takeover reported must be at least the token of that holder.
fn taken_over(of: &[Hold], victim: &Hold, taker: &Hold) -> bool {
    let later = |h: &&Hold| victim.token < h.token && h.token <= taker.token;
    let mut later: Vec<_> = of.iter().filter(later).collect();
    later.sort_by_key(|h| h.token);
    let mut below = victim.token;
    !later.is_empty()
        && later.iter().all(|h| {
            let from = std::mem::replace(&mut below, h.token);
            h.took.is_some_and(|took| from <= took.fence && from < h.token)
        })
}

/// Returns a violation if the old holder relied on its lock for longer than the takeover announced.
///
/// A node may lose the takeover and confirm the old holder once more. So an additional time of
/// [`LOST`] is allowed.
fn too_long(victim: &Hold, taker: &Hold) -> Option<Violation> {
    let closed = taker.took?.closed;
    let known = victim.deadline_at(taker.from);
    let overlap = victim.end.min(taker.end);
    let late = if known > closed { known - closed } else { overlap.saturating_sub(closed + LOST) };
    (late > 0).then(|| {
        let text = format!(
            "{} (token {}) believed in it for {:.3} ms more than {} (token {}) was told when it \
             took it",
            by(victim.who),
            victim.token,
            late as f64 / 1e6,
            by(taker.who),
            taker.token
        );
        Violation::new(CLOSED_FOR, &victim.name, taker.from, text)
    })
}

fn writes(events: &[Event]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut last: BTreeMap<&Arc<str>, (u64, TaskId)> = BTreeMap::new();
    for e in events {
        let EventKind::Write { name, token, accepted: true } = &e.kind else { continue };
        if let Some((before, who)) = last.get(name).filter(|(t, _)| t > token) {
            let text = format!("{} wrote with {token} after {} with {before}", by(e.who), by(*who));
            found.push(Violation::new("writes in the order of tokens", name, e.at, text));
        }
        last.insert(name, (*token, e.who));
    }
    found
}

pub(super) fn by(who: TaskId) -> String {
    format!("client {}.{}.{}", who.client, who.life, who.task)
}
