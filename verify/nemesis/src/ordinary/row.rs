//! Figures of `nemesis ordinary` for one event in one deployment, and the tables with all figures.

use std::fmt::Write as _;
use std::time::Duration;

use palisade::node::Loss;
use serde::Serialize;
use tokio::time::Instant;

use super::event::Happening;
use super::fleet::Kind;
use super::load::{ACCEPTED, End, Kind as Request, Seen};

/// Longest gap without a grant that a busy machine explains, in seconds.
const BUSY_S: f64 = 5.0;

/// A line of the JSON output: one ordinary event (such as a restart) in one deployment, for one
/// kind of request.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) deployment: &'static str,
    pub(super) event: &'static str,
    /// True if the requests have a birth: their creation time (`created_at`).
    pub(super) births: bool,
    /// Length of a loss of data that the requests accept, in seconds.
    pub(super) accept_loss_s: f64,
    /// Longest time without a grant of a lock, in seconds.
    pub(super) no_locks_s: f64,
    /// Longest time without the execution of a new request, in seconds. If the last request was
    /// parked, this time ends when the servers would no longer park new keys, according to their
    /// own reports.
    pub(super) no_new_keys_s: f64,
    pub(super) parked: usize,
    /// Number of requests that the application made while it was observed, at ten per second.
    pub(super) made: usize,
    /// Number of deliveries that returned the stored result, out of `delivered`. Only deliveries
    /// before the first new grant of a lock count.
    pub(super) replayed: usize,
    pub(super) delivered: usize,
    /// Number of parked requests, out of 1,000 requests that were made before the event and
    /// delivered after it.
    pub(super) backlog_parked: usize,
    /// Time for which requests are parked because the nodes may have lost their records, in
    /// seconds. It begins at the first parked request, and ends when new requests would no longer
    /// be parked.
    pub(super) unborn_refused_s: f64,
    /// Length of the last loss of data of the first node, in seconds, as the node reports it: the
    /// longest time whose writes may be lost. The failover window L is included, the clock error is
    /// not. `None` if the loss has no limit.
    pub(super) proved_loss_s: Option<f64>,
    /// True loss in seconds: time from the first execution whose result is missing on the
    /// deployment's first node to the event that caused the loss.
    pub(super) true_loss_s: f64,
}

impl Row {
    pub(super) fn of(
        (kind, what): (Kind, Happening),
        of: Request,
        seen: &Seen,
        t: Instant,
    ) -> Self {
        let (locks, locks_end) = gap(&seen.grants, t);
        let requests = || seen.requests(of).iter();
        let parked = requests().filter_map(|(_, end)| match end {
            Some((at, End::Parked(left))) if *at >= t => Some((*at, *left)),
            _ => None,
        });
        let last = parked.clone().max_by_key(|(at, _)| *at);
        let first = parked.clone().map(|(at, _)| at).min();
        let refused = first.zip(last).map(|(first, (at, left))| seconds(at + left, first));
        let executed = seen.executed(of);
        let no_new_keys_s = match last {
            // The last request was parked, and no later request was executed.
            Some((at, left)) if executed.last().is_none_or(|done| *done < at) => {
                seconds(at + left, t)
            }
            _ => gap(&executed, t).0,
        };
        let old = || seen.old.iter().filter(|(at, _)| *at >= t && *at <= locks_end);
        Self {
            deployment: kind.name(),
            event: what.name(),
            births: of.births,
            accept_loss_s: if of.accepts { ACCEPTED.as_secs_f64() } else { 0.0 },
            no_locks_s: locks,
            no_new_keys_s,
            parked: parked.count(),
            made: requests().filter(|(made, _)| *made >= t).count(),
            replayed: old().filter(|(_, replayed)| *replayed).count(),
            delivered: old().count(),
            backlog_parked: 0,
            unborn_refused_s: refused.unwrap_or(0.0),
            proved_loss_s: Some(0.0),
            true_loss_s: 0.0,
        }
    }

    pub(super) fn costs(&self) -> bool {
        self.parked > 0 || self.no_locks_s > BUSY_S || self.no_new_keys_s > BUSY_S
    }

