//! The page `locks`: locks of every kind, their holders, their waiters, and the reason for each
//! wait.

use palisade::{NodePermits, NodeView};
use palisade_ops::Waiter;
use serde_json::{Value, json};

use super::{Params, clean, cut, span};
use crate::collect::locks::{Holder, view};
use crate::history::now_ms;
use crate::model::{LockId, LockRow, Model, View};
use crate::refusal::Refusal;
use crate::start::Shared;

/// Maximum number of holders, and of waiters, that the list shows of one lock.
const SHOWN: usize = 16;

pub(super) fn page(shared: &Shared, model: &Model, params: &Params) -> Result<Value, Refusal> {
    let is_meant = |(id, row): &(&LockId, &LockRow)| {
        row.view.is_some()
            && (params.kind.is_empty() || kind(id, row) == params.kind)
            && id.name.contains(&params.q)
    };
    let all: Vec<_> = model.locks.iter().filter(is_meant).collect();
    let (all, next, total) = cut(all, params)?;
    let locks: Vec<_> = all.into_iter().map(|(id, row)| lock(id, row, SHOWN)).collect();
    let left_out = model.left_out.locks;
    let whole = model.is_scanned(left_out)
        && model.locks_unchecked == 0
        && model.locks.values().all(|row| row.view.is_some());
    Ok(json!({ "locks": locks, "next": next, "total": total, "whole": whole,
               "left_out": left_out, "poll": super::poll(shared, model) }))
}

/// Returns the page of one name. The nodes are asked now, even for a name that the console has not
/// found.
pub(super) async fn one(shared: &Shared, params: &Params) -> Result<Value, Refusal> {
    let id = LockId { name: params.name.clone(), is_semaphore: params.kind == "semaphore" };
    // `build` refuses a name that no lock may have. The error contains the rule that the name
    // breaks.
    shared.redlock.mutex(&id.name).build()?;
    let read = async { Some((view(shared, &id).await?, now_ms())) };
    let seen = shared.recent.locks.get(id.clone(), read).await;
    let (seen, now) = seen.ok_or_else(|| Refusal::nodes("the handle is closed"))?;
    let nodes = nodes(&seen, now);
    let model = shared.model();
    let mut row = model.locks.get(&id).cloned().unwrap_or_default();
    (row.view, row.at) = (Some(seen), now);
    let mut page = lock(&id, &row, usize::MAX);
    page["nodes"] = nodes;
    let (happened, _) =
        shared.history.latest(None, 50, |entry| entry.name.as_deref() == Some(&*id.name));
    page["happened"] = happened.into();
    Ok(super::head(shared, &model, page))
}

fn kind(id: &LockId, row: &LockRow) -> &'static str {
    let is_read = match &row.view {
        Some(View::Lock(seen)) => seen.holder().is_none() && seen.reader_count() > 0,
        _ => false,
    };
    match (id.is_semaphore, is_read) {
        (true, _) => "semaphore",
        (false, true) => "read",
        (false, false) => "mutex",
    }
}

fn lock(id: &LockId, row: &LockRow, most: usize) -> Value {
    let holders = row.view.as_ref().map(View::holders).unwrap_or_default();
    let state = state(row, &holders);
    let waiters = row.waiters.as_deref();
    let fence = holders.iter().map(|holder| holder.fence).max();
    let count = match &row.view {
        Some(View::Lock(seen)) => seen.reader_count().max(holders.len()),
        _ => holders.len(),
    };
    let permits = id.is_semaphore.then(|| json!({ "held": holders.len() }));
    json!({
        "name": id.name, "kind": kind(id, row), "state": state,
        "sentence": sentence(state, row, &holders, count),
        "holders": holders.iter().take(most).map(|one| holder(row, one)).collect::<Vec<_>>(),
        "holder_count": count, "permits": permits,
        "waiters": waiters.map(|all| waiting(all, &holders, most)),
        "waiting": waiters.map(<[_]>::len), "fence": fence.map(|fence| fence.to_string()),
        "seen_ms": row.at,
    })
}

