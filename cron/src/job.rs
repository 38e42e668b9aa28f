//! A job: its schedule and its policies.

use std::sync::Arc;
use std::time::Duration;

use palisade::error::ConfigError;
use palisade::internal::check_name;
use sha2::{Digest as _, Sha256};

use super::missed::{LATE, millis, millis_of};
use super::schedule::Schedule;
use super::{HOUR, YEAR};

const RETENTION: Duration = Duration::from_secs(8 * 24 * 3_600);

/// Policy for missed ticks. A tick is missed if no process ran it within [`Job::late`], for example
/// because no process was running or too few nodes could be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missed {
    /// Missed ticks are not run.
    Skip,
    /// The latest missed tick is run, unless a later tick is on time or has run.
    RunLatest,
    /// Missed ticks that are at most `window` old are run in order; with [`Overlap::BufferOne`] and
    /// several processes, one that was due during a run may come after later ones. If there are
    /// more than `max`, only the latest `max` ticks are run. Which ones these are is decided when
    /// the nodes can be reached again, or when a process starts; a tick that is too old when its
    /// turn comes is not run. Missed ticks that were run before count only against earlier ones:
    /// after a second outage within the window, up to `max` later ticks are run again.
    CatchUp {
        /// Largest age of a missed tick that is run.
        window: Duration,
        /// Largest number of missed ticks that are run after one outage.
        max: usize,
    },
}

/// Policy for a tick that is due during the run of an earlier tick of the job, in any process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overlap {
    /// A tick that is due during an earlier run is not run.
    Skip,
    /// The first tick that is due during a run of the job is run after that run. The other ticks
    /// that are due during the run are not run.
    BufferOne,
    /// The tick and the earlier run run at the same time.
    Allow,
    /// The earlier run is cancelled when the next tick is due.
    CancelPrevious,
}

/// Policy for a tick with an interrupted run: the run began and left no result, because the process
/// died or lost its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Interrupted {
    /// The tick is run again, and [`Tick::attempt`](super::Tick::attempt) is one higher. This is
    /// for jobs with effects that may be repeated. The tick does not count as missed, whenever its
    /// run was interrupted: a process that starts later finds it, too, until the job's
    /// [retention](Job::retention) is over. With [`Overlap::CancelPrevious`] it is run again only
    /// until the next tick is due.
    Rerun,
    /// The tick is not run again. [`Cron::history`](super::Cron::history) reports it as
    /// interrupted. This is for jobs that must not run twice.
    Leave,
}

/// A job: its name, its schedule and its policies. All processes that run the job must use the same
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
    pub(super) on_request: bool,
}

