//! The loop that runs one job in one process. The loop computes the due ticks (times at which the
//! schedule starts a run), reads the record of each due tick (the stored result of its run), and
//! runs the ticks that no process has run. The time at which an operator requests a run is a due
//! tick, too.
//!
//! ```text
//!  due ─▶ record ─▶ over: removed
//!            │ └──▶ runs elsewhere: checked again
//!            ▼
//!         lock of the job ─▶ taken: checked again   (not if runs may overlap)
//!            ▼
//!         due during an earlier run? ─▶ skipped, by policy
//!            ▼
//!         claim, run, complete
//! ```

mod attend;
mod outcome;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, UNIX_EPOCH};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tracing::Instrument as _;

use super::job::{Job, Overlap};
use super::missed::{OnTime, is_missed, millis, plan};
use super::overlap::{During, Overlaps};
use super::request;
use super::schedule::Schedule;
use super::start::start;
use super::tick::{End, Run, Skipped, Tick};
use super::{Cron, CronError, Running};
use crate::client::WATCH;
use crate::error::{AcquireError, Advice};
use crate::idempotency::{Call, Context, Failed, Idempotency, Outcome, RunError, Status};
use crate::lock::{LockGuard, Mutex};
use crate::metrics::JobMeters;
use crate::span::operation;
use crate::time::Moment;

/// Largest number of ticks (due times of a job) that run in this process at the same time, if the
/// runs of the job may overlap.
const AT_ONCE: usize = 64;
/// Largest number of missed ticks of a job that are counted at once for the metrics.
const MISSED: usize = 10_000;
/// Pause before the next check of a tick, if the last check could not decide if the tick is run.
const AGAIN: Duration = Duration::from_millis(200);
/// Shortest and longest delay of the first check of a tick in a process that does not lead. With
/// the delay, the leading process checks the tick first.
const HOLD_BACK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// State of a tick that is due and not finished. A tick is one due time of the job.
#[derive(Clone, Copy, Debug)]
struct Due {
    backfilled: bool,
    /// True if an operator requested the run. The tick is then the time of the request.
    requested: bool,
    /// True if a run of the tick has begun, or if the tick waited for an earlier run.
    tried: bool,
    /// Time of the next check of this tick, in milliseconds since 1970.
    check_at: u64,
}

/// The ticks that are due and not finished. The key is the time of the tick in seconds since 1970,
/// and true if an operator requested the tick, false if it is a tick of the schedule.
type DueTicks = BTreeMap<(i64, bool), Due>;

/// Result of a check of a tick, which is one due time of the job.
enum CheckResult {
    Over,
    Again(Duration),
    /// The run of the tick failed and may be repeated. The value is the pause before the next
    /// check.
    Retry(Duration),
}

struct Engine<'a, F> {
    cron: &'a Cron,
    job: &'a Job,
    schedule: &'a Schedule,
    handler: &'a F,
    records: Idempotency,
    /// Idempotency records of operators' requests to run the job; `None` if the job does not allow
    /// requests.
    requests: Option<Idempotency>,
    /// Lock that this process holds during a run of the job; `None` if runs may overlap.
    lock: Option<Mutex>,
    since: i64,
    /// Time at which this process began to run the job, in seconds since 1970.
    began: i64,
    by: String,
    meters: Arc<JobMeters>,
    overlaps: Overlaps,
    /// True if a tick has to wait and the reason was logged. The end of a tick sets it to false, so
    /// that the next reason is logged again.
    waits: AtomicBool,
}

/// Returns the idempotency call that reads or claims the record of a tick.
pub(super) fn call(records: &Idempotency, job: &Job, tick: i64) -> Call {
    // The birth of the idempotency key (the time since which the key can exist) is the due time of
    // the tick, because no process can have run the tick before.
    let born = UNIX_EPOCH + Duration::from_secs(tick.unsigned_abs());
    records.key(format!("{}@{tick}", job.name)).created_at(born)
}

