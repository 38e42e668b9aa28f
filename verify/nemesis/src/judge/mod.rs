//! Checks a log of events for broken rules, without the library and without the decisions of the
//! ledger. A client that was killed or stopped counts as a holder until the last deadline that it
//! reported.

mod answers;
mod batches;
mod elections;
mod holders;
mod kinds;
mod orders;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::event::{Event, EventKind, Nanos, SECOND};

pub(crate) use holders::{Hold, holds, judge as holders};

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) rule: &'static str,
    /// Name of the lock, election, order or key. Empty if the violation is about a client.
    pub(crate) name: Arc<str>,
    pub(crate) at: Nanos,
    pub(crate) text: String,
}

impl Violation {
    pub(crate) fn new(rule: &'static str, name: &Arc<str>, at: Nanos, text: String) -> Self {
        Self { rule, name: Arc::clone(name), at, text }
    }
}

pub(crate) fn judge(events: &[Event]) -> Vec<Violation> {
    let mut found = holders::judge(events);
    found.extend(kinds::judge(events));
    found.extend(orders::judge(events));
    found.extend(batches::judge(events));
    found.extend(elections::judge(events));
    found.extend(answers::judge(events));
    found.sort_by(|a, b| (a.at, a.rule).cmp(&(b.at, b.rule)));
    found
}

/// Sorts a log by time. Events of a stopped client arrive late.
pub(crate) fn sort(events: &mut [Event]) {
    events.sort_by_key(|e| e.at);
}

/// A successful attempt to get a lock or a leadership: its beginning, its end and its token.
#[derive(Clone, Debug)]
struct Granted {
    since: Nanos,
    at: Nanos,
    token: u64,
    by: String,
}

/// Checks tokens. Each token must be larger than all tokens that were granted before its attempt
/// began. No token may be granted twice.
fn tokens(of: &BTreeMap<Arc<str>, Vec<Granted>>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (name, granted) in of {
        let mut by_grant: Vec<_> = granted.iter().collect();
        by_grant.sort_by_key(|g| g.at);
        let mut by_begin = by_grant.clone();
        by_begin.sort_by_key(|g| g.since);
        let (mut next, mut largest) = (0, None::<&Granted>);
        for g in by_begin {
            while next < by_grant.len() && by_grant[next].at < g.since {
                let earlier = by_grant[next];
                largest = largest.filter(|l| l.token >= earlier.token).or(Some(earlier));
                next += 1;
            }
            if let Some(l) = largest.filter(|l| l.token >= g.token) {
                let text = format!(
                    "{} was granted token {} by an attempt that began after {} had {}",
                    g.by, g.token, l.by, l.token
                );
                found.push(Violation::new("token is larger than all before", name, g.at, text));
            }
        }
        by_grant.sort_by_key(|g| (g.token, g.at));
        for pair in by_grant.windows(2).filter(|p| p[0].token == p[1].token) {
            let text = format!("{} and {} both have {}", pair[0].by, pair[1].by, pair[1].token);
            found.push(Violation::new("no token twice", name, pair[1].at, text));
        }
    }
    found
}

/// Returns the log lines that explain a violation: the events about the same lock, election or key
/// until shortly after the violation, and the faults around this time.
pub(crate) fn story(events: &[Event], violation: &Violation) -> Vec<String> {
    let start = events.first().map_or(0, |e| e.at);
    let after = events.partition_point(|e| e.at <= violation.at);
    let about = |e: &&Event| e.kind.about() == Some(&violation.name);
    let world = |e: &&Event| {
        matches!(
            e.kind,
            EventKind::Fault { .. }
                | EventKind::Healed { .. }
                | EventKind::Frozen { .. }
                | EventKind::Died { .. }
        ) && e.at + 20 * SECOND > violation.at
    };
    let mut lines: Vec<&Event> = events[..after].iter().rev().filter(about).take(14).collect();
    lines.extend(events[..after].iter().rev().filter(world).take(8));
    lines.extend(events[after..].iter().filter(about).take(4));
    sort_refs(&mut lines);
    lines.into_iter().map(|e| line(e, start)).collect()
}

fn sort_refs(lines: &mut [&Event]) {
    lines.sort_by_key(|e| e.at);
}

fn line(e: &Event, start: Nanos) -> String {
    let at = seconds(e.at.saturating_sub(start));
    let who = match e.who.client {
        0 => "nemesis".to_owned(),
        n => format!("client {n} life {} task {}", e.who.life, e.who.task),
    };
    let mut what = serde_json::to_value(&e.kind).unwrap_or_default();
    for key in ["until", "since"] {
        if let Some(at) = what.get(key).and_then(serde_json::Value::as_u64) {
            what[key] = seconds(at.saturating_sub(start)).into();
        }
    }
    format!("{at} s  {who}: {what}")
}

pub(crate) fn seconds(nanos: Nanos) -> String {
    format!("{:.4}", nanos as f64 / SECOND as f64)
}