pub(super) fn state(row: &LockRow, holders: &[Holder]) -> &'static str {
    let Some(view) = &row.view else { return "unknown" };
    match holders.first() {
        Some(one) if one.is_reader => return "read",
        Some(_) => return "held",
        None => {}
    }
    if may_be_held(view) {
        return "unknown";
    }
    match view {
        View::Lock(seen) => {
            let has = |is: fn(&NodeView) -> bool| seen.nodes.iter().any(|(_, view)| is(view));
            if has(|view| matches!(view, NodeView::Kept(_))) {
                "kept"
            } else if has(|view| matches!(view, NodeView::Foreign(_))) {
                "foreign"
            } else if has(|view| matches!(view, NodeView::Held(_))) {
                "attempt"
            } else if seen.is_free() {
                "free"
            } else {
                "unknown"
            }
        }
        View::Semaphore(seen) if seen.available() > 0 => "free",
        View::Semaphore(_) => "unknown",
    }
}

/// Returns true if an owner may hold the lock or a permit, although too few of the nodes that
/// answered have it. With the nodes that did not answer, this owner could have a majority.
fn may_be_held(view: &View) -> bool {
    // The owners and slots of each node; `None` for a node that did not answer.
    let nodes: Vec<Option<Vec<(&str, u16)>>> = match view {
        View::Lock(seen) => seen
            .nodes
            .iter()
            .map(|(_, view)| match view {
                NodeView::Unknown(_) => None,
                NodeView::Held(holder) => Some(vec![(&*holder.owner, 0)]),
                NodeView::Readers { listed, .. } => {
                    Some(listed.iter().map(|holder| (&*holder.owner, 0)).collect())
                }
                _ => Some(Vec::new()),
            })
            .collect(),
        View::Semaphore(seen) => seen
            .nodes
            .iter()
            .map(|(_, view)| match view {
                NodePermits::Held(all) => {
                    Some(all.iter().map(|one| (&*one.owner, one.slot)).collect())
                }
                _ => None,
            })
            .collect(),
    };
    is_undecided(&nodes)
}

/// Returns true if an owner would have a majority with the nodes that did not answer (`None`).
fn is_undecided<T: PartialEq>(nodes: &[Option<Vec<T>>]) -> bool {
    let unknown = nodes.iter().filter(|node| node.is_none()).count();
    let on = |owner: &T| nodes.iter().flatten().filter(|node| node.contains(owner)).count();
    let most = nodes.iter().flatten().flatten().map(on).max().unwrap_or_default();
    unknown > 0 && 2 * (most + unknown) > nodes.len()
}

fn sentence(state: &str, row: &LockRow, holders: &[Holder], count: usize) -> String {
    let left = |one: &Holder| {
        let end = row.ends.get(&one.owner).copied();
        span(end.map_or(one.remaining.as_millis() as u64, |end| end.saturating_sub(now_ms())))
    };
    let is_permit = holders.first().is_some_and(|one| one.slot.is_some());
    let held = match (state, holders.first()) {
        ("held", Some(_)) if is_permit => match count {
            1 => "one permit is held".to_owned(),
            n => format!("{n} permits are held"),
        },
        ("held", Some(one)) => {
            format!("held by {}, for another {} unless it is renewed", one.owner, left(one))
        }
        ("read", _) if count == 1 => "held by one reader".to_owned(),
        ("read", _) => format!("held by {count} readers"),
        ("attempt", _) => {
            "no owner has a majority: an attempt or a release is under way".to_owned()
        }
        ("kept", _) => "kept for its holder after a planned handover".to_owned(),
        ("foreign", _) => "another program's value is under its key".to_owned(),
        ("free", _) => "free".to_owned(),
        _ => "too few nodes answered".to_owned(),
    };
    match row.waiters.as_ref().map_or(0, Vec::len) {
        0 => held,
        1 => format!("{held}; one process waits"),
        n => format!("{held}; {n} processes wait"),
    }
}

fn holder(row: &LockRow, one: &Holder) -> Value {
    let (on, of) = row.view.as_ref().map(|view| on(view, one)).unwrap_or_default();
    let until = row.ends.get(&one.owner).copied();
    let until = until.unwrap_or(row.at + one.remaining.as_millis() as u64);
    // A fencing token is the time of the grant in microseconds, or one more than an earlier token.
    // So a large token shows when the lock was granted.
    let since = (one.fence > 1_000_000_000_000_000).then_some(one.fence / 1_000);
    json!({
        "owner": one.owner,
        "since_ms": since.filter(|_| !one.is_reader), "until_ms": until,
        "token": one.fence.to_string(), "note": one.note.as_deref().map(clean), "slot": one.slot,
        "on": on, "of": of,
    })
}

