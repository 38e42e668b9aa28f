//! The loop that runs one job in one process. The loop computes the due ticks, reads the record of
//! each due tick, and runs the ticks that no process has run. The time at which an operator
//! requests a run is a due tick, too.
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
mod before;
mod due;
mod look_back;
mod outcome;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use palisade::error::{AcquireError, Advice};
use palisade::idempotency::{Call, Context, Failed, Outcome, RunError, Status};
use palisade::{LockGuard, Moment};
use tokio::sync::watch;
use tracing::Instrument as _;

use super::job::{Job, Missed, Overlap};
use super::keys::Records;
use super::missed::{Fate, Ran, fate_of, millis, millis_of};
use super::overlap::{BACK, During, Overlaps};
use super::request;
use super::schedule::Schedule;
use super::start::{Before, start};
use super::tick::{End, Run, Skipped, Tick};
use super::{Cron, CronError, Running, WATCH, locked};
use crate::metrics::JobMeters;
use crate::span::TickSpan;
use due::{DecidedBy, Due, DueTicks, NextTick, next_check, ready};
use look_back::Ticks;

const AT_ONCE: usize = 64;
const AGAIN: Duration = Duration::from_millis(200);

enum CheckResult {
    Over(Option<Run>),
    Again(Duration),
    Begun(Duration),
    Retry(Duration),
    Wait(Duration),
    /// The tick is not on time, or the nodes answer again: it has to be decided which ticks are
    /// missed, and by what this one is decided.
    Judge {
        by: DecidedBy,
    },
}

struct Engine<'a, F> {
    cron: &'a Cron,
    job: &'a Job,
    schedule: &'a Schedule,
    handler: &'a F,
    records: Records,
    requests: Option<Records>,
    lock: Option<palisade::Mutex>,
    since: i64,
    before: Option<Before>,
    /// Time at which this process began to run the job, in seconds since 1970.
    began: i64,
    by: String,
    meters: Arc<JobMeters>,
    overlaps: Overlaps,
    ran: Mutex<Ran>,
    checking: Mutex<BTreeSet<i64>>,
    /// A tick has to wait and the reason was logged. The end of a tick resets it.
    waits: AtomicBool,
    /// Runs whose handler has ended and whose end is not stored yet.
    storing: &'a watch::Sender<usize>,
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
    let requests = job.on_request.then(|| cron.requests(&job.name)).transpose()?;
    // All settings are checked before the first tick, so that `run` fails at once.
    let lock = match job.overlap {
        Overlap::Allow => None,
        _ => Some(cron.redlock.mutex(cron.lock_of(job)).acquire_timeout(AGAIN).build()?),
    };
    let storing = watch::Sender::new(0);
    let closing = async {
        cron.redlock.closing().await;
        // Without this, a run that is over would count as interrupted, and be repeated elsewhere.
        let _ = storing.subscribe().wait_for(|storing| *storing == 0).await;
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let work = async {
        let (since, before) = start(cron, job, schedule, &records).await?;
        let by = format!("{host}:{}", std::process::id());
        let meters = cron.meters.job(&job.name);
        let engine = Engine {
            cron,
            job,
            schedule,
            handler,
            records,
            requests,
            lock,
            since,
            before,
            began: cron.now(),
            by,
            meters,
            overlaps: Overlaps::default(),
            ran: Mutex::default(),
            checking: Mutex::default(),
            waits: AtomicBool::new(false),
            storing: &storing,
        };
        match engine.run().await {}
    };
    tokio::select! {
        biased;
        () = closing => Ok(()),
        ended = work => ended,
    }
}

pub(super) fn is_ahead(cron: &Cron, instant: i64) -> bool {
    let apart = 2 * cron.redlock.config().clock_error;
    millis(instant) > cron.wall_millis() + millis_of(apart)
}

impl<F> Engine<'_, F> {
    fn now(&self) -> u64 {
        self.cron.wall_millis()
    }

    fn moment(&self) -> Moment {
        self.cron.redlock.now()
    }

    fn since(&self) -> Option<i64> {
        (!is_ahead(self.cron, self.since)).then_some(self.since)
    }
}

