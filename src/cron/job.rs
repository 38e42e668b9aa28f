//! A job: its schedule and its policies.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::schedule::Schedule;
use super::{HOUR, YEAR};
use crate::error::ConfigError;
use crate::name::check_name;

/// Largest delay of a tick, unless the job allows more.
const LATE: Duration = Duration::from_secs(60);
/// How long records of ticks are kept by default: longer than any weekly tick is away.
const RETENTION: Duration = Duration::from_secs(8 * 24 * 3_600);

/// What becomes of ticks that were missed: nobody ran them within [`Job::late`], for no process was
/// there or no node could be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missed {
    /// They are left out.
    Skip,
    /// The latest one is run, unless a later one is on time.
    RunLatest,
    /// Those of the last `window` are run in their order, the latest `max` of them.
    CatchUp {
        /// How far back.
        window: Duration,
        /// How many at most.
        max: usize,
    },
}

/// What becomes of a tick that is due while an earlier one still runs, on any process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overlap {
    /// It is left out.
    Skip,
    /// The first one is run afterwards, the others are left out.
    BufferOne,
    /// Both run at the same time.
    Allow,
    /// The earlier run is cancelled. A run is cancelled when its next tick is due.
    CancelPrevious,
}

/// What becomes of a tick whose run began and left no result: the process died, or its lease was
/// lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interrupted {
    /// It is run again, with the next [`Tick::attempt`](super::Tick::attempt). For jobs whose
    /// effect recognises repeats.
    Rerun,
    /// It is not run again; [`Cron::history`](super::Cron::history) shows it. For jobs that must
    /// not run twice.
    Leave,
}

/// A job. Every process that runs it gives the same name and the same settings.
#[derive(Clone, Debug)]
#[must_use = "a job does nothing until `Cron::run`"]
pub struct Job {
    pub(super) name: Arc<str>,
    text: String,
    zone: String,
    pub(super) missed: Missed,
    pub(super) overlap: Overlap,
    pub(super) interrupted: Interrupted,
    pub(super) late: Option<Duration>,
    pub(super) jitter: Duration,
    pub(super) at_least: Duration,
    pub(super) at_most: Option<Duration>,
    pub(super) grace: Duration,
    pub(super) retention: Duration,
}

impl Job {
    /// A job with a cron expression: `minutes hours day-of-month month weekday`, with seconds in
    /// front if there are six fields, or `@hourly` and its like. In UTC unless
    /// [`zone`](Self::zone) says otherwise.
    ///
    /// Without more words: the newest tick is run up to a minute late, older ones are left out, so
    /// are those that are due while the job still runs, and a tick whose run was interrupted is run
    /// again.
    pub fn new(name: impl Into<String>, schedule: impl Into<String>) -> Self {
        Self {
            name: name.into().into(),
            text: schedule.into(),
            zone: "UTC".to_owned(),
            missed: Missed::Skip,
            overlap: Overlap::Skip,
            interrupted: Interrupted::Rerun,
            late: None,
            jitter: Duration::ZERO,
            at_least: Duration::ZERO,
            at_most: None,
            grace: Duration::ZERO,
            retention: RETENTION,
        }
    }

    /// The zone in which the schedule is read, as `Europe/Zurich`.
    ///
    /// Where its clocks change: a schedule with fixed hours and minutes that names a time which is
    /// skipped runs at the first instant after the gap, and one that names a time which comes twice
    /// runs at the first of them. A schedule with `*` or `*/n` in seconds, minutes or hours goes on
    /// at its interval, through both hours that look alike.
    pub fn zone(mut self, zone: impl Into<String>) -> Self {
        self.zone = zone.into();
        self
    }

    /// What becomes of missed ticks; default [`Missed::Skip`].
    pub fn missed(mut self, policy: Missed) -> Self {
        self.missed = policy;
        self
    }

    /// What becomes of ticks that are due while an earlier one runs; default [`Overlap::Skip`].
    pub fn overlap(mut self, policy: Overlap) -> Self {
        self.overlap = policy;
        self
    }

    /// What becomes of ticks whose run left no result; default [`Interrupted::Rerun`].
    pub fn interrupted(mut self, policy: Interrupted) -> Self {
        self.interrupted = policy;
        self
    }