    /// Adds the number of backlog requests that were parked, the loss of data that the node
    /// reports, and the true loss.
    pub(super) fn with(mut self, backlog: usize, proved: Option<Loss>, lost: Duration) -> Self {
        self.backlog_parked = backlog;
        let length = |loss: Loss| loss.length().map(|length| length.as_secs_f64());
        self.proved_loss_s = proved.map_or(Some(0.0), length);
        self.true_loss_s = lost.as_millis() as f64 / 1_000.0;
        self
    }
}

/// Returns the longest time between two successive points after `since`, in seconds, and the end of
/// this time.
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

/// The four rows of figures from which one table cell is made. Requests without and with a birth,
/// each in the namespace that accepts no loss of data and in the namespace that accepts a short
/// one.
struct Rows<'a> {
    plain: &'a Row,
    born: &'a Row,
    accepting: &'a Row,
    accepting_born: &'a Row,
}

/// A function that formats one cell of a table.
type Cell = fn(&Rows<'_>) -> String;

const TABLES: [(&str, Cell); 10] = [
    ("Seconds without new locks", |rows| span(rows.born.no_locks_s)),
    ("Seconds without new keys, keys with a birth", |rows| span(rows.born.no_new_keys_s)),
    ("Seconds without new keys, keys without a birth", |rows| span(rows.plain.no_new_keys_s)),
    ("The same with `accept_loss`", |rows| span(rows.accepting.no_new_keys_s)),
    ("Keys parked of ten new ones a second: with a birth, without", |rows| {
        parked(rows.born, rows.plain)
    }),
    ("The same with `accept_loss`", |rows| parked(rows.accepting_born, rows.accepting)),
    ("Of a backlog of 1,000 keys parked: with a birth, without", |rows| {
        format!("{}, {}", rows.born.backlog_parked, rows.plain.backlog_parked)
    }),
    ("The same with `accept_loss`", |rows| {
        format!("{}, {}", rows.accepting_born.backlog_parked, rows.accepting.backlog_parked)
    }),
    ("Seconds of writes lost by the node: at most, as it proves, and in truth", |rows| {
        let proved = rows.plain.proved_loss_s.map_or("all".to_owned(), span);
        format!("{proved}, {}", span(rows.plain.true_loss_s))
    }),
    ("Results replayed until locks are granted again, of deliveries", |rows| {
        if rows.born.delivered == 0 || rows.born.no_locks_s < 1.0 {
            return "-".to_owned();
        }
        format!("{} of {}", rows.born.replayed, rows.born.delivered)
    }),
];

fn parked(born: &Row, plain: &Row) -> String {
    let all = plain.parked > 0 && plain.unborn_refused_s > 3_600.0;
    let plain = if all { "all".to_owned() } else { plain.parked.to_string() };
    format!("{}, {plain}", born.parked)
}

fn span(seconds: f64) -> String {
    if seconds > 3_600.0 { format!("{:.0} h", seconds / 3_600.0) } else { format!("{seconds:.1}") }
}

pub(super) fn tables(rows: &[Row]) -> String {
    let mut text = String::new();
    for (title, cell) in TABLES {
        let _ = write!(text, "{title}\n\n| {:28}", "");
        for what in Happening::ALL {
            let _ = write!(text, "| {} ", what.name());
        }
        let _ = writeln!(text, "|\n|{}", "---|".repeat(1 + Happening::ALL.len()));
        for kind in Kind::ALL {
            let name = kind.name().replace("AllReplicas", "`AllReplicas`");
            let _ = write!(text, "| {name:28}");
            for what in Happening::ALL {
                let shown = found(rows, kind, what).map_or_else(|| "-".to_owned(), |r| cell(&r));
                let _ = write!(text, "| {shown:width$} ", width = what.name().len());
            }
            text.push_str("|\n");
        }
        text.push('\n');
    }
    text
}

fn found(rows: &[Row], kind: Kind, what: Happening) -> Option<Rows<'_>> {
    let find = |births, accepts| {
        rows.iter().find(|r| {
            (r.deployment, r.event) == (kind.name(), what.name())
                && (r.births, r.accept_loss_s > 0.0) == (births, accepts)
        })
    };
    Some(Rows {
        plain: find(false, false)?,
        born: find(true, false)?,
        accepting: find(false, true)?,
        accepting_born: find(true, true)?,
    })
}