impl<F, Fut, E> Engine<'_, F>
where
    F: Fn(Tick) -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Into<Failed>,
{
    async fn run(&self) -> Infallible {
        let (mut due, mut next_due) = (DueTicks::new(), NextTick::default());
        let requests = request::requests(self.cron, &self.job.name, self.requests.as_ref());
        let mut requests = std::pin::pin!(requests);
        let (mut running, mut looking) = (FuturesUnordered::new(), FuturesUnordered::new());
        let at_once = if self.job.overlap == Overlap::Allow { AT_ONCE } else { 1 };
        // Ticks of before the schedule was set do not belong to it, so they are not missed.
        let mut seen = self.cron.now();
        let since = self.since().unwrap_or(seen);
        let new = self.ticks_of(self.schedule, (since.saturating_add(1), seen));
        let mut missed = self.found(&mut due, self.look_back(Ticks::New, new, false).await);
        let mut of_before = std::pin::pin!(self.of_before().fuse());
        loop {
            if !missed.is_empty() {
                looking.push(self.look_back(Ticks::Missed, std::mem::take(&mut missed), false));
            }
            let now = self.now();
            self.follow(&mut due, &mut seen);
            let new = self.add_due(&mut due, &mut seen, &mut next_due, now);
            if !new.is_empty() {
                looking.push(self.look_back(Ticks::New, new, false));
            }
            if running.len() < at_once
                && let Some((tick, d)) = ready(&due, now)
            {
                due.remove(&(tick, d.requested));
                if !d.requested {
                    locked(&self.checking).insert(tick);
                }
                running.push(async move { (tick, d, self.check(tick, d).await) });
                continue;
            }
            let next_check = next_check(&due).filter(|_| running.len() < at_once);
            let next_tick = next_due.after(self.schedule, seen).map(millis);
            let next = next_check.into_iter().chain(next_tick).min().unwrap_or(u64::MAX);
            // The wall clock may be set during the sleep, and tokio's timers stop while the
            // computer is suspended.
            let rest = Duration::from_millis(next.saturating_sub(now)).min(WATCH);
            tokio::select! {
                biased;
                Some((tick, d, result)) = running.next(), if !running.is_empty() => {
                    missed = self.checked(&mut due, (tick, d), result);
                }
                Some(found) = looking.next(), if !looking.is_empty() => {
                    let of = found.of;
                    let rest = self.found(&mut due, found);
                    match of {
                        Ticks::New => missed = rest,
                        _ if rest.is_empty() => {}
                        _ => looking.push(self.look_back(of, rest, true)),
                    }
                }
                Some(found) = of_before.next() => {
                    self.found(&mut due, found);
                }
                Some(at) = requests.next() => {
                    due.insert((at, true), Due::requested(self.now()));
                }
                () = tokio::time::sleep(rest.max(Duration::from_millis(1))) => {}
            }
        }
    }

    async fn check(&self, tick: i64, due: Due) -> CheckResult {
        let requested = due.requested;
        let has_begun = match self.call(tick, requested).lookup::<Run>().await {
            Ok(Status::Stored(run)) => return CheckResult::Over(Some(run)),
            Ok(Status::NotKept) => return CheckResult::Over(None),
            Ok(Status::Running { remaining, .. }) => {
                return CheckResult::Begun(remaining.clamp(AGAIN / 10, AGAIN));
            }
            // (cron 11): such a tick is not missed, whatever its age. If its own handler asked for
            // another run, it was not interrupted.
            Ok(Status::Lapsed { .. } | Status::Unsettled) => !due.retried,
            Ok(_) => false,
            Err(e) => return self.after_error(&e),
        };
        if self.waits.load(Ordering::Relaxed) {
            let by = if has_begun { DecidedBy::OwnRun } else { due.by };
            return CheckResult::Judge { by };
        }
        let guard = match self.lock().await {
            Ok(guard) => guard,
            Err(again) => return again,
        };
        let during = match self.during(tick, requested).await {
            Ok(during) => during,
            Err(e) => return self.after_error(&e),
        };
        let (job, now) = (&self.job.name, self.cron.now());
        if requested && !has_begun && !due.retried && now > tick + request::LATEST {
            tracing::warn!(target: "palisade::cron", %job, tick, "a requested run is too late");
            return CheckResult::Over(None);
        }
        let why = match during {
            During::Skipped(why) => Some(why),
            During::Waited | During::NoRun => None,
            // (cron 11): the earlier tick comes first. Who waits for it looks once in `AGAIN`.
            During::Interrupted(remaining) => {
                if let Some(guard) = guard {
                    drop(guard.release().await);
                }
                return CheckResult::Again(remaining + 2 * AGAIN);
            }
        };
        if let Some(why) = why.filter(|_| has_begun) {
            let why = reason(why);
            tracing::warn!(
                target: "palisade::cron",
                %job, tick, "an interrupted run is not run again: {why}"
            );
        }
        let is_by_record = requested || has_begun || during != During::NoRun;
        if due.backfilled
            && !is_by_record
            && let Err(e) = self.look_at_next(tick).await
        {
            return self.after_error(&e);
        }
        let late = if is_by_record { Some(false) } else { self.is_late(tick, due) };
        let Some(backfilled) = late else {
            if let Some(guard) = guard {
                drop(guard.release().await);
            }
            return CheckResult::Judge { by: DecidedBy::Age };
        };
        let operation = TickSpan::new(&self.job.name, tick);
        let _running = Running::begin(&self.cron.lead.running);
        let began = OnceLock::new();
        let run = self.run_once((tick, requested, backfilled), why, guard.as_ref(), &began);
        let ended = run.instrument(operation.span()).await;
        self.over(operation, tick, &ended);
        if let Some(guard) = guard {
            if let (Ok(Outcome::Executed { .. }), None) = (&ended, why) {
                self.hold(&began, &guard).await;
            }
            drop(guard.release().await);
        }
        match ended {
            Ok(Outcome::Executed { value, .. } | Outcome::Replayed(value)) => {
                CheckResult::Over(Some(value))
            }
            Ok(Outcome::NotKept) => CheckResult::Over(None),
            Ok(Outcome::InFlight { .. }) => CheckResult::Begun(AGAIN),
            Ok(other) => {
                tracing::warn!(
                    target: "palisade::cron",
                    job = %self.job.name, tick, ?other, "the tick is left as it is"
                );
                CheckResult::Over(None)
            }
            Err(e) => self.after_error(&e),
        }
    }

    /// `None` if the job needs no lock. If another run has it, the pause before the next check is
    /// the error.
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

    /// Takes note of the next tick, if it has run while the latest missed one waited for the lock:
    /// this one is then not run (cron 4).
    async fn look_at_next(&self, tick: i64) -> Result<(), RunError> {
        if self.job.missed != Missed::RunLatest {
            return Ok(());
        }
        let mut after = tick;
        for _ in 0..BACK {
            let next = self.schedule.after(after);
            let Some(next) = next.filter(|next| self.job.due(*next) <= self.now()) else { break };
            let fate = match self.records.tick(next).lookup::<Run>().await? {
                Status::Absent | Status::Forgotten { .. } => break,
                Status::Stored(run) if matches!(run.end, End::Skipped(_)) => {
                    after = next;
                    continue;
                }
                Status::Stored(run) => fate_of(&run),
                _ => Fate::Late,
            };
            locked(&self.ran).add(self.job.missed, next, fate);
            break;
        }
        Ok(())
    }

    /// Claims the tick, runs it unless it is skipped, and completes it.
    async fn run_once(
        &self,
        (tick, requested, backfilled): (i64, bool, bool),
        skipped: Option<Skipped>,
        guard: Option<&LockGuard>,
        began: &OnceLock<Moment>,
    ) -> Result<Outcome<Run>, RunError> {
        let storing = &OnceLock::new();
        let work = |cx: Context| async move {
            let started = self.now();
            let began = *began.get_or_init(|| self.moment());
            let token = guard.map_or(cx.fencing_token(), LockGuard::fencing_token);
            let end = if let Some(why) = skipped {
                End::Skipped(why)
            } else {
                let tick = Tick::new(tick, (backfilled, requested), token, cx.clone());
                let ended = self.attend(tick, guard).await;
                drop(storing.set(Running::begin(self.storing)));
                ended?
            };
            let least = if skipped.is_none() { self.job.at_least } else { Duration::ZERO };
            // The wall clock may be set during the run.
            let took = self.moment().since(began).max(least);
            let run = Run {
                by: self.by.clone(),
                started,
                ended: started.saturating_add(millis_of(took)),
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
        // No wait for the end of another process's run: meanwhile this one would keep the job's
        // lock.
        self.call(tick, requested).in_flight_timeout(Duration::ZERO).run(work).await
    }

    fn call(&self, tick: i64, requested: bool) -> Call {
        if requested { self.records.run(tick) } else { self.records.tick(tick) }
    }
}

fn reason(why: Skipped) -> &'static str {
    match why {
        Skipped::Overlap => "it was due during an earlier run",
        Skipped::Superseded => "a later tick is due",
    }
}

pub(super) fn pause(advice: Advice) -> Duration {
    match advice {
        Advice::RetryAfter(pause) => pause.max(AGAIN / 10),
        _ => Duration::from_secs(1),
    }
}