pub(super) async fn run<F, Fut, E>(
    cron: &Cron,
    job: &Job,
    schedule: &Schedule,
    handler: &F,
) -> Result<(), CronError>
where
    F: Fn(Tick) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Into<Failed>,
{
    let records = cron.records(job)?;
    let requests = job.on_request.then(|| cron.requests()).transpose()?;
    // All settings are checked before the first tick, so that `run` fails at once if a setting is
    // wrong.
    let lock = match job.overlap {
        Overlap::Allow => None,
        _ => Some(cron.redlock.mutex(format!("cron:{}", job.name)).acquire_timeout(AGAIN).build()?),
    };
    let closing = cron.core().closing.begun();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let work = async {
        let since = start(cron, job, schedule, &records).await?;
        let by = format!("{host}:{}", std::process::id());
        let meters = cron.core().meters.job(&job.name);
        let engine = Engine {
            cron,
            job,
            schedule,
            handler,
            records,
            requests,
            lock,
            since,
            began: cron.now(),
            by,
            meters,
            overlaps: Overlaps::default(),
            waits: AtomicBool::new(false),
        };
        match engine.run().await {}
    };
    tokio::select! {
        biased;
        () = closing => Ok(()),
        ended = work => ended,
    }
}

/// Returns true if `instant` is ahead of this process's clock by more than two correct clocks can
/// differ. `instant` is a time that another process, or this one, read from its clock before.
pub(super) fn is_ahead(cron: &Cron, instant: i64) -> bool {
    let apart = 2 * cron.core().config.clock_error;
    millis(instant) > cron.core().env.wall_micros() / 1_000 + apart.as_millis() as u64
}

