//! Checks an event log for broken rules about elections: the terms and values that readers and
//! observers receive.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Violation;
use super::holders::by;
use crate::event::{Event, EventKind, Nanos, TaskId, Verb};

pub(super) fn judge(events: &[Event]) -> Vec<Violation> {
    let mut found = stale(events);
    found.extend(shown(events));
    found
}

/// Returns the reads with a term that was already outdated: a larger term was proclaimed before the
/// read began.
fn stale(events: &[Event]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut begun: BTreeMap<TaskId, Nanos> = BTreeMap::new();
    // For each election: the times at which leaders published a value, each with the largest term
    // so far.
    let mut won: BTreeMap<&Arc<str>, Vec<(Nanos, u64)>> = BTreeMap::new();
    for e in events {
        match &e.kind {
            EventKind::Begin { verb: Verb::Leader, .. } => {
                begun.insert(e.who, e.at);
            }
            EventKind::Says { name, term, .. } => {
                let list = won.entry(name).or_default();
                let largest = list.last().map_or(*term, |l| l.1.max(*term));
                list.push((e.at, largest));
            }
            EventKind::Seen { name, term, stream: false, .. } => {
                let Some(before) = begun.get(&e.who).and_then(|begun| {
                    let list = won.get(name)?;
                    let at = list.partition_point(|(at, _)| at < begun).checked_sub(1)?;
                    Some(list[at].1).filter(|before| before > term)
                }) else {
                    continue;
                };
                let text = format!(
                    "{} asked after term {before} was proclaimed, and was shown {term}",
                    by(e.who)
                );
                found.push(Violation::new("a read is not older", name, e.at, text));
            }
            _ => {}
        }
    }
    found
}

fn shown(events: &[Event]) -> Vec<Violation> {
    let (terms, values) = proclaimed(events);
    let mut found = Vec::new();
    let mut streams: BTreeMap<(TaskId, &Arc<str>), u64> = BTreeMap::new();
    let mut leaders = Terms::new();
    for e in events {
        let EventKind::Seen { name, term, value, stream } = &e.kind else { continue };
        let base = base(value);
        // A campaign without a reply in time tries again with the same value and a larger term. So
        // a value may have a larger term than the received one.
        if values.get(&(name, base)).is_some_and(|t| t < term)
            || terms.get(&(name, *term)).is_some_and(|b| *b != base)
            || *leaders.entry((name, *term)).or_insert(base) != base
        {
            let text = format!("{} was shown {value:?} in term {term}", by(e.who));
            found.push(Violation::new("a value with its own term", name, e.at, text));
        }
        let last = if *stream { streams.insert((e.who, name), *term) } else { None };
        if let Some(last) = last.filter(|l| l > term) {
            let text = format!("{} was shown {term} after {last}", by(e.who));
            found.push(Violation::new("terms only grow", name, e.at, text));
        }
    }
    found
}

type Terms<'a> = BTreeMap<(&'a Arc<str>, u64), &'a str>;
type Values<'a> = BTreeMap<(&'a Arc<str>, &'a str), u64>;

fn proclaimed(events: &[Event]) -> (Terms<'_>, Values<'_>) {
    let (mut terms, mut values) = (Terms::new(), Values::new());
    for e in events {
        if let EventKind::Says { name, term, value } = &e.kind {
            terms.insert((name, *term), base(value));
            values.insert((name, base(value)), *term);
        }
    }
    (terms, values)
}

/// Returns the part that all values of one candidacy have in common. A candidacy publishes `1.2.3`,
/// then `1.2.3/40` and so on.
fn base(value: &str) -> &str {
    value.split('/').next().unwrap_or(value)
}
