//! The loop of one job in one process: derive the ticks that are due, look what became of each, and
//! run those that nobody has run.
//!
//! ```text
//!  due ─▶ record ─▶ over: forget it
//!            │ └──▶ runs elsewhere: look again
//!            ▼
//!         lock of the job ─▶ taken: look again      (not where runs may overlap)
//!            ▼
//!         due while an earlier one ran? ─▶ skipped, by policy
//!            ▼
//!         claim, run, complete
//! ```

mod attend;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, UNIX_EPOCH};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tracing::Instrument as _;

use super::job::{Job, Missed, Overlap};
use super::overlap::{During, Overlaps};
use super::rules::{OnTime, millis, plan};
use super::schedule::Schedule;
use super::start::start;
use super::tick::{End, Run, Skipped, Tick};
use super::{Cron, CronError, Running};
use crate::client::WATCH;
use crate::error::{AcquireError, Advice};
use crate::idempotency::{Call, Context, Failed, Idempotency, Outcome, RunError, Status};
use crate::lock::{LockGuard, Mutex};
use crate::metrics::JobMeters;
use crate::span::{self, operation};
use crate::time::Moment;
use crate::token::FencingToken;

/// Most ticks that run at the same time where they may.
const AT_ONCE: usize = 64;
/// Most missed ticks that are counted at once.
const MISSED: usize = 10_000;
/// How long a tick waits before it is looked at again.
const AGAIN: Duration = Duration::from_millis(200);
/// How long the others leave a tick to the one that leads.
const HOLD_BACK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// What is known of a tick that is not over.
#[derive(Clone, Copy, Debug)]
struct Due {
    backfilled: bool,
    /// A run of it began here, and asked to be made again.
    tried: bool,
    /// When it is looked at next, in milliseconds since 1970.
    look: u64,
}

/// What a look at a tick came to.
enum Looked {
    Over,
    Again(Duration),
    /// Its run asked to be made again.
    Retry(Duration),
}

struct Engine<'a, F> {
    cron: &'a Cron,
    job: &'a Job,
    schedule: &'a Schedule,
    handler: &'a F,
    records: Idempotency,
    /// The job's lock; none where runs may overlap.
    lock: Option<Mutex>,
    since: i64,
    /// When this process began with the job.
    began: i64,
    by: String,
    meters: Arc<JobMeters>,
    overlaps: Overlaps,
    /// The last tick that was looked at has to wait, and the log says why.
    waits: AtomicBool,
}

/// The call under which a tick is claimed and completed.
pub(super) fn call(records: &Idempotency, job: &Job, tick: i64) -> Call {
    // Nobody can have run it before its time.
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
    // All settings are checked here: nothing that comes later is a wrong setting.
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
            lock,
            since,
            began: cron.now(),
            by,
            meters,
            overlaps: Overlaps::default(),
            waits: AtomicBool::new(false),
        };
        match engine.go_on().await {}
    };
    tokio::select! {
        biased;
        () = closing => Ok(()),
        ended = work => ended,
    }
}