impl<F, Fut, E> Engine<'_, F>
where
    F: Fn(Tick) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Into<Failed>,
{
    fn now(&self) -> u64 {
        self.cron.core().env.wall_micros() / 1_000
    }

    /// Returns the present time of the library's monotonic clock.
    fn moment(&self) -> Moment {
        self.cron.core().env.now()
    }

    async fn run(&self) -> Infallible {
        let mut due = DueTicks::new();
        let requests = request::requests(self.cron, &self.job.name, self.requests.as_ref());
        let mut requests = std::pin::pin!(requests);
        let mut running = FuturesUnordered::new();
        let at_once = if self.job.overlap == Overlap::Allow { AT_ONCE } else { 1 };
        // The search for due ticks begins at the time since which the job has this schedule. Ticks
        // before that time do not belong to this schedule, so they are not missed.
        let mut seen = self.since().unwrap_or(self.cron.now());
        loop {
            let now = self.now();
            self.follow(&mut due, &mut seen);
            self.add_due(&mut due, &mut seen, now);
            let ready =
                |((tick, _), d): (&(i64, bool), &Due)| (d.check_at <= now).then_some((*tick, *d));
            if running.len() < at_once
                && let Some((tick, d)) = due.iter().find_map(ready)
            {
                due.remove(&(tick, d.requested));
                running.push(async move { (tick, d, self.check(tick, d).await) });
                continue;
            }
            let room = running.len() < at_once;
            let next_check = due.values().map(|d| d.check_at).min().filter(|_| room);
            let next_tick = self.schedule.after(seen).map(millis);
            let next = next_check.into_iter().chain(next_tick).min().unwrap_or(u64::MAX);
            // The loop sleeps for at most `WATCH`, because the wall clock may be set during the
            // sleep, and tokio's timers stop while the computer is suspended.
            let rest = Duration::from_millis(next.saturating_sub(now)).min(WATCH);
            tokio::select! {
                biased;
                Some((tick, mut d, result)) = running.next(), if !running.is_empty() => {
                    d.tried |= matches!(result, CheckResult::Retry(_));
                    match result {
                        CheckResult::Over => self.waits.store(false, Ordering::Relaxed),
                        CheckResult::Again(pause) | CheckResult::Retry(pause) => {
                            let check_at = self.now() + pause.as_millis() as u64;
                            // If the clock was set back, `check_at` could be before the due time of
                            // the tick. So the due time is the lower limit.
                            d.check_at = check_at.max(millis(tick));
                            due.insert((tick, d.requested), d);
                        }
                    }
                }
                Some(at) = requests.next() => {
                    let (backfilled, tried, requested) = (false, false, true);
                    let d = Due { backfilled, requested, tried, check_at: self.now() };
                    due.insert((at, requested), d);
                }
                () = tokio::time::sleep(rest.max(Duration::from_millis(1))) => {}
            }
        }
    }

    /// Returns the time since which the job has this schedule; `None` if that time is ahead of this
    /// process's clock.
    fn since(&self) -> Option<i64> {
        (!is_ahead(self.cron, self.since)).then_some(self.since)
    }

    /// Handles a wall clock that was set back. The ticks that are on time by the new clock are
    /// checked again. The records show which of these ticks were already run.
    fn follow(&self, due: &mut DueTicks, seen: &mut i64) {
        let since = self.since();
        *seen = since.map_or(*seen, |since| since.max(*seen));
        if !is_ahead(self.cron, *seen) {
            return;
        }
        let now = self.cron.now();
        tracing::warn!(
            target: "palisade::cron",
            job = %self.job.name, before = *seen, now,
            "the clock went back; ticks that have run already are not run again"
        );
        let on_time = now.saturating_sub(whole(self.job.latest().as_secs()));
        *seen = since.map_or(now, |since| since.max(on_time));
        for ((tick, requested), d) in due {
            // A requested run has no jitter, because after a long jitter it would be too late to
            // begin.
            d.check_at = if *requested { millis(*tick) } else { self.first_check(*tick) };
        }
    }

    /// Returns the time of a tick's first check, in milliseconds since 1970.
    fn first_check(&self, tick: i64) -> u64 {
        let leads = self.cron.lead.term.borrow().is_some();
        let hold_back = if leads { Duration::ZERO } else { self.hold_back() };
        millis(tick) + self.job.jitter_of(tick) + hold_back.as_millis() as u64
    }

    /// Adds to `due` the ticks that are due at `now`. Counts and logs the ticks that are too late
    /// to be run.
    fn add_due(&self, due: &mut DueTicks, seen: &mut i64, now: u64) {
        let (seconds, late) = (whole(now / 1_000), whole(self.job.latest().as_secs()));
        let on_time = OnTime { late, newest_alone: self.job.late.is_none() };
        if self.schedule.after(*seen).is_none_or(|next| next > seconds) {
            return;
        }
        let plan = plan(self.schedule, (*seen, seconds), on_time, self.job.missed);
        // Ticks before the start of this process are not reported as missed, because other
        // processes may have run them. The job's history shows their outcome.
        let left_out = plan.left_out.map(|(first, last)| (first.max(self.began + 1), last));
        if let Some((first, last)) = left_out.filter(|(first, last)| first <= last) {
            let missed = self.schedule.count((first, last), MISSED);
            self.meters.missed(missed as u64);
            tracing::warn!(
                target: "palisade::cron",
                job = %self.job.name, first, last, policy = ?self.job.missed,
                "ticks were missed and are left out, unless another process has run them"
            );
        }
        for (tick, backfilled) in plan.ticks {
            let (tried, requested, check_at) = (false, false, self.first_check(tick));
            due.insert((tick, requested), Due { backfilled, requested, tried, check_at });
        }
        *seen = seconds;
    }

    fn hold_back(&self) -> Duration {
        (self.cron.core().config.ttl / 8).clamp(HOLD_BACK.0, HOLD_BACK.1)
    }

    /// Checks a tick. Runs the tick unless a process runs it now or has run it before.
    async fn check(&self, tick: i64, due: Due) -> CheckResult {
        let Due { backfilled, requested, mut tried, .. } = due;
        match self.call(tick, requested).lookup::<Run>().await {
            Ok(Status::Stored(_) | Status::NotKept) => return CheckResult::Over,
            Ok(Status::Running { remaining, .. }) => {
                return CheckResult::Again(remaining.clamp(AGAIN / 10, AGAIN));
            }
            // An earlier run of the tick began in time, so the tick does not count as missed.
            Ok(Status::Lapsed { .. } | Status::Unsettled) => tried = true,
            Ok(_) => {}
            Err(e) => return self.after_error(&e),
        }
        let guard = match self.lock().await {
            Ok(guard) => guard,
            Err(again) => return again,
        };
        let during = match self.during(tick, requested).await {
            Ok(during) => during,
            Err(e) => return self.after_error(&e),
        };
        let why = match during {
            During::Skipped(why) => Some(why),
            During::Waited | During::NoRun => None,
        };
        tried |= during == During::Waited;
        // The next two checks of the code find ticks that were not checked in time, for example
        // because no node could be reached. Such ticks are not run.
        let of = (self.job, self.schedule);
        if requested && !tried && self.cron.now() > tick + request::LATEST {
            let job = &self.job.name;
            tracing::warn!(target: "palisade::cron", %job, tick, "a requested run is too late");
            return CheckResult::Over;
        }
        let may_be_missed = !backfilled && !requested && why.is_none();
        if may_be_missed && is_missed(of, (tick, tried), self.now()) {
            self.meters.missed(1);
            return CheckResult::Over;
        }
        let operation = operation!("tick", job = %self.job.name, tick);
        let _running = Running::begin(&self.cron.lead.running);
        let began = OnceLock::new();
        let run = self.run_once((tick, due), why, guard.as_ref(), &began);
        let ended = run.instrument(operation.span()).await;
        self.over(operation, tick, &ended);
        if let Some(guard) = guard {
            if let (Ok(Outcome::Executed { .. }), None) = (&ended, why) {
                self.hold(&began, &guard).await;
            }
            drop(guard.release().await);
        }
        match ended {
            Ok(Outcome::Executed { .. } | Outcome::Replayed(_) | Outcome::NotKept) => {
                CheckResult::Over
            }
            Ok(Outcome::InFlight { .. }) => CheckResult::Again(AGAIN),
            Ok(other) => {
                tracing::warn!(
                    target: "palisade::cron",
                    job = %self.job.name, tick, ?other, "the tick is left as it is"
                );
                CheckResult::Over
            }
            Err(e) => self.after_error(&e),
        }
    }

    /// Acquires the job's lock. Returns `None` if the job needs no lock. If another run has the
    /// lock, returns the pause before the next check as an error.
    async fn lock(&self) -> Result<Option<LockGuard>, CheckResult> {
        let Some(lock) = &self.lock else { return Ok(None) };
        match lock.acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(AcquireError::TimedOut { taken, .. }) if !taken.foreign => {
                Err(CheckResult::Again(AGAIN))
            }
            Err(e) => Err(self.wait_because(&e, e.advice())),
        }
    }

    /// Decides if this tick has to wait or is skipped, because of an earlier run or of a later tick
    /// that is already due.
    async fn during(&self, tick: i64, requested: bool) -> Result<During, RunError> {
        let next = self.schedule.after(tick).map(millis);
        match self.job.overlap {
            _ if requested => return Ok(During::NoRun),
            Overlap::Allow => return Ok(During::NoRun),
            Overlap::CancelPrevious => {
                let superseded = next.is_some_and(|next| next <= self.now());
                let skipped = During::Skipped(Skipped::Superseded);
                return Ok(if superseded { skipped } else { During::NoRun });
            }
            Overlap::Skip | Overlap::BufferOne => {}
        }
        let of = (self.job, self.schedule, &self.records);
        self.overlaps.during(of, (tick, self.since().unwrap_or(i64::MIN))).await
    }

    /// Claims the tick, runs it unless it is skipped, and completes it.
    async fn run_once(
        &self,
        (tick, Due { backfilled, requested, .. }): (i64, Due),
        skipped: Option<Skipped>,
        guard: Option<&LockGuard>,
        began: &OnceLock<Moment>,
    ) -> Result<Outcome<Run>, RunError> {
        let work = |cx: Context| async move {
            let started = self.now();
            let began = *began.get_or_init(|| self.moment());
            let token = guard.map_or(cx.fencing_token(), LockGuard::fencing_token);
            let end = if let Some(why) = skipped {
                End::Skipped(why)
            } else {
                let tick = Tick::new(tick, (backfilled, requested), token, cx.clone());
                self.attend(tick, guard).await?
            };
            let least = if skipped.is_none() { self.job.at_least } else { Duration::ZERO };
            // The length of the run is measured by the monotonic clock, because the wall clock may
            // be set during the run.
            let took = self.moment().since(began).max(least);
            let run = Run {
                by: self.by.clone(),
                started,
                ended: started + took.as_millis() as u64,
                attempt: cx.attempt(),
                token: token.get(),
                backfilled,
                requested,
                end,
            };
            tracing::info!(
                target: "palisade::cron",
                job = %self.job.name, tick, token = run.token, attempt = run.attempt,
                late_ms = started.saturating_sub(millis(tick)), end = ?run.end, "tick"
            );
            Ok::<_, Failed>(run)
        };
        // If another process runs the tick, the call below does not wait for the end of that run,
        // because meanwhile this process would keep the job's lock. The tick is checked again
        // later.
        self.call(tick, requested).in_flight_timeout(Duration::ZERO).run(work).await
    }

    /// Returns the idempotency call that reads or claims the record of a due tick.
    fn call(&self, tick: i64, requested: bool) -> Call {
        if requested {
            request::run_of(&self.records, &self.job.name, tick)
        } else {
            call(&self.records, self.job, tick)
        }
    }
}

/// Converts seconds since 1970 to the type of a tick.
pub(super) fn whole(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

pub(super) fn pause(advice: Advice) -> Duration {
    match advice {
        Advice::RetryAfter(pause) => pause.max(AGAIN / 10),
        _ => Duration::from_secs(1),
    }
}