fn on(view: &View, one: &Holder) -> (usize, usize) {
    match view {
        View::Lock(seen) => {
            let has = |(_, view): &&(_, NodeView)| match view {
                NodeView::Held(holder) => holder.owner == one.owner,
                NodeView::Readers { listed, .. } => {
                    listed.iter().any(|holder| holder.owner == one.owner)
                }
                _ => false,
            };
            (seen.nodes.iter().filter(has).count(), seen.nodes.len())
        }
        View::Semaphore(seen) => {
            let has = |(_, view): &&(_, NodePermits)| match view {
                NodePermits::Held(all) => all.iter().any(|holder| holder.owner == one.owner),
                _ => false,
            };
            (seen.nodes.iter().filter(has).count(), seen.nodes.len())
        }
    }
}

fn waiting(all: &[Waiter], holders: &[Holder], most: usize) -> Value {
    let waiter = |(at, one): (usize, &Waiter)| {
        let mode = if one.is_shared { "shared" } else { "exclusive" };
        let why = match (at, holders.first()) {
            (0, Some(holder)) if holder.is_reader && one.is_shared => {
                "it asks again in a moment".to_owned()
            }
            (0, Some(holder)) if holder.is_reader => "behind the readers".to_owned(),
            (0, Some(holder)) => format!("behind the holder {}", holder.owner),
            (0, None) => "first in the queue: the next grant is its own".to_owned(),
            (n, _) => format!("behind {n} in the queue"),
        };
        json!({ "place": at + 1, "handle": one.handle, "mode": mode, "since_ms": one.since,
                "why": why })
    };
    all.iter().enumerate().take(most).map(waiter).collect()
}

fn nodes(view: &View, now: u64) -> Value {
    let until = |left: std::time::Duration| now + left.as_millis() as u64;
    let one = |node: &str, state: &str| {
        json!({ "node": node, "state": state, "owner": null, "fence": null, "until_ms": null,
                "note": null, "why": null, "readers": null })
    };
    match view {
        View::Lock(seen) => seen
            .nodes
            .iter()
            .map(|(node, view)| match view {
                NodeView::Free => one(node, "free"),
                NodeView::Held(holder) => {
                    let mut of = one(node, "held");
                    of["owner"] = (&*holder.owner).into();
                    of["fence"] = holder.fence.get().to_string().into();
                    of["until_ms"] = until(holder.remaining).into();
                    of["note"] = holder.note.as_deref().map(clean).into();
                    of
                }
                NodeView::Readers { count, .. } => {
                    let mut of = one(node, "read");
                    of["readers"] = (*count).into();
                    of
                }
                NodeView::Kept(left) => {
                    let mut of = one(node, "kept");
                    of["until_ms"] = until(*left).into();
                    of
                }
                NodeView::Foreign(left) => {
                    let mut of = one(node, "foreign");
                    of["until_ms"] = left.map(until).into();
                    of
                }
                NodeView::Unknown(why) => {
                    let mut of = one(node, "unknown");
                    of["why"] = clean(&why.to_string()).into();
                    of
                }
                _ => one(node, "unknown"),
            })
            .collect(),
        View::Semaphore(seen) => seen
            .nodes
            .iter()
            .map(|(node, view)| match view {
                NodePermits::Held(all) => {
                    let mut of = one(node, if all.is_empty() { "free" } else { "held" });
                    of["permits"] = all.len().into();
                    of
                }
                NodePermits::Unknown(why) => {
                    let mut of = one(node, "unknown");
                    of["why"] = clean(&why.to_string()).into();
                    of
                }
                _ => one(node, "unknown"),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_did_not_answer_may_decide_who_holds_a_lock() {
        // Each character is the answer of a node. a, b: the owner that it reports, -: free, ?: no
        // answer.
        for (nodes, expected) in [
            ("a??", true),
            ("a?-", true),
            ("a--", false),
            ("?--", false),
            ("??-", true),
            ("ab-", false),
            ("ab?", true),
            ("a?---", false),
            ("a??--", true),
            ("?", true),
        ] {
            let node = |c: char| match c {
                '?' => None,
                '-' => Some(Vec::new()),
                owner => Some(vec![owner]),
            };
            let nodes_seen: Vec<_> = nodes.chars().map(node).collect();
            assert_eq!(is_undecided(&nodes_seen), expected, "{nodes}");
        }
    }
}
