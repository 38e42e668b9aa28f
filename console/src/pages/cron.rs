//! The page `cron`: for each cron job the next tick, and the results of the last ticks.

use palisade_cron::cron_names;
use palisade_cron::{Cancelled, End, Run, RunRequest, Skipped, TickState};
use serde_json::{Value, json};

use super::elections::leader_json;
use super::{NOT_READ, clean, clock, span};
use crate::collect::cron::allows_requests;
use crate::history::millis;
use crate::model::{JobRow, Model};

/// The reason for which a job cannot be run now.
pub(crate) const NOT_ALLOWED: &str = "it does not allow requests: in the last day, no process \
    that allows them has led it; set `Job::on_request` in its program, or \
    `palisade cron --on-request`";

pub(super) fn page(model: &Model) -> Value {
    let all: Vec<_> = model.jobs.iter().map(|(name, row)| job(model, name, row)).collect();
    json!({ "total": all.len(), "jobs": all })
}

fn job(model: &Model, name: &str, row: &JobRow) -> Value {
    let election = cron_names(name).map(|(cron, _)| format!("{cron}:lead"));
    let known = election.filter(|id| model.elections.contains_key(id));
    let leader = known.as_ref().and_then(|id| model.elections.get(id));
    let leader = leader.and_then(|row| Some(leader_json(row.leader.as_ref()?, row.until)));
    // If the record that the job allows requests was not found, it may still exist as long as the
    // scan is not complete. The action itself looks for this record again.
    let may_run = allows_requests(model, name) || !model.is_scanned(model.left_out.keys);
    let ticks = row.ticks.iter().map(|report| (millis(report.at), &report.state, None));
    let requested = row.requested.iter();
    let requested = requested.map(|(of, state)| (of.at.unsigned_abs() * 1_000, state, Some(of)));
    let mut last: Vec<_> = ticks.chain(requested).collect();
    last.sort_by_key(|(at, ..)| std::cmp::Reverse(*at));
    let running = last.iter().any(|(_, state, _)| **state == TickState::Running);
    json!({
        "name": name, "schedule": row.schedule, "zone": row.zone,
        "since_ms": row.since.saturating_mul(1_000), "next_ms": row.next, "unknown": unknown(row),
        "election": known, "leader": leader, "running": running,
        "sentence": sentence(row, running),
        "last": last.into_iter().map(tick).collect::<Vec<_>>(),
        "run_now": { "possible": may_run, "why": (!may_run).then_some(NOT_ALLOWED) },
    })
}

/// Returns the reason for which the job's present state is not known.
fn unknown(row: &JobRow) -> Option<String> {
    let why = row.unknown.as_deref().map(clean);
    why.or_else(|| (row.at == 0).then(|| NOT_READ.to_owned()))
}

fn sentence(row: &JobRow, running: bool) -> String {
    if let Some(why) = &row.unknown {
        return format!("not known: {}", clean(why));
    }
    if row.at == 0 {
        return NOT_READ.to_owned();
    }
    let next = row
        .next
        .map_or("there is no next tick".to_owned(), |at| format!("next tick at {}", clock(at)));
    if running {
        return format!("{next}; it runs now");
    }
    let over = row.ticks.iter().find_map(|tick| match &tick.state {
        TickState::Over(run) => Some(run),
        _ => None,
    });
    match over {
        Some(run) => {
            let took = span(run.ended.saturating_sub(run.started));
            let (end, why) = end(&run.end);
            let why = why.map(|why| format!(": {}", clean(&why))).unwrap_or_default();
            format!("{next}; the last run took {took} and is {end}{why}")
        }
        None => next,
    }
}

pub(crate) fn end_of(run: &Run) -> String {
    let (word, why) = end(&run.end);
    why.map_or_else(|| word.to_owned(), |why| format!("{word}: {why}"))
}

fn end(end: &End) -> (&'static str, Option<String>) {
    match end {
        End::Done => ("done", None),
        End::Failed(why) => ("failed", Some(why.clone())),
        End::Skipped(Skipped::Overlap) => {
            ("skipped", Some("an earlier tick of the job was running".to_owned()))
        }
        End::Skipped(_) => ("skipped", Some("a later tick was due".to_owned())),
        End::Cancelled(Cancelled::TooLong) => ("cancelled", Some("it ran for too long".to_owned())),
        End::Cancelled(_) => ("cancelled", Some("the next tick was due".to_owned())),
        _ => ("over", None),
    }
}

fn request(of: &RunRequest) -> Value {
    json!({ "id": of.id, "number": of.number, "by": clean(&of.by), "reason": clean(&of.reason) })
}

fn tick((at, tick, requested): (u64, &TickState, Option<&RunRequest>)) -> Value {
    let state = match tick {
        TickState::Over(_) => "over",
        TickState::Running => "running",
        TickState::Interrupted => "interrupted",
        TickState::Absent => "absent",
        _ => "unknown",
    };
    let mut of = json!({
        "at_ms": at, "state": state, "end": null, "why": null, "by": null, "started_ms": null,
        "took_ms": null, "late_ms": null, "attempt": null, "token": null, "backfilled": null,
        "requested": requested.map(request),
    });
    if let TickState::Over(run) = tick {
        let (word, why) = end(&run.end);
        of["end"] = word.into();
        of["why"] = why.as_deref().map(clean).into();
        of["by"] = clean(&run.by).into();
        of["started_ms"] = run.started.into();
        of["took_ms"] = run.ended.saturating_sub(run.started).into();
        of["late_ms"] = run.started.saturating_sub(at).into();
        of["attempt"] = run.attempt.into();
        of["token"] = run.token.to_string().into();
        of["backfilled"] = run.backfilled.into();
    }
    of
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_was_not_read_yet_is_not_known() {
        let job = |row: &JobRow| job(&Model::default(), "j", row);
        let new = job(&JobRow::default());
        assert_eq!((&new["sentence"], &new["unknown"]), (&json!(NOT_READ), &json!(NOT_READ)));
        let read = job(&JobRow { at: 1, ..JobRow::default() });
        assert_eq!(read["sentence"], "there is no next tick");
        assert!(read["unknown"].is_null());
        let why = Some("no quorum".to_owned());
        let failed = job(&JobRow { at: 1, unknown: why, ..JobRow::default() });
        assert_eq!(failed["unknown"], "no quorum");
    }
}
