//! Report at the end of a run of `nemesis`: faults by kind, operations by result, broken rules with
//! the events around them, and one line of JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use serde::Serialize;

use crate::event::{Answer, Event, EventKind, Nanos, SECOND, Verb};
use crate::judge::{Violation, story};
use crate::locks::record::What;

/// Time after a fault in which its effects may continue: a failover, and a quarantine.
const AFTER: Nanos = 10 * SECOND;

/// A fault that was injected, with its beginning and its end.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Arc<str>,
    pub(crate) target: Arc<str>,
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
}

pub(crate) fn faults(events: &[Event]) -> Vec<Fault> {
    let end = events.last().map_or(0, |e| e.at);
    let mut faults = BTreeMap::new();
    for e in events {
        match &e.kind {
            EventKind::Fault { id, kind, target } => {
                let (kind, target) = (Arc::clone(kind), Arc::clone(target));
                faults.insert(*id, Fault { kind, target, from: e.at, to: end });
            }
            EventKind::Healed { id } => {
                if let Some(fault) = faults.get_mut(id) {
                    fault.to = e.at;
                }
            }
            EventKind::Missed { id } => {
                faults.remove(id);
            }
            _ => {}
        }
    }
    faults.into_values().collect()
}

#[derive(Default)]
struct Row {
    count: u32,
    /// Longest time in which no client completed an operation, in nanoseconds.
    silence: Nanos,
    /// Longest time in which a single client completed no operation, in nanoseconds. Clients with a
    /// fault of their own do not count.
    one: Nanos,
    refused: usize,
}

#[derive(Debug, Serialize)]
struct Line {
    seconds: u64,
    faults: usize,
    kinds: usize,
    operations: usize,
    violations: usize,
    refusals: usize,
    longest_silence_ms: u64,
    /// Grants of each kind of lock that is not a mutex.
    grants: BTreeMap<Arc<str>, usize>,
    seed: u64,
}

pub(crate) fn report(events: &[Event], found: &[Violation], seed: u64, seconds: u64) -> String {
    let faults = faults(events);
    let done = Done::of(events);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "\n{:34}{:>6}{:>12}{:>12}{:>10}",
        "fault", "count", "silence ms", "one ms", "refusals"
    );
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for fault in &faults {
        let (from, to) = (fault.from, fault.to + AFTER);
        let row = rows.entry(&fault.kind).or_default();
        row.count += 1;
        row.silence = row.silence.max(done.silence(from, to));
        row.one = row.one.max(done.one(&faults, from, to));
        row.refused += done.refused(from, to);
    }
    for (kind, row) in &rows {
        let (silence, one) = (row.silence / 1_000_000, row.one / 1_000_000);
        let _ = writeln!(out, "{kind:34}{:>6}{silence:>12}{one:>12}{:>10}", row.count, row.refused);
    }
    out.push_str(
        "silence: longest time after such a fault in which no client got anything done; one: the \
         same for one\nclient that was not struck itself; refusals: while it lasted and 10 s after \
         (faults overlap)\n",
    );
    verbs(&mut out, events);
    for v in found {
        let at = v.at.saturating_sub(events.first().map_or(0, |e| e.at)) as f64 / SECOND as f64;
        let _ = writeln!(out, "\nBROKEN at {at:.4} s: {}: {}: {}", v.rule, v.name, v.text);
        for line in story(events, v) {
            let _ = writeln!(out, "    {line}");
        }
    }
    let verbs = events.iter().filter(|e| matches!(e.kind, EventKind::End { .. })).count();
    let verdict = if found.is_empty() { "no promise was broken" } else { "PROMISES BROKEN" };
    let _ = writeln!(out, "\n{verdict}; {} faults, {verbs} operations, SEED={seed}", faults.len());
    let line = Line {
        seconds,
        faults: faults.len(),
        kinds: rows.len(),
        operations: verbs,
        violations: found.len(),
        refusals: done.refused.len(),
        longest_silence_ms: rows.values().map(|r| r.silence).max().unwrap_or(0) / 1_000_000,
        grants: grants(events),
        seed,
    };
    out.push_str(&serde_json::to_string(&line).expect("numbers are always JSON"));
    out
}

fn grants(events: &[Event]) -> BTreeMap<Arc<str>, usize> {
    let mut all = BTreeMap::new();
    for e in events {
        if let EventKind::Lock { name, seen: What::Held(_) } = &e.kind {
            *all.entry(Arc::clone(name)).or_default() += 1;
        }
    }
    all
}

