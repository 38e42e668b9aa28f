//! End of a check of a tick: counts the result, or decides when the tick is checked again.

use std::sync::atomic::Ordering;
use std::time::Duration;

use palisade::error::Advice;
use palisade::idempotency::{Effect, Outcome, RunError};

use super::{CheckResult, Engine, pause};
use crate::missed::millis;
use crate::span::TickSpan;
use crate::tick::{End, Run};

impl<F> Engine<'_, F> {
    pub(super) fn over(
        &self,
        operation: TickSpan,
        tick: i64,
        ended: &Result<Outcome<Run>, RunError>,
    ) {
        let outcome = match ended {
            Ok(Outcome::Executed { value: run, .. }) => {
                operation.ran(run);
                let span = |from: u64, to: u64| Duration::from_millis(to.saturating_sub(from));
                if !matches!(run.end, End::Skipped(_)) {
                    let late = span(millis(tick), run.started);
                    self.meters.ran(late, span(run.started, run.ended));
                }
                match run.end {
                    End::Done => "done",
                    End::Failed(_) => "failed",
                    End::Skipped(_) => "skipped",
                    End::Cancelled(_) => "cancelled",
                }
            }
            Ok(Outcome::Parked(_)) => "parked",
            // Failed, or the result is not stored: the same tick may be run again.
            Err(RunError::Handler { .. } | RunError::NotRecorded(_)) => "again",
            // Another process runs or has run it, or too few nodes answered. Who completes the tick
            // also counts it.
            Ok(_) => return operation.over("elsewhere"),
            Err(_) => return operation.over("no_quorum"),
        };
        self.meters.tick(outcome);
        operation.over(outcome);
    }

    pub(super) fn after_error(&self, error: &RunError) -> CheckResult {
        if let RunError::NotRecorded(_) = error {
            tracing::warn!(
                target: "palisade::cron",
                job = %self.job.name, why = %error, policy = ?self.job.interrupted,
                "the end of a run may not be stored: if it is not, the policy for interrupted runs \
                 decides"
            );
        }
        let RunError::Handler { failed, .. } = error else {
            return self.wait_because(error, error.advice());
        };
        let again = pause(error.advice()).min(Duration::from_secs(1));
        if failed.effect() == Effect::Unknown {
            // The handler did not end: a lease was lost.
            tracing::warn!(
                target: "palisade::cron",
                job = %self.job.name, why = %failed, policy = ?self.job.interrupted,
                "a run was interrupted"
            );
            return CheckResult::Begun(again);
        }
        tracing::debug!(target: "palisade::cron", job = %self.job.name, %error, "looks again");
        CheckResult::Retry(again)
    }

    pub(super) fn wait_because(&self, why: &dyn std::fmt::Display, advice: Advice) -> CheckResult {
        let job = &self.job.name;
        if self.waits.swap(true, Ordering::Relaxed) {
            tracing::debug!(target: "palisade::cron", %job, %why, "looks again");
        } else {
            tracing::warn!(target: "palisade::cron", %job, %why, "ticks wait");
        }
        CheckResult::Wait(pause(advice).min(Duration::from_secs(1)))
    }
}
