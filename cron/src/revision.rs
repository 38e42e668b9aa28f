//! The time since which a job has its present schedule. Ticks from before it are not missed ticks.
//!
//! Each schedule of a job is a revision, in a list of records that never change, so all processes
//! see the same list. A list cannot be read after its first record has expired. So each quarter of
//! a year has its own, and the first process in a new quarter copies the last revision.

use palisade::idempotency::{Outcome, Status};
use serde::{Deserialize, Serialize};

use super::CronError;
use super::keys::Records;

/// In seconds. Records of schedules are kept for a year.
const QUARTER: i64 = 7_889_238;
const BACK: i64 = 2;

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Revision {
    pub(crate) schedule: String,
    /// In seconds since 1970.
    pub(crate) since: i64,
    pub(crate) before: Option<(String, i64)>,
}

/// If the last stored revision has another schedule, first stores a new one with the time `now`.
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
            // From the list of an earlier quarter, so it is copied to this one.
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
            // Another process is writing this entry.
            _ => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
        }
    }
}