fn verbs(out: &mut String, events: &[Event]) {
    let mut table: BTreeMap<(Verb, Answer), usize> = BTreeMap::new();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    let mut calm = false;
    for e in events {
        let kind = match &e.kind {
            EventKind::End { verb, answer, .. } => {
                *table.entry((*verb, *answer)).or_default() += 1;
                continue;
            }
            EventKind::Write { accepted: true, .. } => "writes under a lock, accepted",
            EventKind::Write { accepted: false, .. } => {
                "writes under a lock, refused for an old token"
            }
            EventKind::Booked { accepted: true, .. } => "orders booked",
            EventKind::Booked { accepted: false, .. } => "bookings refused for an old token",
            EventKind::Started { valid: true, .. } => "handlers started",
            EventKind::Started { valid: false, .. } => "handlers started when the claim was over",
            EventKind::Took { .. } => "locks taken over from a holder",
            EventKind::Over { lost: true, .. } => "locks and terms lost before they were given up",
            EventKind::Acted { .. } => "effects of keys of batches",
            EventKind::Parked { lapsed: true, .. } => "keys found parked after a handler began",
            EventKind::Parked { lapsed: false, .. } => "keys found parked after a loss of data",
            EventKind::Decided { rerun: true, .. } => "parked keys that an operator ran again",
            EventKind::Decided { rerun: false, .. } => "parked keys that an operator resolved",
            EventKind::Seen { .. } => "leaders shown to observers and readers",
            // The clients that the nemesis kills at the end of the run do not count.
            EventKind::Died { .. } if !calm => "clients killed",
            EventKind::Calm => {
                calm = true;
                continue;
            }
            _ => continue,
        };
        *kinds.entry(kind).or_default() += 1;
    }
    let answers = [Answer::Done, Answer::Taken, Answer::Refused, Answer::Lost, Answer::Dropped];
    let _ = writeln!(
        out,
        "\n{:14}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "operation", "done", "taken", "refused", "lost", "dropped"
    );
    for verb in table.keys().map(|k| k.0).collect::<BTreeSet<_>>() {
        let _ = write!(out, "{:14}", verb.name());
        for answer in answers {
            let n = table.get(&(verb, answer)).copied().unwrap_or(0);
            let _ = write!(out, "{n:>10}");
        }
        out.push('\n');
    }
    out.push('\n');
    for (kind, n) in kinds {
        let _ = writeln!(out, "{n:>10}  {kind}");
    }
}

/// Times at which operations were completed, and times at which operations were refused.
struct Done {
    all: Vec<Nanos>,
    by_client: BTreeMap<u8, Vec<Nanos>>,
    refused: Vec<Nanos>,
}

impl Done {
    fn of(events: &[Event]) -> Self {
        let mut done = Self { all: Vec::new(), by_client: BTreeMap::new(), refused: Vec::new() };
        for e in events {
            let EventKind::End { verb, answer, .. } = &e.kind else { continue };
            // These operations do not count as completed work. A read may come from a cache. The
            // end of an earlier lease or claim does not prove that the nodes grant new ones.
            let ends = matches!(
                verb,
                Verb::Release
                    | Verb::Resign
                    | Verb::ForceRelease
                    | Verb::CompleteMany
                    | Verb::HandOver
            );
            let counts = !ends && *verb != Verb::Leader;
            match answer {
                Answer::Done if counts => {
                    done.all.push(e.at);
                    done.by_client.entry(e.who.client).or_default().push(e.at);
                }
                Answer::Refused => done.refused.push(e.at),
                _ => {}
            }
        }
        done
    }

    fn silence(&self, from: Nanos, to: Nanos) -> Nanos {
        gap(&self.all, from, to)
    }

    /// Returns the longest time without a completed operation of a single client, among the clients
    /// that had no fault of their own near this time.
    fn one(&self, faults: &[Fault], from: Nanos, to: Nanos) -> Nanos {
        let struck = |n: &u8| {
            let name = format!("client {n}");
            faults.iter().any(|f| *f.target == *name && f.from < to && f.to + AFTER > from)
        };
        let whole = self.by_client.iter().filter(|(n, _)| !struck(n));
        whole.map(|(_, done)| gap(done, from, to)).max().unwrap_or(0)
    }

    fn refused(&self, from: Nanos, to: Nanos) -> usize {
        self.refused.iter().filter(|at| (from..to).contains(at)).count()
    }
}

/// Returns the longest time between two successive times of the list `beats`. At least a part of
/// this time must lie between `from` and `to`.
fn gap(beats: &[Nanos], from: Nanos, to: Nanos) -> Nanos {
    let first = beats.partition_point(|b| *b < from).saturating_sub(1);
    let last = (beats.partition_point(|b| *b < to) + 1).min(beats.len());
    let inside = beats.get(first..last).unwrap_or_default();
    inside.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0)
}
