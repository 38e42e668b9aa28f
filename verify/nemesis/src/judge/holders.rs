//! Locks and leaderships: intervals of belief, tokens, the order of writes, and guards that said
//! "valid" too long.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Granted, Violation, tokens};
use crate::event::{Event, Nanos, What, Who};

/// What one holder believed: `[from, end)`.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) name: Arc<str>,
    pub(crate) who: Who,
    pub(crate) token: u64,
    since: Nanos,
    pub(crate) from: Nanos,
    /// The latest deadline that was declared, or when the belief was given up before it.
    pub(crate) end: Nanos,
    /// Each later deadline and when it was seen.
    pub(crate) renewed: Vec<(Nanos, Nanos)>,
    /// The deadline of the grant itself.
    granted_until: Nanos,
    /// The fence under which the holder was seen from whom it was taken over.
    took: Option<u64>,
}

impl Hold {
    /// The deadline that was known at the moment, if the belief had not ended by then.
    pub(crate) fn deadline_at(&self, at: Nanos) -> Nanos {
        let known = self.renewed.iter().filter(|(seen, _)| *seen <= at).map(|(_, until)| *until);
        known.fold(self.granted_until, Nanos::max).min(self.end)
    }
}

/// All holds, by name and in the order of their beginning.
pub(crate) fn holds(events: &[Event]) -> Vec<Hold> {
    let mut open: BTreeMap<(Arc<str>, Who, u64), Hold> = BTreeMap::new();
    let mut all = Vec::new();
    let mut took = BTreeMap::new();
    for e in events {
        match &e.what {
            What::Took { name, token, fence } => {
                took.insert((name, e.who, *token), *fence);
            }
            What::Held { name, token, since, until } => {
                let took = took.remove(&(name, e.who, *token));
                let (name, who, token, since) = (Arc::clone(name), e.who, *token, *since);
                let key = (Arc::clone(&name), who, token);
                let (end, renewed) = (*until, Vec::new());
                let (from, granted_until) = (e.at, end);
                let hold =
                    Hold { name, who, token, since, from, end, renewed, granted_until, took };
                all.extend(open.insert(key, hold));
            }
            What::Valid { name, token, until } => {
                if let Some(hold) = open.get_mut(&(Arc::clone(name), e.who, *token))
                    && *until > hold.end
                {
                    hold.renewed.push((e.at, *until));
                    hold.end = *until;
                }
            }
            What::Over { name, token, .. } => {
                if let Some(mut hold) = open.remove(&(Arc::clone(name), e.who, *token)) {
                    hold.end = hold.end.min(e.at);
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
    let mut granted: BTreeMap<Arc<str>, Vec<Granted>> = BTreeMap::new();
    for h in &holds {
        let g = Granted { since: h.since, at: h.from, token: h.token, by: by(h.who) };
        granted.entry(Arc::clone(&h.name)).or_default().push(g);
    }
    found.extend(tokens(&granted));
    found.extend(writes(events));
    for e in events {
        if let What::Valid { name, until, .. } = &e.what
            && e.at > *until
        {
            let late = (e.at - until) as f64 / 1e6;
            let text = format!("{}: {late:.3} ms after its own deadline", by(e.who));
            found.push(Violation::new("no guard is valid past its deadline", name, e.at, text));
        }
    }
    found
}

fn overlaps(holds: &[Hold]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut longest: Option<&Hold> = None;
    for h in holds.iter().filter(|h| h.from < h.end) {
        let Some(before) = longest.filter(|l| l.name == h.name) else {
            longest = Some(h);
            continue;
        };
        if h.from < before.end && !is_taken_from(holds, h, before) {
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
        if h.end > before.end {
            longest = Some(h);
        }
    }
    found
}

/// Returns true if the lock was taken over from this holder, or from one who took it from there.
/// The victim learns of it at its next renewal; until then the token tells the two apart, and only
/// those two.
fn is_taken_from(holds: &[Hold], taker: &Hold, victim: &Hold) -> bool {
    let mut taker = taker;
    while let Some(fence) = taker.took {
        // A fence may be above the token of its holder, if others tried and failed.
        let before = |h: &&Hold| h.name == taker.name && h.token <= fence && h.token < taker.token;
        let Some(from) = holds.iter().filter(before).max_by_key(|h| h.token) else { return false };
        if (from.token, from.who) == (victim.token, victim.who) {
            return true;
        }
        taker = from;
    }
    false
}

fn writes(events: &[Event]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut last: BTreeMap<&Arc<str>, (u64, Who)> = BTreeMap::new();
    for e in events {
        let What::Write { name, token, accepted: true } = &e.what else { continue };
        if let Some((before, who)) = last.get(name).filter(|(t, _)| t > token) {
            let text = format!("{} wrote with {token} after {} with {before}", by(e.who), by(*who));
            found.push(Violation::new("writes in the order of tokens", name, e.at, text));
        }
        last.insert(name, (*token, e.who));
    }
    found
}

pub(super) fn by(who: Who) -> String {
    format!("client {}.{}.{}", who.client, who.life, who.task)
}
