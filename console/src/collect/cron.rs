//! Cron jobs as the nodes store them: their schedules, and the records of their ticks.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::{join, join_all};
use palisade::idempotency::Status;
use palisade_cron::cron_names;
use palisade_cron::{Cron, End, Job, Run, RunRequest, TickReport, TickState};
use serde::Deserialize;

use crate::history::{Entry, Level, millis, now_ms};
use crate::model::{JobRow, Model};
use crate::start::Shared;

/// Namespace of the idempotency keys that record schedules and ticks.
pub(crate) const NAMESPACE: &str = "cron";
/// Number of ticks that are kept of each job.
const TICKS: usize = 20;
/// Minimum number of ticks that one reading requests.
const STEP: usize = 3;
/// Time in ms after which a schedule is read again.
const SCHEDULE: u64 = 30_000;
/// Maximum time in seconds from the request of a run to its beginning. Later than this the run does
/// not begin.
const LATEST: u64 = 60;
const YEAR: Duration = Duration::from_secs(366 * 24 * 3_600);

/// A job's schedule, as the nodes store it.
#[derive(Deserialize)]
struct Revision {
    /// The cron expression and its time zone, as one text.
    schedule: String,
    since: i64,
}

fn job_of(key: &str) -> Option<&str> {
    let mut parts = key.rsplitn(4, '/');
    let (number, quarter, word) = (parts.next()?, parts.next()?, parts.next()?);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_one = word == "schedule" && is_number(number) && is_number(quarter);
    parts.next().filter(|_| is_one)
}

fn last_schedule<'a>(keys: impl Iterator<Item = &'a str>, job: &str) -> Option<&'a str> {
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
    let order = |key: &str| {
        let mut parts = key.rsplit('/');
        let n = number(parts.next());
        (number(parts.next()), n)
    };
    keys.filter(|key| job_of(key) == Some(job)).max_by_key(|key| order(key))
}

/// Returns true if the job allows requested runs. Its leader then stores a record for each day, and
/// the console has found that of today or yesterday.
pub(crate) fn allows_requests(model: &Model, job: &str) -> bool {
    let today = now_ms() / 86_400_000;
    let key = |day: u64| (NAMESPACE.to_owned(), format!("{job}/on-request/{day}"));
    model.keys.contains_key(&key(today)) || model.keys.contains_key(&key(today - 1))
}

/// Reads the schedule and the last ticks of one job: the job that the console has not read for the
/// longest time.
pub(super) async fn read(shared: &Shared) {
    let (job, key) = {
        let mut model = shared.model();
        let keys = || {
            let all = model.keys.range((NAMESPACE.to_owned(), String::new())..);
            all.take_while(|((namespace, _), _)| namespace == NAMESPACE).map(|((_, key), _)| &**key)
        };
        let jobs: BTreeSet<String> = keys().filter_map(job_of).map(ToOwned::to_owned).collect();
        let oldest = jobs.iter().min_by_key(|job| model.jobs.get(*job).map_or(0, |row| row.at));
        let key = oldest.and_then(|job| last_schedule(keys(), job)).map(ToOwned::to_owned);
        let oldest = oldest.cloned();
        // `jobs` are the jobs whose schedules the scan has found among the nodes' keys. The rows of
        // all other jobs are removed.
        model.jobs.retain(|job, _| jobs.contains(job));
        let Some(job) = oldest else { return };
        for job in jobs {
            model.jobs.entry(job).or_default();
        }
        (job, key)
    };
    let mut row = shared.model().jobs.get(&job).cloned().unwrap_or_default();
    let now = now_ms();
    let is_due = row.schedule.is_empty() || now / SCHEDULE != row.at / SCHEDULE;
    if let (true, Some(key)) = (is_due, key)
        && let Err(why) = schedule(shared, &key, &mut row).await
    {
        row.unknown = Some(why);
    }
    let mut happened = Vec::new();
    if !row.schedule.is_empty() && !is_quiet(&row, now) {
        match ticks(shared, &job, &mut row).await {
            Ok(new) => happened = new,
            Err(why) => row.unknown = Some(why),
        }
    }
    if let Err(why) = requested(shared, &job, &mut row).await {
        row.unknown = Some(why);
    }
    row.at = now;
    shared.model().jobs.insert(job, row);
    shared.all_happened(happened);
}

