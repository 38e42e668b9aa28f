//! Checks an event log for broken rules about locks of other kinds than mutexes, with the checks of
//! the command `nemesis locks`.

use super::Violation;
use crate::event::{Event, EventKind};
use crate::locks::Kind;
use crate::locks::judge::{ALWAYS, judge as judge_kind};
use crate::locks::record::Line;

pub(super) fn judge(events: &[Event]) -> Vec<Violation> {
    let line = |e: &Event| match &e.kind {
        EventKind::Lock { seen, .. } => Some(Line { at: e.at, who: e.who, what: seen.clone() }),
        _ => None,
    };
    let lines: Vec<_> = events.iter().filter_map(line).collect();
    let end = events.last().map_or(0, |e| e.at);
    // In this run servers lose their data, and clients are stopped. So fair callers can be served
    // out of order, and a lock of several names can have no holder for long. Only the rules in
    // `ALWAYS` hold.
    let always = |v: &Violation| ALWAYS.contains(&v.rule);
    Kind::ALL.into_iter().flat_map(|kind| judge_kind(kind, &lines, end).1).filter(always).collect()
}
