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

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tracing::Instrument as _;

use super::job::{Job, Overlap};
use super::revision::{Revision, revise};
use super::rules::{millis, plan, runs_after, was_due_during};
use super::schedule::Schedule;
use super::tick::{Cancelled, End, Run, Skipped, Tick};
use super::{Cron, CronError, Running};
use crate::driver::WATCH;
use crate::error::Advice;
use crate::idempotency::{Call, Context, Effect, Failed, Idempotency, Outcome, RunError, Status};
use crate::lock::LockGuard;
use crate::metrics::JobMeters;
use crate::span::{self, verb};
use crate::token::FencingToken;

/// Most ticks that run at the same time where they may.
const AT_ONCE: usize = 64;
/// How far back it is looked whether a tick overlaps an earlier run.
const BACK: usize = 16;
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
    /// When it is looked at next, in milliseconds since 1970.
    look: u64,
}

/// What a look at a tick came to.
enum Looked {
    Over,
    Again(Duration),
}

struct Engine<'a, F> {
    cron: &'a Cron,
    job: &'a Job,
    schedule: &'a Schedule,
    handler: &'a F,
    records: Idempotency,
    since: i64,
    by: String,
    meters: Arc<JobMeters>,
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
    let records = cron.records(job, schedule)?;
    let closing = cron.core().closing.begun();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let work = async {
        let revision = since(cron, job, schedule).await?;
        report_gap(cron, job, schedule, (&revision, &records)).await;
        let by = format!("{host}:{}", std::process::id());
        let (since, meters) = (revision.since, cron.core().meters.job(&job.name));
        let engine = Engine { cron, job, schedule, handler, records, since, by, meters };
        engine.go_on().await
    };
    tokio::select! {
        biased;
        () = closing => Ok(()),
        ended = work => ended,
    }
}

/// Since when the job has this schedule; asked until the nodes know.
async fn since(cron: &Cron, job: &Job, schedule: &Schedule) -> Result<Revision, CronError> {
    let records = cron.revisions()?;
    let mut warned = false;
    loop {
        match revise(&records, &job.name, &schedule.name(), cron.now()).await {
            Ok(revision) => return Ok(revision),
            Err(e @ CronError::Config(_)) => return Err(e),
            Err(e) => {
                if !warned {
                    tracing::warn!(target: "palisade::cron", job = %job.name, %e, "waits");
                }
                warned = true;
                tokio::time::sleep(pause(e.advice())).await;
            }
        }
    }
}

