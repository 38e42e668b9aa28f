//! The figures of one event in one deployment, and the tables of all.

use std::fmt::Write as _;

use serde::Serialize;
use tokio::time::Instant;

use super::event::Happening;
use super::fleet::Kind;
use super::load::{End, Seen};

/// One row of the JSON: an event in a deployment, for new keys of one kind.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) deployment: &'static str,
    pub(super) event: &'static str,
    /// Whether requests say when they were made.
    pub(super) births: bool,
    /// Longest time in which nobody was granted a fresh lock.
    pub(super) no_locks_s: f64,
    /// Longest time in which no new request was executed. Where none was any more: until the
    /// servers will know again, as they say themselves.
    pub(super) no_new_keys_s: f64,
    pub(super) parked: usize,
    /// Requests made while it was looked on: ten a second.
    pub(super) made: usize,
    /// Deliveries of requests with a result that were answered by it, until locks were granted
    /// again; and how many there were.
    pub(super) replayed: usize,
    pub(super) delivered: usize,
}

impl Row {
    /// What was seen from this moment on.
    pub(super) fn of(
        (kind, what): (Kind, Happening),
        births: bool,
        seen: &Seen,
        t: Instant,
    ) -> Self {
        let (locks, locks_end) = gap(&seen.grants, t);
        let requests = || seen.requests[usize::from(births)].iter();
        let parked = requests().filter_map(|(_, end)| match end {
            Some((at, End::Parked(left))) if *at >= t => Some((*at, *left)),
            _ => None,
        });
        let last = parked.clone().max_by_key(|(at, _)| *at);
        let executed = seen.executed(births);
        let no_new_keys_s = match last {
            // Parked to the last: nothing new was executed any more.
            Some((at, left)) if executed.last().is_none_or(|done| *done < at) => {
                seconds(at + left, t)
            }
            _ => gap(&executed, t).0,
        };
        let old = || seen.old.iter().filter(|(at, _)| *at >= t && *at <= locks_end);
        Self {
            deployment: kind.name(),
            event: what.name(),
            births,
            no_locks_s: locks,
            no_new_keys_s,
            parked: parked.count(),
            made: requests().filter(|(made, _)| *made >= t).count(),
            replayed: old().filter(|(_, replayed)| *replayed).count(),
            delivered: old().count(),
        }
    }
}

/// The longest time without any, in seconds, and when it was over.
fn gap(points: &[Instant], since: Instant) -> (f64, Instant) {
    let first = points.partition_point(|at| *at < since);
    let mut last = first.checked_sub(1).map_or(since, |n| points[n]);
    let mut longest = (0.0, since);
    for at in &points[first..] {
        if seconds(*at, last) > longest.0 {
            longest = (seconds(*at, last), *at);
        }
        last = *at;
    }
    longest
}

fn seconds(at: Instant, since: Instant) -> f64 {
    (at.saturating_duration_since(since).as_millis() as f64) / 1_000.0
}

/// What a table shows of the rows with and without births.
type Cell = fn(&Row, &Row) -> String;

const TABLES: [(&str, Cell); 5] = [
    ("Seconds without new locks", |_, born| span(born.no_locks_s)),
    ("Seconds without new keys, keys with a birth", |_, born| span(born.no_new_keys_s)),
    ("Seconds without new keys, keys without a birth", |plain, _| span(plain.no_new_keys_s)),
    ("Keys parked of ten new ones a second: with a birth, without", |plain, born| {
        let all = if plain.parked > 0 && plain.no_new_keys_s > 3_600.0 { "all" } else { "" };
        let plain = if all.is_empty() { plain.parked.to_string() } else { all.to_owned() };
        format!("{}, {plain}", born.parked)
    }),
    ("Results replayed until locks are granted again, of deliveries", |_, born| {
        if born.delivered == 0 || born.no_locks_s < 1.0 {
            return "-".to_owned();
        }
        format!("{} of {}", born.replayed, born.delivered)
    }),
];

fn span(seconds: f64) -> String {
    if seconds > 3_600.0 { format!("{:.0} h", seconds / 3_600.0) } else { format!("{seconds:.1}") }
}

/// All tables, as Markdown.
pub(super) fn tables(rows: &[Row]) -> String {
    let mut text = String::new();
    for (title, cell) in TABLES {
        let _ = write!(text, "{title}\n\n| {:25}", "");
        for what in Happening::ALL {
            let _ = write!(text, "| {} ", what.name());
        }
        let _ = writeln!(text, "|\n|{}", "---|".repeat(1 + Happening::ALL.len()));
        for kind in Kind::ALL {
            let name = kind.name().replace("AllReplicas", "`AllReplicas`");
            let _ = write!(text, "| {name:25}");
            for what in Happening::ALL {
                let find = |births| {
                    rows.iter().find(|r| {
                        (r.deployment, r.event, r.births) == (kind.name(), what.name(), births)
                    })
                };
                let shown = match (find(false), find(true)) {
                    (Some(plain), Some(born)) => cell(plain, born),
                    _ => "-".to_owned(),
                };
                let _ = write!(text, "| {shown:width$} ", width = what.name().len());
            }
            text.push_str("|\n");
        }
        text.push('\n');
    }
    text
}
