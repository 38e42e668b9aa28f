//! Checks an event log for the rule about parked keys of batches. A key may be parked as lapsed
//! only if a handler has begun, or may have been about to begin.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Violation;
use super::holders::by;
use crate::event::{Answer, Event, EventKind, Nanos, SECOND, TaskId, Verb};

/// If a batch is dropped within this time after its beginning, each of its turns has sent only one
/// request, because the deadline for a node's answer is later.
const SOON: Nanos = SECOND / 4;

/// A batch that its client dropped early. `blamed` are its keys that were found parked, although no
/// handler of the key had begun and no other call can have left a claim.
struct Dropped {
    who: TaskId,
    at: Nanos,
    turns: u16,
    keys: BTreeSet<Arc<str>>,
    blamed: BTreeSet<Arc<str>>,
}

/// A call of a batch of keys that has not ended yet.
struct Open {
    since: Nanos,
    turns: u16,
    keys: BTreeSet<Arc<str>>,
}

#[derive(Default)]
struct Keys {
    /// Keys that may be parked. Either a handler of the key began, or a call that may have left a
    /// claim ended without a result for the key.
    explained: BTreeSet<Arc<str>>,
    open: BTreeMap<TaskId, Open>,
    /// Calls of a batch of keys that have ended, each with the time of its end.
    ended: Vec<(Nanos, Open)>,
    dropped: Vec<Dropped>,
    /// Time of each task's last call of a batch.
    requested: BTreeMap<TaskId, Nanos>,
}

pub(super) fn judge(events: &[Event]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut keys = Keys::default();
    for e in events {
        match &e.kind {
            EventKind::Batch { keys: of, turns } => {
                let of = of.iter().cloned().collect();
                keys.requested.insert(e.who, e.at);
                keys.open.insert(e.who, Open { since: e.at, turns: *turns, keys: of });
            }
            EventKind::End { verb: Verb::RunEach | Verb::ClaimMany, answer, .. } => {
                let Some(batch) = keys.open.remove(&e.who) else { continue };
                if *answer == Answer::Dropped {
                    keys.drop(batch, e);
                } else {
                    keys.ended.push((e.at, batch));
                }
            }
            EventKind::Died { .. } => {
                let of = |who: &TaskId| (who.client, who.life) == (e.who.client, e.who.life);
                for (_, batch) in keys.open.iter().filter(|(who, _)| of(who)) {
                    keys.explained.extend(batch.keys.iter().cloned());
                }
                keys.open.retain(|who, _| !of(who));
            }
            EventKind::Started { key, .. } | EventKind::Unclear { key } => {
                keys.explained.insert(Arc::clone(key));
            }
            EventKind::Parked { key, lapsed: true } => found.extend(keys.parked(key, e)),
            _ => {}
        }
    }
    found
}

impl Keys {
    /// Records that the client dropped a batch. If it was dropped early, each turn has claimed at
    /// most one key without starting its handler.
    fn drop(&mut self, batch: Open, e: &Event) {
        if e.at - batch.since >= SOON {
            self.explained.extend(batch.keys);
            return;
        }
        let Open { turns, keys, .. } = batch;
        let blamed = BTreeSet::new();
        self.dropped.push(Dropped { who: e.who, at: e.at, turns, keys, blamed });
    }

    /// Checks a key that a call reported as parked because an earlier attempt left no result.
    fn parked(&mut self, key: &Arc<str>, e: &Event) -> Option<Violation> {
        let others = self.open.iter().filter(|(who, _)| **who != e.who).map(|(_, batch)| batch);
        // The call read the record of the key at some time between the call's beginning and this
        // event.
        let since = self.requested.get(&e.who).copied().unwrap_or(e.at);
        let ended = self.ended.iter().rev().take_while(|(end, _)| *end >= since);
        let mut beside = others.chain(ended.map(|(_, batch)| batch));
        if self.explained.contains(key) || beside.any(|batch| batch.keys.contains(key)) {
            self.explained.insert(Arc::clone(key));
            return None;
        }
        let rule = "parked only where a handler began";
        let mut dropped = self.dropped.iter_mut().filter(|d| d.keys.contains(key));
        let (first, others) = (dropped.next(), dropped.next());
        let Some(batch) = first else {
            let text = format!("{} found it parked, and no handler had begun", by(e.who));
            return Some(Violation::new(rule, key, e.at, text));
        };
        if others.is_some() {
            // Several batches with this key were dropped, and one of them left the claim because of
            // which the key is parked. The log does not show which batch.
            self.explained.insert(Arc::clone(key));
            return None;
        }
        batch.blamed.insert(Arc::clone(key));
        (batch.blamed.len() > usize::from(batch.turns)).then(|| {
            let text = format!(
                "{} dropped a batch of {} turns at {}, and {} of its keys are parked whose \
                 handlers had not begun",
                by(batch.who),
                batch.turns,
                super::seconds(batch.at),
                batch.blamed.len()
            );
            Violation::new(rule, key, e.at, text)
        })
    }
}