/// Returns how many of the last ticks to read: all since the oldest tick that was running when it
/// was last read, because the run of that tick may be over.
fn due(ticks: &[TickReport]) -> usize {
    until_oldest(ticks.iter().map(|tick| tick.state == TickState::Running))
}

/// Returns how many of the last ticks to read. `runs` has an entry for each tick, the latest first,
/// which is true if the tick is running.
fn until_oldest(mut runs: impl DoubleEndedIterator<Item = bool> + ExactSizeIterator) -> usize {
    // Other ticks can have passed since the last reading, so `STEP` more ticks are read.
    runs.rposition(|runs| runs).map_or(STEP, |at| (at + 1 + STEP).min(TICKS))
}

fn is_quiet(row: &JobRow, now: u64) -> bool {
    let is_over = |tick: &TickReport| matches!(tick.state, TickState::Over(_));
    row.unknown.is_none()
        && row.next.is_some_and(|next| now < next)
        && row.ticks.iter().take(due(&row.ticks)).all(is_over)
        && !row.ticks.is_empty()
}

async fn schedule(shared: &Shared, key: &str, row: &mut JobRow) -> Result<(), String> {
    let keys = shared.redlock.idempotency(NAMESPACE).retention(YEAR).at_least_once().build();
    // The birth of the call (`created_at`) is now: no node can have lost a record of a call that is
    // this new, so none reports that it may have forgotten the key.
    let call = keys.map_err(|e| e.to_string())?.key(key).created_at(SystemTime::now());
    match call.lookup::<Revision>().await {
        Ok(Status::Stored(Revision { schedule, since })) => {
            let (text, zone) = schedule.rsplit_once(' ').unwrap_or((&schedule, "UTC"));
            if row.schedule != text || row.zone != zone {
                row.ticks.clear();
            }
            (row.schedule, row.zone) = (text.to_owned(), zone.to_owned());
            (row.since, row.unknown) = (since, None);
            Ok(())
        }
        Ok(_) => Err("its schedule is not stored on a majority of the nodes".to_owned()),
        Err(e) => Err(e.to_string()),
    }
}

async fn requested(shared: &Shared, job: &str, row: &mut JobRow) -> Result<(), String> {
    let begins = format!("{job}/request/");
    let mut numbers: Vec<i64> = {
        let model = shared.model();
        let keys = model.keys.range((NAMESPACE.to_owned(), begins.clone())..);
        let keys = keys.map_while(|((namespace, key), _)| {
            key.strip_prefix(&begins).filter(|_| namespace == NAMESPACE)
        });
        keys.filter_map(|number| number.parse().ok()).collect()
    };
    numbers.sort_unstable_by_key(|number| std::cmp::Reverse(*number));
    numbers.truncate(TICKS / 2);
    let now = now_ms() / 1_000;
    // A run that is over does not change any more, and a run that is late does not begin. So these
    // requests are not read again.
    row.requested.retain(|(request, state)| {
        let is_late = request.at.unsigned_abs() + 2 * LATEST < now;
        let is_final = matches!(state, TickState::Over(_)) || is_late;
        is_final && numbers.contains(&request.number)
    });
    numbers.retain(|number| row.requested.iter().all(|(known, _)| known.number != *number));
    if numbers.is_empty() {
        return Ok(());
    }
    let keys = shared.redlock.idempotency(NAMESPACE).retention(YEAR).at_least_once().build();
    let keys = &keys.map_err(|e| e.to_string())?;
    let key = |what: &str, number| {
        keys.key(format!("{job}/{what}/{number}")).created_at(SystemTime::now())
    };
    let reads = numbers.into_iter().map(|number| {
        join(key("request", number).lookup::<RunRequest>(), key("run", number).lookup::<Run>())
    });
    for (request, run) in join_all(reads).await {
        let Status::Stored(request) = request.map_err(|e| e.to_string())? else { continue };
        let state = match run.map_err(|e| e.to_string())? {
            Status::Stored(run) => TickState::Over(run),
            Status::Running { .. } => TickState::Running,
            Status::Lapsed { .. } => TickState::Interrupted,
            Status::Absent => TickState::Absent,
            _ => TickState::Unknown,
        };
        row.requested.push((request, state));
    }
    row.requested.sort_by_key(|(request, _)| std::cmp::Reverse(request.number));
    Ok(())
}

