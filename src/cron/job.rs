//! A job: its schedule and its policies.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::schedule::Schedule;
use super::{HOUR, YEAR};
use crate::error::ConfigError;
use crate::name::check_name;

/// Largest delay at which a tick still counts as on time, unless the job sets another one.
const LATE: Duration = Duration::from_secs(60);
/// Default retention of the records of ticks: longer than the interval of a weekly job.
const RETENTION: Duration = Duration::from_secs(8 * 24 * 3_600);

/// Policy for missed ticks. A tick is missed if no process ran it within [`Job::late`], because no
/// process was alive or no node could be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missed {
    /// Missed ticks are left out.
    Skip,
    /// The latest missed tick is run, unless a later tick is on time.
    RunLatest,
    /// Missed ticks that are at most `window` old are run in their order. If there are more than
    /// `max`, only the latest `max` are run.
    CatchUp {
        /// Largest age of a missed tick that is run.
        window: Duration,
        /// Largest number of missed ticks that are run.
        max: usize,
    },
}

/// Policy for a tick that is due while an earlier tick of the job still runs, in any process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overlap {
    /// The tick is left out.
    Skip,
    /// The first tick that is due during a run is run after it; the others are left out.
    BufferOne,
    /// Both ticks run at the same time.
    Allow,
    /// The earlier run is cancelled as soon as the next tick is due.
    CancelPrevious,
}

/// Policy for a tick whose run began and left no result, because the process died or its lease was
/// lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interrupted {
    /// The tick is run again, with the next number of [`Tick::attempt`](super::Tick::attempt). This
    /// is for jobs whose effect recognises repeats.
    Rerun,
    /// The tick is not run again; [`Cron::history`](super::Cron::history) shows it. This is for
    /// jobs that must not run twice.
    Leave,
}

/// A job: its name, its schedule and its policies. Every process that runs the job uses the same
/// name and settings.
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
    /// Creates a job with a cron expression: `minutes hours day-of-month month weekday`, preceded
    /// by seconds if there are six fields, or `@hourly` and similar. The time zone is UTC unless
    /// [`zone`](Self::zone) sets another one.
    ///
    /// By default, the newest tick is run up to a minute late, and older ones are left out. Ticks
    /// that are due while the job still runs are left out, and a tick whose run was interrupted is
    /// run again.
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

    /// Sets the time zone of the schedule, such as `Europe/Zurich`.
    ///
    /// When the clocks of the zone change, a schedule with fixed hours and minutes runs as follows:
    /// a time that is skipped runs at the first instant after the gap, and a time that occurs twice
    /// runs at the first of the two. A schedule with `*` or `*/n` in seconds, minutes or hours
    /// continues at its interval, also through an hour that occurs twice.
    pub fn zone(mut self, zone: impl Into<String>) -> Self {
        self.zone = zone.into();
        self
    }

    /// Sets the policy for missed ticks; default [`Missed::Skip`].
    pub fn missed(mut self, policy: Missed) -> Self {
        self.missed = policy;
        self
    }

    /// Sets the policy for ticks that are due while an earlier one runs; default [`Overlap::Skip`].
    pub fn overlap(mut self, policy: Overlap) -> Self {
        self.overlap = policy;
        self
    }

    /// Sets the policy for ticks whose run left no result; default [`Interrupted::Rerun`].
    pub fn interrupted(mut self, policy: Interrupted) -> Self {
        self.interrupted = policy;
        self
    }

    /// Sets the largest delay at which a tick still counts as on time. By default a tick is on time
    /// until the next one is due, and for a minute at most. So after an outage only the newest tick
    /// is run, however many were due. Whatever `late` is, two kinds of tick are on time for at
    /// least a minute after they were due: one whose run was begun and broken off, and one that had
    /// to wait for an earlier run.
    ///
    /// If `late` is longer than the schedule's interval, several ticks can be on time after an
    /// outage, and they are run one after the other. To lose no tick of a short interval, set
    /// `late` to at least the duration of a failover plus the lease of a process that died.
    pub fn late(mut self, late: Duration) -> Self {
        self.late = Some(late);
        self
    }

    /// Returns the largest delay at which a tick is still run as on time.
    pub(super) fn latest(&self) -> Duration {
        self.late.unwrap_or(LATE)
    }

    /// Delays each tick by a pseudo-random time shorter than `jitter`, which is the same in all
    /// processes. Default: none.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Sets the shortest time for which a run counts as running, even if it ends earlier. If the
    /// next tick is due too early by another machine's fast clock, it then overlaps the run.
    /// Default: none. Not for [`Overlap::Allow`].
    pub fn at_least(mut self, span: Duration) -> Self {
        self.at_least = span;
        self
    }

    /// Cancels a run that lasts longer than this. Default: never.
    pub fn at_most(mut self, span: Duration) -> Self {
        self.at_most = Some(span);
        self
    }

    /// Sets the time for which a cancelled run may continue before its future is dropped. In this
    /// time it can end by itself, because [`Tick::cancelled`](super::Tick::cancelled) has resolved.
    /// If it returns `Ok` within that time, its tick is done. Under [`Overlap::CancelPrevious`] the
    /// next tick begins when the cancelled run has ended. Default: none.
    pub fn grace(mut self, span: Duration) -> Self {
        self.grace = span;
        self
    }

    /// Sets the time for which the nodes keep the result of a tick; default 8 days. A tick older
    /// than that is never run, so a process that was stopped for longer does not run a tick a
    /// second time. All processes must use the same value for the job, also when its schedule
    /// changes. Raise it in all processes before another setting needs the larger value, and lower
    /// it only when no process uses the larger value any more.
    ///
    /// The retention is at least an hour, at least twice [`late`](Self::late), and at least twice
    /// the window of [`Missed::CatchUp`]. With [`Missed::RunLatest`] it is also at least the
    /// longest time between two ticks. The largest value is 366 days. A job that ticks each second
    /// leaves 86,400 records a day, of about 200 bytes on each node, so give it a shorter
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

    /// Checks all settings, and returns the parsed schedule.
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

    /// Returns the delay of this tick because of the jitter, in milliseconds.
    pub(super) fn jitter_of(&self, tick: i64) -> u64 {
        let most = u64::try_from(self.jitter.as_millis()).unwrap_or(u64::MAX);
        let hash = Sha256::digest(format!("{}@{tick}", self.name).as_bytes());
        let random = hash.iter().take(8).fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
        if most == 0 { 0 } else { random % most }
    }
}
