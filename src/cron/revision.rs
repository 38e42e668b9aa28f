//! The time since which a job has its schedule, as stored on the nodes.
//!
//! Ticks from before that time are not missed ticks. The revisions of a schedule are a list of
//! records, each decided once, so all processes see the same order. A list belongs to a quarter of
//! a year: records expire, and a list whose first record has expired could not be read. The first
//! process in a new quarter copies the last revision to the new list.

use serde::{Deserialize, Serialize};

use super::CronError;
use crate::idempotency::{Idempotency, Outcome, Status};

/// A quarter of a year, in seconds. Records are kept for a year.
const QUARTER: i64 = 7_889_238;
/// Number of earlier quarters in which a revision is searched. A job that did not run for longer is
/// new.
const BACK: i64 = 2;

/// One schedule of a job.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Revision {
    /// The expression and its time zone.
    pub(crate) schedule: String,
    /// Time since which the schedule holds, in seconds since 1970.
    pub(crate) since: i64,
    /// The schedule before, and the time since which that held.
    pub(crate) before: Option<(String, i64)>,
}

/// Returns the revision that holds for a process with this schedule; stores a new one if the last
/// revision has another schedule.
pub(crate) async fn revise(
    records: &Idempotency,
    job: &str,
    schedule: &str,
    now: i64,
) -> Result<Revision, CronError> {
    let quarter = now / QUARTER;
    let key = |quarter: i64, n: u32| format!("{job}/schedule/{quarter}/{n}");
    let mut last = None;
    let mut next = 1;
    for back in 0..=BACK {
        let mut n = 1;
        while let Status::Stored(revision) =
            records.key(key(quarter - back, n)).lookup::<Revision>().await?
        {
            last = Some(revision);
            n += 1;
        }
        if back == 0 {
            next = n;
        }
        if last.is_some() {
            break;
        }
    }
    loop {
        let mine = match &last {
            Some(last) if last.schedule == schedule && next > 1 => return Ok(last.clone()),
            // The revision was read from an earlier quarter, and is copied to this one.
            Some(last) if last.schedule == schedule => last.clone(),
            Some(last) => Revision {
                schedule: schedule.to_owned(),
                since: now,
                before: Some((last.schedule.clone(), last.since)),
            },
            None => Revision { schedule: schedule.to_owned(), since: now, before: None },
        };
        let claim =
            records.key(key(quarter, next)).in_flight_timeout(std::time::Duration::from_secs(2));
        match claim.run(|_| async { Ok::<_, String>(mine) }).await? {
            Outcome::Executed { value, .. } => return Ok(value),
            Outcome::Replayed(value) => (last, next) = (Some(value), next + 1),
            // Another process writes the same entry of the list, so this one waits for its result.
            _ => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
        }
    }
}
