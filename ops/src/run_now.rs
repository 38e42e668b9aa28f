//! Runs a cron job now, for an operator.

use std::time::Duration;

use palisade_cron::{Cron, CronError, Requested};

use super::Audit;

/// Requests a run of a job as [`Cron::request_run`] does, and writes the author and the reason of
/// the request to the log. The stored request contains both, and the process that runs the job also
/// writes them to its log.
///
/// # Errors
/// [`CronError`] if the name is invalid or the request was not stored. After
/// [`CronError::NotConfirmed`] the request may be stored, and the job may be run.
///
/// # Cancellation safety
/// If the future is dropped, the request may be stored, and the job may be run.
pub async fn run_now(
    cron: &Cron,
    job: &str,
    wait: Duration,
    audit: &Audit,
) -> Result<Requested, CronError> {
    let requested = cron.request_run(job, audit.by(), audit.reason(), wait).await;
    let stored = match &requested {
        Ok(Requested::Begun { .. } | Requested::Waits { .. }) => "true",
        // Some nodes may have stored the request.
        Ok(Requested::Undecided) | Err(CronError::NotConfirmed { .. }) => "unknown",
        _ => "false",
    };
    tracing::warn!(
        target: "palisade_ops",
        event = "run_now",
        job,
        by = audit.by(),
        reason = audit.reason(),
        stored,
        "a run of a job was requested by an operator"
    );
    requested
}