/// Reads the last ticks of a job, and returns the changes as entries for the history of events that
/// the console shows.
async fn ticks(shared: &Shared, id: &str, row: &mut JobRow) -> Result<Vec<Entry>, String> {
    let (cron, name) = cron_names(id).ok_or("its keys have no name of a `Cron`")?;
    let cron = Cron::new(&shared.redlock).name(cron);
    let job = Job::new(name, &*row.schedule).zone(&*row.zone);
    let next = cron.upcoming(&job, 1).map_err(|e| e.to_string())?;
    row.next = next.first().map(|at| millis(*at));
    let is_first = row.ticks.is_empty();
    let n = if is_first { TICKS / 2 } else { due(&row.ticks) };
    let new = cron.history(&job, n).await.map_err(|e| e.to_string())?;
    row.unknown = None;
    let began = UNIX_EPOCH + Duration::from_secs(row.since.unsigned_abs());
    let mut happened = Vec::new();
    for report in new.into_iter().filter(|report| report.at >= began).rev() {
        match row.ticks.iter_mut().find(|known| known.at == report.at) {
            Some(known) if *known == report => {}
            Some(known) => {
                happened.extend(over(id, &report));
                *known = report;
            }
            None => {
                if !is_first {
                    happened.extend(over(id, &report));
                }
                row.ticks.insert(0, report);
            }
        }
    }
    row.ticks.sort_by_key(|report| std::cmp::Reverse(report.at));
    row.ticks.truncate(TICKS);
    Ok(happened)
}

/// Returns the history's entry about a tick whose run is over; `None` otherwise.
fn over(job: &str, report: &TickReport) -> Option<Entry> {
    let at = crate::pages::clock(millis(report.at));
    let (level, text) = match &report.state {
        TickState::Over(run) => match &run.end {
            End::Done => (Level::Info, format!("job {job:?}, tick {at}: done by {}", run.by)),
            End::Failed(why) => (Level::Warn, format!("job {job:?}, tick {at}: failed: {why}")),
            other => (Level::Info, format!("job {job:?}, tick {at}: {other:?}")),
        },
        TickState::Interrupted => {
            (Level::Warn, format!("job {job:?}, tick {at}: its run was interrupted"))
        }
        _ => return None,
    };
    Some(Entry::of(level, "tick", job, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_longer_than_its_interval_is_read_until_its_end() {
        let of = |runs: &str| until_oldest(runs.bytes().map(|c| c == b'r'));
        for (runs, expected) in [
            ("", STEP),
            ("ooo", STEP),
            ("roo", 1 + STEP),
            ("ossr", 4 + STEP),
            ("rsssro", 5 + STEP),
            ("osssssssssssssssssssr", TICKS),
        ] {
            assert_eq!(of(runs), expected, "{runs}");
        }
    }

    #[test]
    fn the_last_schedule_of_a_job_is_the_one_with_the_largest_numbers() {
        let keys = [
            "c/a/schedule/9/2",
            "c/a/schedule/10/1",
            "c/a/b/schedule/11/1",
            "c/a@7",
            "c/a/schedule/x/1",
        ];
        assert_eq!(job_of(keys[2]), Some("c/a/b"));
        assert_eq!((job_of(keys[3]), job_of(keys[4])), (None, None));
        assert_eq!(last_schedule(keys.into_iter(), "c/a"), Some("c/a/schedule/10/1"));
        assert_eq!(last_schedule(keys.into_iter(), "c"), None);
    }
}
