//! Reads the records of ticks that this process did not look at in time, or does not run because
//! they are missed. A run of one of them may have begun, and is run again (cron 11).

use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use palisade::idempotency::{RunError, Status};

use super::Engine;
use crate::READS;
use crate::tick::{End, Run};

const AGAIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ticks {
    New,
    Missed,
    OfBefore,
}

/// Ticks in seconds since 1970.
#[derive(Debug)]
pub(super) struct LookedBack {
    pub(super) of: Ticks,
    pub(super) begun: Vec<i64>,
    pub(super) lapsed: Vec<i64>,
    pub(super) runs: Vec<(i64, Run)>,
    pub(super) absent: Vec<i64>,
    /// Their runs are over or have begun, and what became of them cannot be read.
    pub(super) unclear: Vec<i64>,
    /// Too few nodes answered, or the tick is in the future.
    pub(super) unread: Vec<i64>,
}

impl<F> Engine<'_, F> {
    pub(super) async fn look_back(&self, of: Ticks, ticks: Vec<i64>, again: bool) -> LookedBack {
        if again {
            tokio::time::sleep(AGAIN).await;
        }
        let (begun, lapsed, runs) = (Vec::new(), Vec::new(), Vec::new());
        let (absent, unclear, unread) = (Vec::new(), Vec::new(), Vec::new());
        let mut found = LookedBack { of, begun, lapsed, runs, absent, unclear, unread };
        let reads = stream::iter(ticks.clone());
        let reads = reads.map(|tick: i64| self.records.tick(tick).lookup::<Run>());
        let mut reads = std::pin::pin!(reads.buffered(READS));
        for tick in ticks {
            // Without nodes, each read would take its whole time.
            if found.unread.len() >= READS {
                found.unread.push(tick);
                continue;
            }
            let Some(status) = reads.next().await else { break };
            match status {
                Ok(Status::Stored(run)) if matches!(run.end, End::Skipped(_)) => {}
                Ok(Status::Stored(run)) => found.runs.push((tick, run)),
                Ok(Status::Running { .. } | Status::Unsettled) => found.begun.push(tick),
                Ok(Status::Lapsed { .. }) => found.lapsed.push(tick),
                Ok(Status::Absent | Status::Forgotten { .. }) => found.absent.push(tick),
                Ok(_) => found.unclear.push(tick),
                // After a step back of the clock, a tick may be in the future.
                Err(RunError::NoQuorum { .. } | RunError::Config { .. }) => found.unread.push(tick),
                Err(why) => {
                    let job = &self.job.name;
                    tracing::warn!(target: "palisade::cron", %job, tick, %why, "cannot be read");
                    found.unclear.push(tick);
                }
            }
        }
        found
    }
}