/// Says what an edited schedule leaves out: ticks of the old one that nobody has run.
async fn report_gap(
    cron: &Cron,
    job: &Job,
    schedule: &Schedule,
    (revision, records): (&Revision, &Idempotency),
) {
    let Some((old, old_since)) = &revision.before else { return };
    // Said once, by whoever comes soon after the change.
    if cron.now() - revision.since > 60 {
        return;
    }
    let mut last_run = None;
    if let Some(old) = old.rsplit_once(' ').and_then(|(t, z)| Schedule::parse(t, z).ok()) {
        let before = |t: &i64| old.until(t - 1).filter(|t| t >= old_since);
        let first = old.until(revision.since).filter(|t| t >= old_since);
        for tick in std::iter::successors(first, before).take(BACK) {
            if let Ok(Status::Stored(_)) = call(records, job, tick).lookup::<Run>().await {
                last_run = Some(tick);
                break;
            }
        }
    }
    let next = schedule.after(revision.since);
    tracing::warn!(
        target: "palisade::cron",
        job = %job.name, before = %old, now = %revision.schedule, ?last_run, ?next,
        "the schedule was edited; nothing runs between the last tick of the old one and the first \
         of the new one"
    );
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

    async fn go_on(&self) -> Result<(), CronError> {
        let mut due = BTreeMap::new();
        let mut running = FuturesUnordered::new();
        let at_once = if self.job.overlap == Overlap::Allow { AT_ONCE } else { 1 };
        // Ticks of before the schedule are not missed ones.
        let mut seen = self.since;
        loop {
            let now = self.now();
            self.add_due(&mut due, &mut seen, now);
            let ready = |(tick, d): (&i64, &Due)| (d.look <= now).then_some((*tick, d.backfilled));
            if running.len() < at_once
                && let Some((tick, backfilled)) = due.iter().find_map(ready)
            {
                due.remove(&tick);
                running
                    .push(async move { (tick, backfilled, self.look_at(tick, backfilled).await) });
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
                Some((tick, backfilled, looked)) = running.next(), if !running.is_empty() => {
                    if let Looked::Again(pause) = looked? {
                        let look = self.now() + pause.as_millis() as u64;
                        due.insert(tick, Due { backfilled, look });
                    }
                }
                () = tokio::time::sleep(rest.max(Duration::from_millis(1))) => {}
            }
        }
    }

    /// Adds the ticks that are due now, and forgets those that are too late.
    fn add_due(&self, due: &mut BTreeMap<i64, Due>, seen: &mut i64, now: u64) {
        let (seconds, late) = (whole(now / 1_000), whole(self.job.late.as_secs()));
        if self.schedule.after(*seen).is_none_or(|next| next > seconds) {
            return;
        }
        let plan = plan(self.schedule, (*seen, seconds, late), self.job.missed);
        if let Some((first, last)) = plan.left_out {
            let missed = self.schedule.count((first, last), MISSED);
            self.meters.missed(missed as u64);
            tracing::warn!(
                target: "palisade::cron",
                job = %self.job.name, first, last, policy = ?self.job.missed,
                "ticks were missed and are left out, unless another process has run them"
            );
        }
        let leads = self.cron.lead.term.borrow().is_some();
        let hold_back = if leads { Duration::ZERO } else { self.hold_back() };
        for (tick, backfilled) in plan.ticks {
            let look = millis(tick) + self.job.jitter_of(tick) + hold_back.as_millis() as u64;
            due.insert(tick, Due { backfilled, look });
        }
        *seen = seconds;
    }

    fn hold_back(&self) -> Duration {
        (self.cron.core().config.ttl / 8).clamp(HOLD_BACK.0, HOLD_BACK.1)
    }

    /// Looks at a tick, and runs it if that is to be done. An error ends the job.
    async fn look_at(&self, tick: i64, backfilled: bool) -> Result<Looked, CronError> {
        match call(&self.records, self.job, tick).lookup::<Run>().await {
            Ok(Status::Stored(_) | Status::NotKept) => return Ok(Looked::Over),
            Ok(Status::Running { remaining, .. }) => {
                return Ok(Looked::Again(remaining.clamp(AGAIN / 10, AGAIN)));
            }
            Ok(_) => {}
            Err(e) => return self.later(e),
        }
        let late = self.now().saturating_sub(millis(tick)) > self.job.late.as_millis() as u64;
        let given_up = late && !backfilled && self.job.missed == super::Missed::Skip;
        let Some(guard) = self.lock().await? else { return Ok(Looked::Again(AGAIN)) };
        let why = match self.skips(tick).await {
            Ok(why) => why,
            Err(e) => return self.later(e),
        };
        // Not looked at in time, for the nodes could not be asked: missed.
        if given_up && why.is_none() {
            self.meters.missed(1);
            return Ok(Looked::Over);
        }
        let verb = verb!("tick", job = %self.job.name, tick);
        let _running = Running::begin(&self.cron.lead.running);
        let run = self.run_once(tick, backfilled, why, guard.as_ref());
        let ended = run.instrument(verb.span()).await;
        self.over(verb, tick, &ended);
        if let Some(guard) = guard {
            if let Ok(Outcome::Executed { value, .. }) = &ended {
                self.hold(value, &guard).await;
            }
            drop(guard.release().await);
        }
        match ended {
            Ok(Outcome::Executed { .. } | Outcome::Replayed(_) | Outcome::NotKept) => {
                Ok(Looked::Over)
            }
            Ok(Outcome::InFlight { .. }) => Ok(Looked::Again(AGAIN)),
            Ok(other) => {
                tracing::warn!(
                    target: "palisade::cron",
                    job = %self.job.name, tick, ?other, "the tick is left as it is"
                );
                Ok(Looked::Over)
            }
            Err(e) => self.later(e),
        }
    }

    /// Counts what became of a tick.
    fn over(&self, verb: span::Call, tick: i64, ended: &Result<Outcome<Run>, RunError>) {
        let outcome = match ended {
            Ok(Outcome::Executed { value: run, .. }) => {
                verb.token(FencingToken::new(run.token));
                verb.attempts(run.attempt);
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
            Ok(_) => return verb.over("elsewhere"),
            Err(_) => return verb.over("no_quorum"),
        };
        self.meters.tick(outcome);
        verb.over(outcome);
    }

    /// The job's lock: `None` if it is taken or cannot be had, `Some(None)` where none is needed.
    async fn lock(&self) -> Result<Option<Option<LockGuard>>, CronError> {
        if self.job.overlap == Overlap::Allow {
            return Ok(Some(None));
        }
        let mutex = self.cron.redlock.mutex(format!("cron:{}", self.job.name));
        match mutex.acquire_timeout(AGAIN).build()?.acquire().await {
            Ok(guard) => Ok(Some(Some(guard))),
            Err(_) => Ok(None),
        }
    }

    /// Why the tick is not run, if it is not.
    async fn skips(&self, tick: i64) -> Result<Option<Skipped>, RunError> {
        let next = self.schedule.after(tick).map(millis);
        match self.job.overlap {
            Overlap::Allow => return Ok(None),
            Overlap::CancelPrevious => {
                let superseded = next.is_some_and(|next| next <= self.now());
                return Ok(superseded.then_some(Skipped::Superseded));
            }
            Overlap::Skip | Overlap::BufferOne => {}
        }
        let before = |tick: i64| self.schedule.until(tick - 1).filter(|t| *t >= self.since);
        let mut at = before(tick);
        for _ in 0..BACK {
            let Some(earlier) = at else { break };
            let status = call(&self.records, self.job, earlier).lookup::<Run>().await?;
            if let Status::Stored(run) = status
                && !matches!(run.end, End::Skipped(_))
            {
                let skipped =
                    was_due_during(&run, tick) && !runs_after(self.job.overlap, &run, before(tick));
                return Ok(skipped.then_some(Skipped::Overlap));
            }
            at = before(earlier);
        }
        Ok(None)
    }

    /// Claims the tick, runs it unless it is skipped, and completes it.
    async fn run_once(
        &self,
        tick: i64,
        backfilled: bool,
        skipped: Option<Skipped>,
        guard: Option<&LockGuard>,
    ) -> Result<Outcome<Run>, RunError> {
        let work = |cx: Context| async move {
            let started = self.now();
            let token = guard.map_or(cx.fencing_token(), LockGuard::fencing_token);
            let end = match skipped {
                Some(why) => End::Skipped(why),
                None => {
                    self.attend(Tick { at: tick, backfilled, token, cx: cx.clone() }, guard).await?
                }
            };
            let run = Run {
                by: self.by.clone(),
                started,
                ended: self.now().max(match skipped {
                    None => started + self.job.at_least.as_millis() as u64,
                    Some(_) => 0,
                }),
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
        call(&self.records, self.job, tick).run(work).await
    }

    /// Runs the job until it ends, or may not go on.
    async fn attend(&self, tick: Tick, guard: Option<&LockGuard>) -> Result<End, Failed> {
        let cx = tick.cx.clone();
        let next = self.schedule.after(tick.at).map(millis);
        let cancels = self.job.overlap == Overlap::CancelPrevious;
        let run = (self.handler)(tick);
        let lost = async {
            match guard {
                Some(guard) => guard.lost().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = cx.lost() => Err(Failed::unknown("the claim of the tick was lost")),
            () = lost => Err(Failed::unknown("the lock of the job was lost")),
            () = self.clock_shows(next.filter(|_| cancels)) => {
                Ok(End::Cancelled(Cancelled::NextTick))
            }
            () = elapsed(self.job.at_most) => Ok(End::Cancelled(Cancelled::TooLong)),
            ended = run => match ended.map_err(Into::into) {
                Ok(()) => Ok(End::Done),
                Err(failed) => match failed.effect() {
                    Effect::Unknown => Ok(End::Failed(failed.to_string())),
                    Effect::None | Effect::Repeatable => Err(failed),
                },
            },
        }
    }

    /// Keeps the lock for as long as the job counts as running.
    async fn hold(&self, run: &Run, guard: &LockGuard) {
        tokio::select! {
            biased;
            () = self.clock_shows(Some(run.ended)) => {}
            () = guard.lost() => {}
        }
    }

    /// Resolves when the wall clock shows this; never without.
    async fn clock_shows(&self, millis: Option<u64>) {
        let Some(at) = millis else { return std::future::pending().await };
        while self.now() < at {
            let rest = Duration::from_millis(at - self.now()).min(WATCH);
            tokio::time::sleep(rest.max(Duration::from_millis(1))).await;
        }
    }

    /// What a failed step means: the tick waits, or the job ends.
    fn later(&self, error: RunError) -> Result<Looked, CronError> {
        if let RunError::Config { error, .. } = error {
            return Err(CronError::Config(error));
        }
        tracing::debug!(target: "palisade::cron", job = %self.job.name, %error, "looks again");
        Ok(Looked::Again(pause(error.advice()).min(Duration::from_secs(1))))
    }
}

/// Seconds as ticks have them.
pub(super) fn whole(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

fn pause(advice: Advice) -> Duration {
    match advice {
        Advice::RetryAfter(pause) => pause.max(AGAIN / 10),
        _ => Duration::from_secs(1),
    }
}

async fn elapsed(span: Option<Duration>) {
    match span {
        Some(span) => tokio::time::sleep(span).await,
        None => std::future::pending().await,
    }
}
