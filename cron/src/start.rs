//! Reads, before the first tick, the time since which the job has its schedule.

use palisade::error::Advice;
use palisade::idempotency::Status;

use super::engine::{is_ahead, pause};
use super::job::Job;
use super::keys::Records;
use super::overlap::BACK;
use super::revision::{Revision, revise};
use super::schedule::Schedule;
use super::tick::Run;
use super::{Cron, CronError};

/// The schedule before the last edit. The times are in seconds since 1970.
#[derive(Debug)]
pub(super) struct Before {
    pub(super) schedule: Schedule,
    pub(super) since: i64,
    pub(super) edited: i64,
}

/// In seconds since 1970. If the schedule was edited just now, logs the gap in which nothing runs.
pub(super) async fn start(
    cron: &Cron,
    job: &Job,
    schedule: &Schedule,
    records: &Records,
) -> Result<(i64, Option<Before>), CronError> {
    let revision = since(cron, job, schedule).await?;
    let before = revision.before.as_ref().and_then(|(old, since)| {
        let (text, zone) = old.rsplit_once(' ')?;
        let schedule = Schedule::parse(text, zone).ok()?;
        Some(Before { schedule, since: *since, edited: revision.since })
    });
    if is_ahead(cron, revision.since) {
        tracing::warn!(
            target: "palisade::cron",
            job = %job.name, since = revision.since, now = cron.now(),
            "the clock of the process that first used the schedule was ahead, or this one's is \
             behind; ticks count from now on"
        );
    } else {
        report_gap(cron, job, schedule, before.as_ref(), &revision, records).await;
    }
    Ok((revision.since, before))
}

async fn since(cron: &Cron, job: &Job, schedule: &Schedule) -> Result<Revision, CronError> {
    let records = cron.revisions(job)?;
    let mut warned = false;
    loop {
        match revise(&records, &schedule.name(), cron.now()).await {
            Ok(revision) => return Ok(revision),
            Err(e) if e.advice() == Advice::Misconfigured => return Err(e),
            Err(e) => {
                if !warned {
                    tracing::warn!(
                        target: "palisade::cron",
                        job = %job.name, why = %e, "the job waits for its nodes"
                    );
                }
                warned = true;
                tokio::time::sleep(pause(e.advice())).await;
            }
        }
    }
}

async fn report_gap(
    cron: &Cron,
    job: &Job,
    schedule: &Schedule,
    before: Option<&Before>,
    revision: &Revision,
    records: &Records,
) {
    let Some((old, _)) = &revision.before else { return };
    // Only within a minute after the edit, so that later restarts do not log it again.
    if cron.now() - revision.since > 60 {
        return;
    }
    let mut last_run = None;
    if let Some(Before { schedule: old, since, edited }) = before {
        let until = |instant: i64| old.until(instant).filter(|tick| tick >= since);
        let first = until(cron.now().max(*edited));
        for tick in std::iter::successors(first, |tick| until(tick - 1)).take(BACK) {
            if let Ok(Status::Stored(_)) = records.tick(tick).lookup::<Run>().await {
                last_run = Some(tick);
                break;
            }
        }
    }
    let next = schedule.after(revision.since);
    tracing::warn!(
        target: "palisade::cron",
        job = %job.name, before = %old, now = %revision.schedule, ?last_run, ?next,
        "the schedule was edited; nothing runs between the last tick of the old one and the first \
         of the new one"
    );
}
