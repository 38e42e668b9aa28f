//! Finds out, from the stored records, whether a tick was due during an earlier run of the job.

use std::sync::Mutex;
use std::time::Duration;

use palisade::idempotency::{RunError, Status};

use super::job::{Job, Overlap};
use super::keys::Records;
use super::missed::{first_during, millis, was_due_during};
use super::schedule::Schedule;
use super::tick::{End, Run, Skipped};
use crate::locked;

/// Earlier ticks without a stored result, or with a run that began later than the tick, after which
/// the search ends.
pub(super) const BACK: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum During {
    NoRun,
    Waited,
    Skipped(Skipped),
    Interrupted(Duration),
}

/// A later tick, the tick of the run that its search found, and that run. All ticks between were
/// skipped, so a search that reaches the later tick continues at the run. Stays valid, because
/// records never change.
#[derive(Debug, Default)]
pub(super) struct Overlaps(Mutex<Option<(i64, i64, Run)>>);

impl Overlaps {
    /// Does not read the records of ticks before `since`. The caller holds the lock of the job.
    pub(super) async fn during(
        &self,
        (job, schedule, records): (&Job, &Schedule, &Records),
        (tick, since): (i64, i64),
    ) -> Result<During, RunError> {
        let before = |tick: i64| schedule.until(tick - 1).filter(|t| *t >= since);
        let (mut at, mut undecided, mut newest) = (before(tick), 0, None);
        let known = self.known();
        while let Some(earlier) = at.filter(|_| undecided < BACK) {
            let (own, found) = match &known {
                Some((skipped, own, run)) if *skipped == earlier => {
                    (*own, Status::Stored(run.clone()))
                }
                _ => (earlier, records.tick(earlier).lookup::<Run>().await?),
            };
            if let Status::Running { remaining, .. } = found {
                return Ok(During::Interrupted(remaining));
            }
            let Status::Stored(run) = found else {
                undecided += 1;
                at = before(earlier);
                continue;
            };
            if !matches!(run.end, End::Skipped(_)) {
                let is_first = || first_during(schedule, own, &run) == Some(tick);
                let during = if job.overlap == Overlap::BufferOne && is_first() {
                    During::Waited
                } else if was_due_during(&run, tick) {
                    During::Skipped(Skipped::Overlap)
                } else if run.started > millis(tick) {
                    // A missed tick that was run late. An earlier one may have run when this tick
                    // was due.
                    undecided += 1;
                    at = before(earlier);
                    continue;
                } else {
                    During::NoRun
                };
                if let Some(newest) = newest.filter(|_| undecided == 0) {
                    *locked(&self.0) = Some((newest, own, run));
                }
                return Ok(during);
            }
            newest = newest.or(Some(earlier));
            at = before(earlier);
        }
        Ok(During::NoRun)
    }

    fn known(&self) -> Option<(i64, i64, Run)> {
        locked(&self.0).clone()
    }
}