/// Whether an instant that has been is further ahead than two right clocks can be apart.
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

    /// By the clock that nobody sets.
    fn moment(&self) -> Moment {
        self.cron.core().env.now()
    }

    async fn go_on(&self) -> Infallible {
        let mut due = BTreeMap::new();
        let mut running = FuturesUnordered::new();
        let at_once = if self.job.overlap == Overlap::Allow { AT_ONCE } else { 1 };
        // Ticks of before the schedule are not missed ones.
        let mut seen = self.since().unwrap_or(self.cron.now());
        loop {
            let now = self.now();
            self.follow(&mut due, &mut seen);
            self.add_due(&mut due, &mut seen, now);
            let ready = |(tick, d): (&i64, &Due)| (d.look <= now).then_some((*tick, *d));
            if running.len() < at_once
                && let Some((tick, d)) = due.iter().find_map(ready)
            {
                due.remove(&tick);
                running.push(async move { (tick, d, self.look_at(tick, d).await) });
                continue;
            }
            let room = running.len() < at_once;
            let next_look = due.values().map(|d| d.look).min().filter(|_| room);
            let next_tick = self.schedule.after(seen).map(millis);
            let next = next_look.into_iter().chain(next_tick).min().unwrap_or(u64::MAX);
            // In pieces: the wall clock may be set, and the machine may sleep.
            let rest = Duration::from_millis(next.saturating_sub(now)).min(WATCH);
            tokio::select! {
                biased;
                Some((tick, mut d, looked)) = running.next(), if !running.is_empty() => {
                    d.tried |= matches!(looked, Looked::Retry(_));
                    match looked {
                        Looked::Over => self.waits.store(false, Ordering::Relaxed),
                        Looked::Again(pause) | Looked::Retry(pause) => {
                            let look = self.now() + pause.as_millis() as u64;
                            // A clock that has gone back since: not before its time.
                            d.look = look.max(millis(tick));
                            due.insert(tick, d);
                        }
                    }
                }
                () = tokio::time::sleep(rest.max(Duration::from_millis(1))) => {}
            }
        }
    }

    /// Since when the schedule holds; unknown as long as that is ahead of the clock.
    fn since(&self) -> Option<i64> {
        (!is_ahead(self.cron, self.since)).then_some(self.since)
    }

    /// Follows a clock that was set back. The ticks that are on time by it are looked at again:
    /// the records say which were run.
    fn follow(&self, due: &mut BTreeMap<i64, Due>, seen: &mut i64) {
        let since = self.since();
        *seen = since.map_or(*seen, |since| since.max(*seen));
        if !is_ahead(self.cron, *seen) {
            return;
        }
        let now = self.cron.now();
        tracing::warn!(
            target: "palisade::cron",
            job = %self.job.name, before = *seen, now,
            "the clock went back; ticks that were run by it are not run again"
        );
        let on_time = now.saturating_sub(whole(self.job.latest().as_secs()));
        *seen = since.map_or(now, |since| since.max(on_time));
        for (tick, d) in due {
            d.look = self.first_look(*tick);
        }
    }

    /// When a tick is looked at first, in milliseconds since 1970.
    fn first_look(&self, tick: i64) -> u64 {
        let leads = self.cron.lead.term.borrow().is_some();
        let hold_back = if leads { Duration::ZERO } else { self.hold_back() };
        millis(tick) + self.job.jitter_of(tick) + hold_back.as_millis() as u64
    }

    /// Adds the ticks that are due now, and forgets those that are too late.
    fn add_due(&self, due: &mut BTreeMap<i64, Due>, seen: &mut i64, now: u64) {
        let (seconds, late) = (whole(now / 1_000), whole(self.job.latest().as_secs()));
        let on_time = OnTime { late, newest_alone: self.job.late.is_none() };
        if self.schedule.after(*seen).is_none_or(|next| next > seconds) {
            return;
        }
        let plan = plan(self.schedule, (*seen, seconds), on_time, self.job.missed);
        // What became of ticks from before this process, others know: they are in the history.
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
            due.insert(tick, Due { backfilled, tried: false, look: self.first_look(tick) });
        }
        *seen = seconds;
    }

    fn hold_back(&self) -> Duration {
        (self.cron.core().config.ttl / 8).clamp(HOLD_BACK.0, HOLD_BACK.1)
    }

    /// Looks at a tick, and runs it if that is to be done.
    async fn look_at(&self, tick: i64, Due { backfilled, mut tried, .. }: Due) -> Looked {
        match call(&self.records, self.job, tick).lookup::<Run>().await {
            Ok(Status::Stored(_) | Status::NotKept) => return Looked::Over,
            Ok(Status::Running { remaining, .. }) => {
                return Looked::Again(remaining.clamp(AGAIN / 10, AGAIN));
            }
            // It was begun on time.
            Ok(Status::Lapsed { .. } | Status::Unsettled) => tried = true,
            Ok(_) => {}
            Err(e) => return self.later(&e),
        }
        let guard = match self.lock().await {
            Ok(guard) => guard,
            Err(again) => return again,
        };
        let during = match self.during(tick).await {
            Ok(during) => during,
            Err(e) => return self.later(&e),
        };
        let why = match during {
            During::Skipped(why) => Some(why),
            During::Waited | During::NoRun => None,
        };
        tried |= during == During::Waited;
        // Not looked at in time, for the nodes could not be asked: missed.
        if !backfilled && why.is_none() && self.is_missed(tick, tried) {
            self.meters.missed(1);
            return Looked::Over;
        }
        let operation = operation!("tick", job = %self.job.name, tick);
        let _running = Running::begin(&self.cron.lead.running);
        let began = OnceLock::new();
        let run = self.run_once((tick, backfilled), why, guard.as_ref(), &began);
        let ended = run.instrument(operation.span()).await;
        self.over(operation, tick, &ended);
        if let Some(guard) = guard {
            if let (Ok(Outcome::Executed { .. }), None) = (&ended, why) {
                self.hold(&began, &guard).await;
            }
            drop(guard.release().await);
        }
        match ended {
            Ok(Outcome::Executed { .. } | Outcome::Replayed(_) | Outcome::NotKept) => Looked::Over,
            Ok(Outcome::InFlight { .. }) => Looked::Again(AGAIN),
            Ok(other) => {
                tracing::warn!(
                    target: "palisade::cron",
                    job = %self.job.name, tick, ?other, "the tick is left as it is"
                );
                Looked::Over
            }
            Err(e) => self.later(&e),
        }
    }

    /// Returns true if the tick may not run any more: it is too late, or a later one is due. A tick
    /// that was `tried`, or waited for a run, is not given up for a later one.
    fn is_missed(&self, tick: i64, tried: bool) -> bool {
        let (job, now) = (self.job, self.now());
        let of = |span: Duration| span.as_millis() as u64;
        let too_late = now.saturating_sub(millis(tick)) > of(job.latest());
        let follows = |next: i64| millis(next) + of(job.jitter) <= now;
        let is_newest_alone = job.late.is_none() && !tried;
        let superseded = || is_newest_alone && self.schedule.after(tick).is_some_and(follows);
        match job.missed {
            Missed::Skip => too_late || superseded(),
            Missed::RunLatest => superseded(),
            Missed::CatchUp { .. } => false,
        }
    }

    /// Counts what became of a tick.
    fn over(&self, operation: span::Call, tick: i64, ended: &Result<Outcome<Run>, RunError>) {
        let outcome = match ended {
            Ok(Outcome::Executed { value: run, .. }) => {
                operation.token(FencingToken::new(run.token));
                operation.attempts(run.attempt);
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
            // Its run failed, and may be repeated.
            Err(RunError::Handler { .. } | RunError::NotRecorded(_)) => "again",
            // Somebody else's, or nobody could be asked: counted where it is decided.
            Ok(_) => return operation.over("elsewhere"),
            Err(_) => return operation.over("no_quorum"),
        };
        self.meters.tick(outcome);
        operation.over(outcome);
    }

    /// The job's lock: `None` where none is needed; when to look again if it cannot be had.
    async fn lock(&self) -> Result<Option<LockGuard>, Looked> {
        let Some(lock) = &self.lock else { return Ok(None) };
        match lock.acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(AcquireError::TimedOut { taken, .. }) if !taken.foreign => {
                Err(Looked::Again(AGAIN))
            }
            Err(e) => Err(self.waits(&e, e.advice())),
        }
    }

    /// Returns what an earlier run, or the next tick, means for this one.
    async fn during(&self, tick: i64) -> Result<During, RunError> {
        let next = self.schedule.after(tick).map(millis);
        match self.job.overlap {
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
        (tick, backfilled): (i64, bool),
        skipped: Option<Skipped>,
        guard: Option<&LockGuard>,
        began: &OnceLock<Moment>,
    ) -> Result<Outcome<Run>, RunError> {
        let work = |cx: Context| async move {
            let started = self.now();
            let began = *began.get_or_init(|| self.moment());
            let token = guard.map_or(cx.fencing_token(), LockGuard::fencing_token);
            let end = match skipped {
                Some(why) => End::Skipped(why),
                None => self.attend(Tick::new(tick, backfilled, token, cx.clone()), guard).await?,
            };
            let least = if skipped.is_none() { self.job.at_least } else { Duration::ZERO };
            // The wall clock may have been set: then it does not say how long the run took.
            let took = self.moment().since(began).max(least);
            let run = Run {
                by: self.by.clone(),
                started,
                ended: started + took.as_millis() as u64,
                attempt: cx.attempt(),
                token: token.get(),
                backfilled,
                end,
            };
            tracing::info!(
                target: "palisade::cron",
                job = %self.job.name, tick, token = run.token, attempt = run.attempt,
                late_ms = started.saturating_sub(millis(tick)), end = ?run.end, "tick"
            );
            Ok::<_, Failed>(run)
        };
        // A tick that runs elsewhere is looked at again: nothing is waited for under the job's
        // lock.
        call(&self.records, self.job, tick).in_flight_timeout(Duration::ZERO).run(work).await
    }

    /// A step failed: the tick waits. Also where its birth is ahead of a clock that went back.
    fn later(&self, error: &RunError) -> Looked {
        // The job asks for another run itself.
        if let RunError::Handler { .. } = error {
            tracing::debug!(target: "palisade::cron", job = %self.job.name, %error, "looks again");
            return Looked::Retry(pause(error.advice()).min(Duration::from_secs(1)));
        }
        self.waits(error, error.advice())
    }

    /// The nodes give no answer that decides; the log says so once, until a tick is over.
    fn waits(&self, why: &dyn std::fmt::Display, advice: Advice) -> Looked {
        let job = &self.job.name;
        if self.waits.swap(true, Ordering::Relaxed) {
            tracing::debug!(target: "palisade::cron", %job, %why, "looks again");
        } else {
            tracing::warn!(target: "palisade::cron", %job, %why, "ticks wait");
        }
        Looked::Again(pause(advice).min(Duration::from_secs(1)))
    }
}

/// Seconds as ticks have them.
pub(super) fn whole(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

pub(super) fn pause(advice: Advice) -> Duration {
    match advice {
        Advice::RetryAfter(pause) => pause.max(AGAIN / 10),
        _ => Duration::from_secs(1),
    }
}
