//! Checks an event log for three rules: each operation ends in time, no client ends by itself, and
//! each client is served after the end of all faults.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::holders::by;
use super::{Violation, seconds};
use crate::event::{Event, EventKind, Nanos, SECOND, TaskId, Verb};

/// Additional time that an operation may take on a busy machine.
const GRACE: Nanos = 5 * SECOND;

struct Open {
    verb: Verb,
    name: Arc<str>,
    at: Nanos,
    within: Nanos,
}

pub(super) fn judge(events: &[Event]) -> Vec<Violation> {
    let pauses = pauses(events);
    let mut found = Vec::new();
    let mut open: BTreeMap<TaskId, Open> = BTreeMap::new();
    let mut calm = None;
    let mut check = |who: TaskId, open: &Open, end: Nanos| {
        let stopped = pauses.get(&who.client).map_or(0, |p| overlap(p, open.at, end));
        if end - open.at > open.within + stopped + GRACE {
            let text = format!(
                "{}: {} had no answer for {} s; promised were {} s, and it was stopped for {} s",
                by(who),
                open.verb.name(),
                seconds(end - open.at),
                seconds(open.within),
                seconds(stopped)
            );
            found.push(Violation::new("an answer in time", &open.name, end, text));
        }
    };
    let mut died = Vec::new();
    for e in events {
        match &e.kind {
            EventKind::Begin { verb, name, within } => {
                let (verb, name, within) = (*verb, Arc::clone(name), within * (SECOND / 1_000));
                open.insert(e.who, Open { verb, name, at: e.at, within });
            }
            EventKind::End { .. } => {
                if let Some(o) = open.remove(&e.who) {
                    check(e.who, &o, e.at);
                }
            }
            EventKind::Died { wanted } => {
                let of = |w: &TaskId| (w.client, w.life) == (e.who.client, e.who.life);
                let theirs: Vec<_> = open.keys().copied().filter(of).collect();
                for who in theirs {
                    let o = open.remove(&who).expect("just listed");
                    check(who, &o, e.at);
                }
                if !wanted {
                    died.push((e.who, e.at));
                }
            }
            EventKind::Calm => calm = Some(e.at),
            EventKind::Served => calm = None,
            _ => {}
        }
    }
    let end = events.last().map_or(0, |e| e.at);
    for (who, o) in &open {
        check(*who, o, end);
    }
    for (who, at) in died {
        let text = format!("client {} ended by itself", who.client);
        found.push(Violation::new("no client ends by itself", &Arc::from(""), at, text));
    }
    if let Some(at) = calm {
        let text =
            format!("not all were served within {} s after the end of faults", seconds(end - at));
        found.push(Violation::new("all are served", &Arc::from(""), end, text));
    }
    found
}

type Pauses = BTreeMap<u8, Vec<(Nanos, Nanos)>>;

fn pauses(events: &[Event]) -> Pauses {
    let mut pauses = Pauses::new();
    for e in events {
        if let EventKind::Frozen { until } | EventKind::Stalled { until } = e.kind {
            pauses.entry(e.who.client).or_default().push((e.at, until));
        }
    }
    pauses
}

fn overlap(pauses: &[(Nanos, Nanos)], from: Nanos, to: Nanos) -> Nanos {
    pauses.iter().map(|(a, b)| to.min(*b).saturating_sub(from.max(*a))).sum()
}