    /// Sets the largest delay of a tick that still counts as on time. Default: until the next one
    /// is due, at most a minute; so after an outage the newest tick alone is run, however many were
    /// due. A tick whose run began, or that waited for an earlier run, has the minute in any case.
    ///
    /// With a `late` that is longer than the schedule's interval all ticks of that time are run
    /// after an outage, one right after the other. To lose no tick of a short interval, it has to
    /// cover a failover and the lease of a process that died.
    pub fn late(mut self, late: Duration) -> Self {
        self.late = Some(late);
        self
    }

    /// The longest time by which a tick is run late.
    pub(super) fn latest(&self) -> Duration {
        self.late.unwrap_or(LATE)
    }

    /// Ticks are run up to so much later, each by an amount of its own on which all processes
    /// agree. Default: none.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// The job counts as running for so long at least, so that a later tick of a faster clock
    /// overlaps it. Default: none. Not for [`Overlap::Allow`].
    pub fn at_least(mut self, span: Duration) -> Self {
        self.at_least = span;
        self
    }

    /// A run is cancelled after so long. Default: never.
    pub fn at_most(mut self, span: Duration) -> Self {
        self.at_most = Some(span);
        self
    }

    /// How long a cancelled run goes on before its future is dropped, so that it can end by itself
    /// when [`Tick::cancelled`](super::Tick::cancelled) says so. If it returns `Ok` within that
    /// time its tick is done. Under [`Overlap::CancelPrevious`] the next tick begins when it has
    /// ended. Default: none.
    pub fn grace(mut self, span: Duration) -> Self {
        self.grace = span;
        self
    }

    /// How long the nodes keep what became of a tick; default 8 days. An older tick is never run,
    /// so a process that was stopped for longer runs no tick a second time. One value for the job,
    /// the same in every process, whatever its schedule is or becomes: raise it in all processes
    /// before anything relies on it, and lower it only when no process has the larger one any more.
    ///
    /// At least an hour and twice the window of [`Missed::CatchUp`], at most 366 days; with
    /// [`Missed::RunLatest`] also as long as the longest time between two ticks. A job that ticks
    /// each second leaves 86,400 records a day, of about 200 bytes on each node: give it a shorter
    /// retention.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    fn window(&self) -> Duration {
        match self.missed {
            Missed::CatchUp { window, .. } => window.max(self.latest()),
            _ => self.latest(),
        }
    }

    /// Checks all settings.
    pub(super) fn schedule(&self) -> Result<Schedule, ConfigError> {
        check_name("name", &self.name)?;
        if self.at_most.is_some_and(|most| most <= self.at_least) {
            let value = format!("{:?}", self.at_least);
            return Err(ConfigError::new("at_least", value, "must be less than `at_most`"));
        }
        let schedule = Schedule::parse(&self.text, &self.zone)?;
        self.check_retention(&schedule)?;
        Ok(schedule)
    }

    fn check_retention(&self, schedule: &Schedule) -> Result<(), ConfigError> {
        let refuse = |rule: String| {
            Err(ConfigError::new("retention", format!("{:?}", self.retention), rule))
        };
        let least = HOUR.max(2 * self.window());
        if !(least..=YEAR).contains(&self.retention) {
            return refuse(format!(
                "at least an hour and twice the time for which missed or late ticks are run \
                 ({least:?}), at most 366 days"
            ));
        }
        if self.missed == Missed::RunLatest
            && self.retention < YEAR
            && let Some(days) = schedule.pause_longer_than(self.retention)
        {
            return refuse(format!(
                "at least {days} days, the longest pause of this schedule (or 366, the most \
                 there is), because its latest missed tick is to be run"
            ));
        }
        Ok(())
    }

    /// By how much this tick is run later, in milliseconds.
    pub(super) fn jitter_of(&self, tick: i64) -> u64 {
        let most = u64::try_from(self.jitter.as_millis()).unwrap_or(u64::MAX);
        let hash = Sha256::digest(format!("{}@{tick}", self.name).as_bytes());
        let random = hash.iter().take(8).fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
        if most == 0 { 0 } else { random % most }
    }
}
