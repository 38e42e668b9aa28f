//! The time since which a job has its present schedule. The nodes store this time.
//!
//! Ticks from before that time are not missed ticks. Each schedule of a job is a revision. The
//! nodes store the revisions of a job as a list of records. A record never changes, so all
//! processes see the same list. But a list cannot be read after its first record has expired. So
//! each quarter of a year has a list of its own, and the first process in a new quarter copies the
//! last revision to the new list.

use serde::{Deserialize, Serialize};

use super::CronError;
use super::keys::Records;
use crate::idempotency::{Outcome, Status};

/// Length of a quarter of a year, in seconds. Records of schedules are kept for a year.
const QUARTER: i64 = 7_889_238;
/// Number of earlier quarters of a year that are searched for the last revision. A job without a
/// revision in these quarters counts as a new job.
const BACK: i64 = 2;

/// A present or earlier schedule of a job.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Revision {
    /// The cron expression and its time zone, as one text.
    pub(crate) schedule: String,
    /// Time since which the job has the schedule, in seconds since 1970.
    pub(crate) since: i64,
    /// The schedule before this one, and the time since which the job had it; `None` for the first
    /// schedule of a job.
    pub(crate) before: Option<(String, i64)>,
}

/// Returns the present revision (schedule and its start) of a job with this schedule. If the last
/// stored revision has another schedule, first stores a new revision with the time `now`.
pub(crate) async fn revise(
    records: &Records,
    schedule: &str,
    now: i64,
) -> Result<Revision, CronError> {
    let quarter = now / QUARTER;
    let mut last = None;
    let mut next = 1;
    for back in 0..=BACK {
        let mut n = 1;
        while let Status::Stored(revision) =
            records.schedule(quarter - back, n).lookup::<Revision>().await?
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
            // The revision is in the list of an earlier quarter of a year, so it is copied to the
            // list of this quarter.
            Some(last) if last.schedule == schedule => last.clone(),
            Some(last) => Revision {
                schedule: schedule.to_owned(),
                since: now,
                before: Some((last.schedule.clone(), last.since)),
            },
            None => Revision { schedule: schedule.to_owned(), since: now, before: None },
        };
        let claim =
            records.schedule(quarter, next).in_flight_timeout(std::time::Duration::from_secs(2));
        match claim.run(|_| async { Ok::<_, String>(mine) }).await? {
            Outcome::Executed { value, .. } => return Ok(value),
            Outcome::Replayed(value) => (last, next) = (Some(value), next + 1),
            // Another process is writing this entry of the list of schedules. So this process waits
            // and reads the entry again.
            _ => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
        }
    }
}
