//! A tick, as its run receives it, and the record of a tick that is over.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::idempotency::Context;
use crate::token::FencingToken;

/// A tick of a job, as the run of the tick receives it. Cheap to clone.
///
/// `Display` writes the time at which the tick was due, in UTC: `2026-11-23T03:00:00Z`.
#[derive(Clone)]
pub struct Tick {
    pub(super) at: i64,
    pub(super) backfilled: bool,
    pub(super) token: FencingToken,
    pub(super) cx: Context,
    pub(super) cancel: watch::Sender<Option<Cancelled>>,
}

impl fmt::Display for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match DateTime::<Utc>::from_timestamp(self.at, 0) {
            Some(at) => f.write_str(&at.to_rfc3339_opts(SecondsFormat::Secs, true)),
            None => write!(f, "{} s since 1970", self.at),
        }
    }
}

impl fmt::Debug for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tick")
            .field("at", &format_args!("{self}"))
            .field("backfilled", &self.backfilled)
            .field("token", &self.token)
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}

impl Tick {
    pub(super) fn new(at: i64, backfilled: bool, token: FencingToken, cx: Context) -> Self {
        Self { at, backfilled, token, cx, cancel: watch::Sender::new(None) }
    }

    /// Returns the time when the tick was due. It is the same for every attempt.
    pub fn at(&self) -> SystemTime {
        at(self.at)
    }

    /// Returns the time when the tick was due, in seconds since 1970.
    pub fn unix_seconds(&self) -> i64 {
        self.at
    }

    /// Returns the number of the attempt at this tick: 1, or more if an earlier run of it was
    /// interrupted and may have taken effect.
    pub fn attempt(&self) -> u32 {
        self.cx.attempt()
    }

    /// Returns true if the tick was missed, and the [`Missed`](super::Missed) policy runs it late.
    pub fn is_backfilled(&self) -> bool {
        self.backfilled
    }

    /// Returns a fencing token that is larger than that of every earlier run of the job. Send it
    /// with every write. Under [`Overlap::Allow`](super::Overlap::Allow), where runs have no order,
    /// it is larger than that of every earlier run of this *tick* only.
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Returns a key under which a downstream system that recognises repeats can run this step of
    /// the job. The key is the same for every attempt at this tick, and different for every other
    /// tick.
    pub fn child_key(&self, step: &str) -> String {
        self.cx.child_key(step)
    }

    /// Returns true if the run may continue, by the local clock.
    pub fn is_valid(&self) -> bool {
        self.cx.is_valid()
    }

    /// Returns what is left of the run's lease, unless it is renewed; zero once the lease is lost.
    pub fn remaining(&self) -> Duration {
        self.cx.remaining()
    }

    /// Resolves when the run may not continue, because another process may run the tick now. The
    /// future of the run is dropped then, so only work in separate tasks needs this method.
    ///
    /// # Cancellation safety
    /// The future may be dropped, and the method called again, at any time.
    pub async fn lost(&self) {
        self.cx.lost().await;
    }

    /// Resolves when the run is cancelled, with the reason. From then on the run has the job's
    /// [grace](super::Job::grace) to end by itself.
    ///
    /// # Cancellation safety
    /// The future may be dropped, and the method called again, at any time.
    pub async fn cancelled(&self) -> Cancelled {
        let mut cancel = self.cancel.subscribe();
        loop {
            if let Some(why) = *cancel.borrow_and_update() {
                return why;
            }
            // This tick owns the sender, so to wait for a change cannot fail.
            let _ = cancel.changed().await;
        }
    }
}

pub(super) fn at(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds.unsigned_abs())
}

/// The record of a tick that is over.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Run {
    /// Host and process id of the process that ran the tick.
    pub by: String,
    /// Start of the run, in milliseconds since 1970 by the clock of the machine that ran it.
    pub started: u64,
    /// End of the run, in milliseconds since 1970: `started` plus the length of the run by the
    /// monotonic clock. It is at least [`at_least`](super::Job::at_least) after `started`.
    pub ended: u64,
    /// Number of the attempt that completed the tick, from 1.
    pub attempt: u32,
    /// Fencing token of the run.
    pub token: u64,
    /// True if the tick was missed, and the [`Missed`](super::Missed) policy ran it late.
    pub backfilled: bool,
    /// End of the run.
    pub end: End,
}

/// End of a tick.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum End {
    /// The job returned `Ok`.
    Done,
    /// The job returned an error with this text.
    Failed(String),
    /// The tick was not run, for this reason.
    Skipped(Skipped),
    /// The run was cancelled, for this reason.
    Cancelled(Cancelled),
}

/// Reason for which a tick was not run.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Skipped {
    /// The tick was due while an earlier tick of the job ran.
    Overlap,
    /// A later tick was due already, and the policy
    /// [`Overlap::CancelPrevious`](super::Overlap::CancelPrevious) runs only the latest.
    Superseded,
}

/// Reason for which a run was cancelled.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cancelled {
    /// The run took too long ([`Job::at_most`](super::Job::at_most)).
    TooLong,
    /// The next tick was due ([`Overlap::CancelPrevious`](super::Overlap::CancelPrevious)).
    NextTick,
}

/// One tick of a job's [history](super::Cron::history).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TickReport {
    /// Time when the tick was due.
    pub at: SystemTime,
    /// State of the tick.
    pub state: TickState,
}

/// State of a tick.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TickState {
    /// The tick is over, with this record.
    Over(Run),
    /// The tick is being run.
    Running,
    /// A run of the tick began and left no result, because the process died or lost its lease.
    Interrupted,
    /// The tick has no record: it was missed, no process has checked it yet, or it was due longer
    /// ago than the job's [retention](super::Job::retention).
    Absent,
    /// The state is unknown: too few nodes have kept all their data since the tick was due, or the
    /// result is on too few nodes to be certain.
    Unknown,
}
