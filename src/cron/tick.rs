//! A tick: what its run is given, and what is kept of it.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::idempotency::Context;
use crate::token::FencingToken;

/// What a run knows of its tick. Cheap to clone.
///
/// `Display` writes when it was due, in UTC: `2026-11-23T03:00:00Z`.
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

    /// When the tick was due. The same for every attempt at it.
    pub fn at(&self) -> SystemTime {
        at(self.at)
    }

    /// The same in seconds since 1970.
    pub fn unix_seconds(&self) -> i64 {
        self.at
    }

    /// 1 the first time; more if an earlier run of this tick was interrupted and may have acted.
    pub fn attempt(&self) -> u32 {
        self.cx.attempt()
    }

    /// Whether this is run belatedly by the [`Missed`](super::Missed) policy.
    pub fn is_backfilled(&self) -> bool {
        self.backfilled
    }

    /// Larger than that of every earlier run of the job. Send it along with what is written. Under
    /// [`Overlap::Allow`](super::Overlap::Allow), where runs have no order, it is larger than that
    /// of every earlier run of this *tick* only.
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// A key for a step in a downstream system that recognises repeats: the same for every attempt
    /// at this tick, different for every other.
    pub fn child_key(&self, step: &str) -> String {
        self.cx.child_key(step)
    }

    /// Whether the run may go on, by a local look at the clock.
    pub fn is_valid(&self) -> bool {
        self.cx.is_valid()
    }

    /// What is left of the run's lease, unless it is renewed; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        self.cx.remaining()
    }

    /// Resolves when the run may not go on: somebody else may run the tick now. The future of the
    /// run is dropped then, so only work in tasks of its own needs it.
    ///
    /// # Cancellation safety
    /// May be dropped and asked again at will.
    pub async fn lost(&self) {
        self.cx.lost().await;
    }

    /// Resolves when the run is cancelled, with the reason: from then on it has the job's
    /// [grace](super::Job::grace) to end by itself.
    ///
    /// # Cancellation safety
    /// May be dropped and asked again at will.
    pub async fn cancelled(&self) -> Cancelled {
        let mut cancel = self.cancel.subscribe();
        loop {
            if let Some(why) = *cancel.borrow_and_update() {
                return why;
            }
            // This tick keeps the sender.
            let _ = cancel.changed().await;
        }
    }
}

pub(super) fn at(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds.unsigned_abs())
}

/// What is kept of a tick that is over.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Run {
    /// Host and process.
    pub by: String,
    /// In milliseconds since 1970, by that machine's clock.
    pub started: u64,
    /// In milliseconds since 1970: `started`, and how long it took by the clock that nobody sets;
    /// not less than [`at_least`](super::Job::at_least).
    pub ended: u64,
    /// Which attempt it was.
    pub attempt: u32,
    /// The run's fencing token.
    pub token: u64,
    /// It was run belatedly by the [`Missed`](super::Missed) policy.
    pub backfilled: bool,
    /// How it ended.
    pub end: End,
}

/// How a tick ended.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum End {
    /// The job returned `Ok`.
    Done,
    /// The job returned this error.
    Failed(String),
    /// It was not run, for this reason.
    Skipped(Skipped),
    /// The job was cancelled, for this reason.
    Cancelled(Cancelled),
}

/// Why a tick was not run.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Skipped {
    /// It was due while an earlier one ran.
    Overlap,
    /// A later one was due already, and that cancels earlier ones.
    Superseded,
}

/// Why a run was cancelled.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cancelled {
    /// It ran for too long ([`Job::at_most`](super::Job::at_most)).
    TooLong,
    /// The next tick was due ([`Overlap::CancelPrevious`](super::Overlap::CancelPrevious)).
    NextTick,
}

/// One tick of a job's [history](super::Cron::history).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TickReport {
    /// When it was due.
    pub at: SystemTime,
    /// What became of it.
    pub state: TickState,
}

/// What became of a tick.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TickState {
    /// It is over.
    Over(Run),
    /// It runs.
    Running,
    /// It began and left no result: the process died, or its lease was lost.
    Interrupted,
    /// No record of it: it was missed, no process has looked at it yet, or it was due longer ago
    /// than the job's [retention](super::Job::retention).
    Absent,
    /// The nodes cannot say: too few of them have kept everything since.
    Unknown,
}
