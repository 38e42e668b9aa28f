//! A tick, which the job's handler receives, and the record of a finished tick.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat, Utc};
use palisade::FencingToken;
use palisade::LostSignal;
use palisade::idempotency::Context;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// A tick of a job: one of its due times. The job's handler receives this value. A clone is cheap.
///
/// `Display` writes the due time of the tick in UTC: `2026-11-23T03:00:00Z`.
#[derive(Clone)]
pub struct Tick {
    pub(super) at: i64,
    pub(super) backfilled: bool,
    pub(super) requested: bool,
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
            .field("requested", &self.requested)
            .field("token", &self.token)
            .field("attempt", &self.attempt())
            .finish_non_exhaustive()
    }
}

impl Tick {
    pub(super) fn new(
        at: i64,
        (backfilled, requested): (bool, bool),
        token: FencingToken,
        cx: Context,
    ) -> Self {
        Self { at, backfilled, requested, token, cx, cancel: watch::Sender::new(None) }
    }

    /// Returns the due time of the tick. Every attempt has the same due time.
    pub fn at(&self) -> SystemTime {
        at(self.at)
    }

    /// Returns the due time of the tick, in seconds since 1970.
    pub fn unix_seconds(&self) -> i64 {
        self.at
    }

    /// Returns the number of this attempt at the tick. The number is larger than 1 if an earlier
    /// run of the tick was interrupted and may have had an effect.
    pub fn attempt(&self) -> u32 {
        self.cx.attempt()
    }

    /// Returns true if no process ran the tick in time (it was missed) and it is run late, by the
    /// [`Missed`](super::Missed) policy.
    pub fn is_backfilled(&self) -> bool {
        self.backfilled
    }

    /// Returns true if an operator requested this run, outside of the schedule. The due time of the
    /// tick is the time of the request.
    pub fn is_requested(&self) -> bool {
        self.requested
    }

    /// Returns a fencing token that is larger than the token of every earlier run of the job. Send
    /// the token with every write. With [`Overlap::Allow`](super::Overlap::Allow) the runs of
    /// different ticks have no order. The token is then larger than the token of every earlier run
    /// of this *tick* only.
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Returns an idempotency key for this step of the job in a downstream system. The key is the
    /// same for every attempt at this tick, and different for every other tick.
    pub fn child_key(&self, step: &str) -> String {
        self.cx.child_key(step)
    }

    /// Returns true if the run may continue: its lease is held, by the local clock.
    pub fn is_valid(&self) -> bool {
        self.cx.is_valid()
    }

    /// Returns the time until the end of the run's lease, if the lease is not renewed. Zero after
    /// the loss of the lease.
    pub fn remaining(&self) -> Duration {
        self.cx.remaining()
    }

    /// Resolves when the run may not continue, because its lease was lost and another process may
    /// run the tick now. At the same time the future of the run is dropped. So only work in
    /// separate tasks needs this method.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time. The method may be called again.
    pub async fn lost(&self) {
        self.cx.lost().await;
    }

    /// Returns a signal that resolves at the same time as [`lost`](Self::lost). It is for tasks
    /// without access to the tick.
    pub fn lost_signal(&self) -> LostSignal {
        self.cx.lost_signal()
    }

    /// Resolves when the run is cancelled, and returns the reason. The run may then continue for
    /// the job's [grace](super::Job::grace), and should end by itself in this time.
    ///
    /// # Cancellation safety
    /// The future may be dropped at any time. The method may be called again.
    pub async fn cancelled(&self) -> Cancelled {
        let mut cancel = self.cancel.subscribe();
        loop {
            if let Some(why) = *cancel.borrow_and_update() {
                return why;
            }
            // `changed` fails only after the sender was dropped, and this tick owns the sender.
            let _ = cancel.changed().await;
        }
    }
}

pub(super) fn at(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds.unsigned_abs())
}

/// The record of a finished tick.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Run {
    /// Host and process id, as text, of the process that ran the tick.
    pub by: String,
    /// Start of the run, in milliseconds since 1970 by the wall clock of the host that ran the
    /// tick.
    pub started: u64,
    /// End of the run, in milliseconds since 1970: `started` plus the length of the run by the
    /// monotonic clock, at least [`at_least`](super::Job::at_least) after `started`.
    pub ended: u64,
    /// Number of the attempt that completed the tick. The first attempt is 1.
    pub attempt: u32,
    /// Fencing token of the run ([`Tick::fencing_token`]).
    pub token: u64,
    /// True if no process ran the tick in time (it was missed) and it was run late, by the
    /// [`Missed`](super::Missed) policy.
    pub backfilled: bool,
    /// True if an operator requested the run ([`Cron::request_run`](super::Cron::request_run)).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub requested: bool,
    /// Result of the run.
    pub end: End,
}

/// Result of a tick.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum End {
    /// The job returned `Ok`.
    Done,
    /// The job returned an error with this text.
    Failed(String),
    /// The tick was not run. The value is the reason.
    Skipped(Skipped),
    /// The run was cancelled. The value is the reason.
    Cancelled(Cancelled),
}

/// Reason for which a tick was not run.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Skipped {
    /// The tick was due during the run of an earlier tick of the job.
    Overlap,
    /// A later tick was due already. The policy
    /// [`Overlap::CancelPrevious`](super::Overlap::CancelPrevious) runs only the latest tick.
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
    /// Due time of the tick.
    pub at: SystemTime,
    /// State of the tick, for example finished or running.
    pub state: TickState,
}

/// State of a tick.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TickState {
    /// The tick is finished. The value is the record of its run.
    Over(Run),
    /// A process runs the tick now.
    Running,
    /// A run of the tick began and left no result, because the process died or lost its lease.
    Interrupted,
    /// The tick has no record. It was missed, or no process has checked it yet, or it is older than
    /// the job's [retention](super::Job::retention).
    Absent,
    /// The state is unknown. Either too few nodes have kept all their data since the due time of
    /// the tick, or too few nodes have the result.
    Unknown,
}