impl Job {
    /// Creates a job with a cron expression: `minutes hours day-of-month month weekday`. A sixth
    /// field in front has the seconds. Names such as `@hourly` are allowed too. The time zone is
    /// UTC unless [`zone`](Self::zone) sets another one.
    ///
    /// By default, only the newest tick is run, at most a minute late. Ticks that are due during a
    /// run of the job are not run. A tick with an interrupted run is run again.
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
            on_request: false,
        }
    }

    /// Sets the time zone of the schedule, such as `Europe/Zurich`.
    ///
    /// For a schedule with fixed hours and minutes, a change of the zone's clocks (summer time) has
    /// two effects. A tick in a skipped hour runs at the first instant after the gap. A tick in a
    /// repeated hour runs only in the first of the two hours. A schedule with `*` or `*/n` in
    /// seconds, minutes or hours continues at its interval through both of the repeated hours.
    pub fn zone(mut self, zone: impl Into<String>) -> Self {
        self.zone = zone.into();
        self
    }

    /// Sets the policy for missed ticks; default [`Missed::Skip`].
    pub fn missed(mut self, policy: Missed) -> Self {
        self.missed = policy;
        self
    }

    /// Sets the policy for ticks that are due during the run of an earlier tick; default
    /// [`Overlap::Skip`].
    pub fn overlap(mut self, policy: Overlap) -> Self {
        self.overlap = policy;
        self
    }

    /// Sets the policy for ticks with an interrupted run; default [`Interrupted::Rerun`].
    pub fn interrupted(mut self, policy: Interrupted) -> Self {
        self.interrupted = policy;
        self
    }

    /// Sets the largest delay with which a tick still counts as on time and is run; at most 183
    /// days. By default a tick is on time until the next tick is due, at most for a minute. So
    /// after an outage only the newest tick is run. The delay counts from the end of the tick's
    /// [`jitter`](Self::jitter).
    ///
    /// Three kinds of ticks are run later than that, for any value of `late`: a tick with an
    /// interrupted run ([`Interrupted::Rerun`]), a tick that [`Overlap::BufferOne`] runs after an
    /// earlier run, and, for a minute, a tick whose handler asks for another run.
    ///
    /// If `late` is longer than the interval of the schedule, several ticks can be on time after an
    /// outage. These ticks are run one after the other. If a schedule has a short interval and none
    /// of its ticks may be lost, set `late` to at least the duration of a failover plus the ttl of
    /// the `Redlock` handle.
    pub fn late(mut self, late: Duration) -> Self {
        self.late = Some(late);
        self
    }

    pub(super) fn latest(&self) -> Duration {
        self.late.unwrap_or(LATE)
    }

    /// Delays each tick by a pseudo-random time below `jitter`. The delay of a tick is the same in
    /// all processes. Default: no delay. The jitter is less than the shortest time between two
    /// ticks of the schedule.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Sets the shortest time for which a run counts as running, even if the run ends earlier. It
    /// is for processes on other machines with a fast clock: they may find the next tick due too
    /// early. With this setting, such a tick counts as due during the run. Default: zero; at most
    /// 366 days. It has no effect with [`Overlap::Allow`].
    pub fn at_least(mut self, span: Duration) -> Self {
        self.at_least = span;
        self
    }

    /// Sets the longest duration of a run, at most 366 days. A longer run is cancelled. Default: no
    /// limit.
    pub fn at_most(mut self, span: Duration) -> Self {
        self.at_most = Some(span);
        self
    }

    /// Sets the time for which a cancelled run may continue before its future is dropped. In this
    /// time [`Tick::cancelled`](super::Tick::cancelled) has resolved, and the run can end by
    /// itself. If the run returns `Ok` in this time, its tick is done. With
    /// [`Overlap::CancelPrevious`] the next tick begins after the end of the cancelled run.
    /// Default: zero; at most 366 days.
    pub fn grace(mut self, span: Duration) -> Self {
        self.grace = span;
        self
    }

    /// Sets the time for which the nodes keep the result of a tick; default 8 days. A tick older
    /// than the retention is never run. So a process that was stopped for longer does not run a
    /// tick a second time. All processes must use the same retention for the job, even during a
    /// change of its schedule. If another setting needs a longer retention, first raise the
    /// retention in all processes. Lower the retention only after no process needs the longer one.
    ///
    /// The retention is at least an hour, at least twice [`late`](Self::late), and at least twice
    /// the window of [`Missed::CatchUp`]. With [`Missed::RunLatest`] it is also at least the
    /// longest time between two ticks. The largest value is 366 days. A job that ticks each second
    /// leaves 86,400 records a day, each of about 200 bytes on each node. Use a shorter retention
    /// for such a job.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Allows operators to run the job outside of its schedule ([`Cron::request_run`], `palisade
    /// run-now`). The process that leads looks for requests every two seconds, and the other
    /// processes every ten seconds. Each look is one small request to each node. Call this method
    /// in all processes that run the job. Default: not allowed.
    ///
    /// The run of a request is a tick, and its instant is the time of the request
    /// ([`Tick::is_requested`](super::Tick::is_requested)). The tick is run once, even if the
    /// leader changes. If the run is interrupted, the policy [`interrupted`](Self::interrupted)
    /// decides. Unless runs may overlap, the requested run waits for the end of an earlier run. The
    /// ticks of the schedule that are due during the requested run wait for its end, as long as
    /// they are on time. If no run for a request has begun a minute after the request, none begins
    /// later.
    ///
    /// [`Cron::request_run`]: super::Cron::request_run
    pub fn on_request(mut self) -> Self {
        self.on_request = true;
        self
    }

    pub(super) fn schedule(&self) -> Result<Schedule, ConfigError> {
        check_name("name", &self.name)?;
        let schedule = Schedule::parse(&self.text, &self.zone)?;
        self.check_spans(&schedule)?;
        self.check_retention(&schedule)?;
        Ok(schedule)
    }

    fn check_spans(&self, schedule: &Schedule) -> Result<(), ConfigError> {
        let refuse = |field, span: Duration, rule: String| {
            Err(ConfigError::new(field, format!("{span:?}"), rule))
        };
        let spans = [
            ("jitter", Some(self.jitter)),
            ("at_least", Some(self.at_least)),
            ("at_most", self.at_most),
            ("grace", Some(self.grace)),
        ];
        for (field, span) in spans {
            if let Some(span) = span.filter(|span| *span > YEAR) {
                return refuse(field, span, "at most 366 days".to_owned());
            }
        }
        if let Some(most) = self.at_most.filter(|most| *most <= self.at_least) {
            return if self.at_least.is_zero() {
                refuse("at_most", most, "must be more than zero".to_owned())
            } else {
                refuse("at_least", self.at_least, "must be less than `at_most`".to_owned())
            };
        }
        if !self.jitter.is_zero()
            && let Some(shortest) = schedule.shortest_pause()
            && self.jitter >= shortest
        {
            let rule = format!(
                "must be less than {shortest:?}, the shortest time between two ticks of this \
                 schedule"
            );
            return refuse("jitter", self.jitter, rule);
        }
        Ok(())
    }

    fn check_retention(&self, schedule: &Schedule) -> Result<(), ConfigError> {
        let refuse = |rule: String| {
            Err(ConfigError::new("retention", format!("{:?}", self.retention), rule))
        };
        if !(HOUR..=YEAR).contains(&self.retention) {
            return refuse("at least an hour, at most 366 days".to_owned());
        }
        let window = match self.missed {
            Missed::CatchUp { window, .. } => ("missed", window),
            Missed::Skip | Missed::RunLatest => ("missed", Duration::ZERO),
        };
        for (field, span) in [("late", self.latest()), window] {
            let least = span.saturating_mul(2);
            if least <= self.retention {
                continue;
            }
            let twice = "twice the time for which missed or late ticks are run";
            return if least > YEAR {
                let rule = "at most 183 days, half of the longest `retention`";
                Err(ConfigError::new(field, format!("{span:?}"), rule))
            } else if self.retention == RETENTION {
                let rule = format!("needs a `retention` of {twice} ({least:?})");
                Err(ConfigError::new(field, format!("{span:?}"), rule))
            } else {
                refuse(format!("at least {twice} ({least:?}, by `{field}`)"))
            };
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

    /// With its jitter, in milliseconds since 1970.
    pub(super) fn due(&self, tick: i64) -> u64 {
        millis(tick).saturating_add(self.jitter_of(tick))
    }

    /// In milliseconds. Computed from the job's name and the tick, so the same in all processes.
    pub(super) fn jitter_of(&self, tick: i64) -> u64 {
        let most = millis_of(self.jitter);
        if most == 0 {
            return 0;
        }
        let hash = Sha256::digest(format!("{}@{tick}", self.name).as_bytes());
        let random = hash.iter().take(8).fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
        random % most
    }
}
