//! The command `palisade cron`.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use palisade::internal::given;
use palisade::{Failed, RunError};
use palisade_cron::{
    Cancelled, Cron, CronError, End, Interrupted, Job, Missed, Overlap, Run, Tick, TickReport,
    TickState,
};
use serde_json::{Value, json};

use super::lock::environment;
use super::{CommandArgs, GroundArgs, unavailable};
use crate::child::{self, DIES, Ended};
use crate::codes::{Fail, NOT_ACQUIRED, USAGE};
use crate::metrics::MetricsArgs;
use crate::say::{escaped, plain};
use crate::signals::Signals;
use crate::span::Span;
use crate::warnings;

/// Runs a command at each tick of a schedule, on only one of all hosts that run this program.
///
/// Start the same command line on every host. One of the hosts runs the command at each tick. Hosts
/// can start and stop at any time. The program runs until it receives a signal. The signal also
/// ends a running command.
#[derive(Debug, Args)]
pub(crate) struct CronArgs {
    #[command(flatten)]
    ground: GroundArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// `[seconds] minutes hours day-of-month month weekday`, or @hourly and similar
    #[arg(value_name = "SPEC")]
    schedule: String,
    /// Name of the job
    name: String,
    /// Time zone of the schedule
    #[arg(long, value_name = "ZONE", default_value = "UTC", help_heading = "Ticks")]
    zone: String,
    /// Action for ticks that were not run in time
    #[arg(long, value_enum, default_value = "skip", help_heading = "Ticks")]
    missed: MissedArg,
    /// Maximum age of a tick that --missed catch-up runs
    #[arg(long, value_name = "SPAN", default_value = "1h", help_heading = "Ticks")]
    window: Span,
    /// Maximum number of ticks that --missed catch-up runs
    #[arg(long, value_name = "N", default_value_t = 100, help_heading = "Ticks")]
    max: usize,
    /// Maximum delay of a tick that is still on time [default: the time until the next tick, at
    /// most 1m]
    #[arg(long, value_name = "SPAN", help_heading = "Ticks")]
    late: Option<Span>,
    /// Action for ticks that are due while the command still runs
    #[arg(long, value_enum, default_value = "skip", help_heading = "Ticks")]
    overlap: OverlapArg,
    /// Do not run a tick again after its run was interrupted
    #[arg(long, help_heading = "Ticks")]
    at_most_once: bool,
    /// Delay each tick by a random time of at most SPAN
    #[arg(long, value_name = "SPAN", help_heading = "Ticks")]
    jitter: Option<Span>,
    /// Minimum time for which a run counts as running
    #[arg(long, value_name = "SPAN", help_heading = "Ticks")]
    at_least: Option<Span>,
    /// Time for which the nodes keep the result of a tick. An older tick is never run. Use the same
    /// value in every process, and keep the value when the schedule changes
    #[arg(long, value_name = "SPAN", default_value = "8d", help_heading = "Ticks")]
    retention: Span,
    /// Allow `palisade run-now` to run the job outside of its schedule
    #[arg(long, help_heading = "Ticks")]
    on_request: bool,
    /// Show the last N ticks, the latest first, and run nothing
    #[arg(long, value_name = "N", conflicts_with_all = ["command", "shell"])]
    history: Option<usize>,
    #[command(flatten)]
    command: CommandArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MissedArg {
    /// Missed ticks are skipped
    Skip,
    /// The latest missed tick is run
    Latest,
    /// Missed ticks within --window are run, at most --max
    CatchUp,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OverlapArg {
    /// Ticks that are due while the command still runs are skipped
    Skip,
    /// The first tick that is due while the command still runs is run after its end
    BufferOne,
    /// The running command gets TERM, and KILL after --grace. Then the tick is run
    CancelPrevious,
}

/// Returns the name of the `Cron` that runs this job of `palisade cron`.
pub(super) fn of_job(name: &str) -> String {
    format!("cron:{name}")
}

impl CronArgs {
    fn job(&self) -> Job {
        let missed = match self.missed {
            MissedArg::Skip => Missed::Skip,
            MissedArg::Latest => Missed::RunLatest,
            MissedArg::CatchUp => Missed::CatchUp { window: self.window.0, max: self.max },
        };
        let overlap = match self.overlap {
            OverlapArg::Skip => Overlap::Skip,
            OverlapArg::BufferOne => Overlap::BufferOne,
            OverlapArg::CancelPrevious => Overlap::CancelPrevious,
        };
        let again = if self.at_most_once { Interrupted::Leave } else { Interrupted::Rerun };
        let job = Job::new(&*self.name, &*self.schedule)
            .zone(&*self.zone)
            .missed(missed)
            .overlap(overlap)
            .interrupted(again)
            .retention(self.retention.0);
        let job = given(job, self.late, |job, Span(late)| job.late(late));
        let job = given(job, self.jitter, |job, Span(jitter)| job.jitter(jitter));
        let job = given(job, self.at_least, |job, Span(span)| job.at_least(span));
        if self.on_request { job.on_request() } else { job }
    }

    pub(crate) async fn run(self) -> Result<u8, Fail> {
        let job = self.job();
        let json = self.ground.say.json;
        let ground = self.metrics.ground(self.ground).await?;
        warnings::show(ground.say);
        let cron = Cron::new(&ground.redlock).name(of_job(&self.name));
        if let Some(n) = self.history {
            let all = cron.history(&job, n).await.map_err(|e| refused(&e))?;
            for report in &all {
                println!(
                    "{}",
                    if json { escaped(&object(report).to_string()) } else { line(report) }
                );
            }
            return Ok(0);
        }
        let command = self.command.command(&ground)?;
        let job = job.grace(command.grace + DIES);
        let (say, runs, stopping) = (ground.say, Rc::new(()), Cell::new(None));
        let work = cron.run(job, |tick| {
            let (command, name, runs, stopping) = (&command, &self.name, &runs, &stopping);
            async move {
                if stopping.get().is_some() {
                    return Err(Failed::no_effect("this program ends"));
                }
                let (_run, at) = (Rc::clone(runs), tick.unix_seconds());
                let mut signals = Signals::new().map_err(Failed::no_effect)?;
                let env = of_tick(name, &tick);
                let lease = (tick.lost_signal(), end_requested(&tick));
                let ended = child::run(command, &env, lease, (&mut signals, say), None).await;
                tick_result(ended.map_err(|e| {
                    let text = format!("no process could be started, tick {at} waits: {e}");
                    say.warn("not_started", json!({ "tick": at, "why": e.to_string() }), &text);
                    Failed::no_effect(e)
                })?)
            }
        });
        tokio::pin!(work);
        let mut look = tokio::time::interval(Duration::from_millis(20));
        loop {
            tokio::select! {
                biased;
                // The command also receives the signal. So the loop waits until the command has
                // ended.
                signal = ground.signals.next() => stopping.set(Some(signal)),
                ended = &mut work => {
                    ground.close().await;
                    return ended.map(|()| 0).map_err(|e| refused(&e));
                }
                _ = look.tick(), if stopping.get().is_some() => {}
            }
            // Each running command has a clone of `runs`, so with a count of 1 no command runs any
            // more.
            if let Some(signal) = stopping.get().filter(|_| Rc::strong_count(&runs) == 1) {
                // `work`, the loop that runs the job, releases the job's lock when it ends.
                let (_, ()) = tokio::join!(work, ground.close());
                return Ok(128 + signal as u8);
            }
        }
    }
}

/// Returns the failure for a job that cannot be run, or for a history that cannot be read.
fn refused(e: &CronError) -> Fail {
    match e {
        CronError::Record(RunError::NoQuorum { error, .. }) => unavailable(error),
        _ => Fail::new(USAGE, e.to_string()),
    }
}

fn of_tick(name: &str, tick: &Tick) -> Vec<(&'static str, String)> {
    let mut env = environment(name, tick.fencing_token().get(), tick.remaining());
    env.push(("PALISADE_TICK", tick.unix_seconds().to_string()));
    env.push(("PALISADE_ATTEMPT", tick.attempt().to_string()));
    env.push(("PALISADE_BACKFILLED", u8::from(tick.is_backfilled()).to_string()));
    env.push(("PALISADE_REQUESTED", u8::from(tick.is_requested()).to_string()));
    env
}

/// Converts the end of a tick's command to the result of the tick (a due time of the job).
fn tick_result(ended: Ended) -> Result<(), Failed> {
    match ended {
        Ended::Code(0) => Ok(()),
        Ended::Code(NOT_ACQUIRED) => Err(Failed::retry("wants to be run again")),
        // By a signal: this process ends, and another one may run the tick.
        Ended::Cannot(code) if code > 128 => Err(Failed::no_effect("ended before it was started")),
        Ended::Cannot(code) => Err(Failed::unknown(format!("not started, code {code}"))),
        Ended::Code(code) => Err(Failed::unknown(format!("exit code {code}"))),
        Ended::Signal(signal) => Err(Failed::unknown(format!("ended by signal {signal}"))),
        Ended::TooLong => Err(Failed::unknown("ran for too long")),
        Ended::Lost => Err(Failed::unknown("the lease was lost")),
        Ended::Requested => Err(Failed::unknown("the next tick was due")),
    }
}

fn object(report: &TickReport) -> Value {
    let at = report.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match &report.state {
        TickState::Over(run) => json!({ "tick": at, "state": "over", "run": run }),
        other => json!({ "tick": at, "state": format!("{other:?}").to_lowercase() }),
    }
}

fn line(report: &TickReport) -> String {
    let at = report.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match &report.state {
        TickState::Over(run) => {
            let end = match &run.end {
                End::Done => "done".to_owned(),
                End::Failed(why) => format!("failed: {why}"),
                End::Skipped(why) => format!("skipped: {why:?}").to_lowercase(),
                End::Cancelled(why) => format!("cancelled: {why:?}").to_lowercase(),
                _ => "over".to_owned(),
            };
            let Run { by, started, ended, attempt, token, .. } = run;
            let (late, took) = (started.saturating_sub(at * 1_000), ended.saturating_sub(*started));
            // Both texts may contain control characters. `end` is a text of the job, and another
            // process wrote `by`.
            let (end, by) = (plain(&end), plain(by));
            format!(
                "{at} {end} ({by}, {late} ms late, {took} ms, attempt {attempt}, token {token})"
            )
        }
        other => format!("{at} {other:?}").to_lowercase(),
    }
}

/// Resolves when the run of the tick is cancelled. Returns the reason as text.
async fn end_requested(tick: &Tick) -> String {
    match tick.cancelled().await {
        Cancelled::NextTick => "the next tick is due".to_owned(),
        other => format!("{other:?}"),
    }
}
