//! Since when a job has its schedule, as the nodes remember it.
//!
//! Ticks of before that are not missed ticks. The revisions of a schedule are a list of records,
//! each decided once, so all processes see the same order. A list belongs to a quarter of a year:
//! records do not live for ever, and a list whose first record is gone could not be read. The first
//! process that comes in a new quarter carries the last revision over.

use serde::{Deserialize, Serialize};

use super::CronError;
use crate::idempotency::{Idempotency, Outcome, Status};

/// A quarter of a year, in seconds; records live for a year.
const QUARTER: i64 = 7_889_238;
/// How many quarters back a revision is looked for. A job that nobody ran for so long is new.
const BACK: i64 = 2;

/// One schedule of a job.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Revision {
    /// The expression and its zone.
    pub(crate) schedule: String,
    /// In seconds since 1970.
    pub(crate) since: i64,
    /// What it was before, and since when.
    pub(crate) before: Option<(String, i64)>,
}

/// The revision that holds for a process with this schedule; a new one if the last is another.
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
            // Carried over from an earlier quarter.
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
            // Somebody else is at the same place of the list.
            _ => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
        }
    }
}
