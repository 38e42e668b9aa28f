#![doc = include_str!("../README.md")]
#![warn(
    clippy::allow_attributes,
    clippy::dbg_macro,
    clippy::iter_over_hash_type,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::todo,
    clippy::unimplemented,
    clippy::unwrap_used
)]

mod engine;
mod error;
mod job;
mod keys;
mod metrics;
mod missed;
mod overlap;
mod request;
mod revision;
mod schedule;
mod span;
mod start;
mod tick;

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use palisade::election::{CampaignError, Election, Leadership};
use palisade::idempotency::{Failed, Status};
use palisade::internal::without_forgotten_reports;
use palisade::{FencingToken, LostSignal, Redlock};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use keys::Records;
use metrics::Meters;

pub use error::CronError;
pub use job::{Interrupted, Job, Missed, Overlap};
#[doc(hidden)]
pub use keys::cron_names;
pub use request::{Requested, RunRequest};
pub use tick::{Cancelled, End, Run, Skipped, Tick, TickReport, TickState};

const NAMESPACE: &str = "cron";
const READS: usize = 32;
/// After giving up the lead, so that another process can become leader.
const LEAVE: Duration = Duration::from_millis(500);
const HOUR: Duration = Duration::from_secs(3_600);
const YEAR: Duration = Duration::from_secs(366 * 24 * 3_600);
/// Longest sleep: tokio's timers stop while the computer is suspended.
const WATCH: Duration = Duration::from_millis(500);

/// No code panics, or awaits, in the middle of a change of the data.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A runner of jobs. Among all processes with the same nodes and prefix, each tick of a job runs
/// once. A clone is cheap. All clones together take part in the election of the leader as one
/// candidate.
#[derive(Clone, Debug)]
pub struct Cron {
    redlock: Redlock,
    name: Arc<str>,
    lead: Arc<Lead>,
    meters: Arc<Meters>,
}

#[derive(Debug)]
struct Lead {
    term: Arc<watch::Sender<Option<FencingToken>>>,
    lost: Arc<Mutex<Option<LostSignal>>>,
    step_down: Arc<Notify>,
    running: Arc<watch::Sender<usize>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Lead {
    fn drop(&mut self) {
        if let Some(task) = locked(&self.task).take() {
            // The task owns the leadership, so aborting it resigns.
            task.abort();
        }
    }
}

impl Cron {
    /// Creates a runner of jobs that uses the nodes of this `Redlock` handle.
    pub fn new(redlock: &Redlock) -> Self {
        let lead = Lead {
            term: Arc::new(watch::Sender::new(None)),
            lost: Arc::default(),
            step_down: Arc::default(),
            running: Arc::new(watch::Sender::new(0)),
            task: Mutex::new(None),
        };
        Self {
            redlock: redlock.clone(),
            name: Arc::from("cron"),
            lead: Arc::new(lead),
            meters: Arc::default(),
        }
    }

    /// Sets the name of a set of processes that run the same jobs. The election of the set is
    /// called `<name>:lead`. The default is `cron`. Processes that run other jobs need another
    /// name. Jobs of two names have nothing in common, even if they are called the same.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into().into();
        self
    }

    /// Returns a receiver of the term of this process's leadership; `None` while this process does
    /// not lead.
    pub fn leading(&self) -> watch::Receiver<Option<FencingToken>> {
        self.lead.term.subscribe()
    }

    /// Returns the term of this process's leadership; `None` if this process does not lead. The
    /// local clock decides: after a suspend that is longer than the lease, the first call returns
    /// `None`.
    pub fn term(&self) -> Option<FencingToken> {
        let lost = locked(&self.lead.lost);
        let valid = lost.as_ref().is_some_and(|lost| !lost.is_lost());
        (*self.lead.term.borrow()).filter(|_| valid)
    }

    /// Gives up the lead at once, if this process leads, so that another process can become leader.
    /// Runs of the job that have begun are not stopped.
    pub fn step_down(&self) {
        self.lead.step_down.notify_waiters();
    }

    /// Runs the job at its ticks, until the handle is [closed](Redlock::close). Call this function
    /// in every process that may run the job.
    ///
    /// If the job returns an error, its tick ends as [failed](End::Failed), and the next tick runs
    /// when it is due. After the errors [`Failed::retry`] and [`Failed::no_effect`], the same tick
    /// is run again instead. If too few nodes can be reached, the tick waits, at most for
    /// [`Job::late`].
    ///
    /// # Errors
    /// [`CronError::Config`] for an invalid schedule or setting. [`CronError::Record`] if every
    /// node refuses the first request because of a wrong setting, such as a wrong password
    /// ([`Advice::Misconfigured`](palisade::Advice::Misconfigured)). Other errors do not end the
    /// job. If a tick has to wait, the reason is logged.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the run under way is dropped too, and counts as
    /// [interrupted](Job::interrupted). No other tick is lost.
    pub async fn run<F, Fut, E>(&self, job: Job, handler: F) -> Result<(), CronError>
    where
        F: Fn(Tick) -> Fut,
        Fut: Future<Output = Result<(), E>>,
        E: Into<Failed>,
    {
        let schedule = job.schedule()?;
        self.campaign(self.election()?);
        engine::run(self, &job, &schedule, &handler).await
    }

    /// Returns the last `n` ticks of the job and their results. The latest tick is the first.
    ///
    /// # Errors
    /// [`CronError::Config`] for an invalid schedule or setting; [`CronError::Record`] if too few
    /// nodes answer.
    ///
    /// # Cancellation safety
    /// The function only reads, so the future may be dropped at any await.
    pub async fn history(&self, job: &Job, n: usize) -> Result<Vec<TickReport>, CronError> {
        let schedule = job.schedule()?;
        let records = &self.records(job)?;
        let before = |at: &i64| schedule.until(at - 1);
        let ticks = std::iter::successors(schedule.until(self.now()), before).take(n);
        let reports = ticks.map(|at| async move {
            let state = match records.tick(at).lookup::<Run>().await {
                Ok(Status::Stored(run)) => TickState::Over(run),
                Ok(Status::Running { .. }) => TickState::Running,
                Ok(Status::Lapsed { .. }) => TickState::Interrupted,
                Ok(Status::Absent) => TickState::Absent,
                Ok(_) => TickState::Unknown,
                Err(e) => return Err(e.into()),
            };
            Ok(TickReport { at: tick::at(at), state })
        });
        // So that the reads share requests.
        stream::iter(reports).buffered(READS).try_collect().await
    }

    /// Returns the next `n` ticks of the job.
    ///
    /// # Errors
    /// [`CronError::Config`] for an invalid schedule or setting.
    pub fn upcoming(&self, job: &Job, n: usize) -> Result<Vec<SystemTime>, CronError> {
        let schedule = job.schedule()?;
        let next = |at: &i64| schedule.after(*at);
        let first = next(&self.now());
        let seconds = std::iter::successors(first, next).take(n);
        Ok(seconds.map(|s| UNIX_EPOCH + Duration::from_secs(s.unsigned_abs())).collect())
    }

    /// In seconds since 1970.
    fn now(&self) -> i64 {
        missed::whole(self.wall_millis() / 1_000)
    }

    /// Since 1970.
    fn wall_millis(&self) -> u64 {
        self.redlock.env().wall_micros() / 1_000
    }

    fn election(&self) -> Result<Election, CronError> {
        Ok(self.redlock.election(format!("{}:lead", self.name)).build()?)
    }

    fn records(&self, job: &Job) -> Result<Records, CronError> {
        // Every key of a tick has a birth, and only keys without one are reported.
        let records = without_forgotten_reports(self.redlock.idempotency(NAMESPACE));
        let records = records.retention(job.retention);
        let records = match job.interrupted {
            Interrupted::Rerun => records.at_least_once(),
            Interrupted::Leave => records.at_most_once(),
        };
        Ok(Records::new(records.build()?, self.id_of(&job.name)))
    }

    fn id_of(&self, job: &str) -> String {
        keys::id(&self.name, job)
    }

    fn lock_of(&self, job: &Job) -> String {
        keys::lock(&self.id_of(&job.name))
    }

    fn revisions(&self, job: &Job) -> Result<Records, CronError> {
        // A schedule's record that the nodes have lost is stored again.
        let records = without_forgotten_reports(self.redlock.idempotency(NAMESPACE));
        let records = records.retention(YEAR).at_least_once().build()?;
        Ok(Records::new(records, self.id_of(&job.name)))
    }

    fn campaign(&self, election: Election) {
        let mut task = locked(&self.lead.task);
        if task.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let lead = Candidate {
            term: Arc::clone(&self.lead.term),
            lost: Arc::clone(&self.lead.lost),
            step_down: Arc::clone(&self.lead.step_down),
            running: self.lead.running.subscribe(),
            redlock: self.redlock.clone(),
        };
        *task = Some(tokio::spawn(lead.run(election)));
    }
}

struct Candidate {
    term: Arc<watch::Sender<Option<FencingToken>>>,
    lost: Arc<Mutex<Option<LostSignal>>>,
    step_down: Arc<Notify>,
    running: watch::Receiver<usize>,
    redlock: Redlock,
}

impl Candidate {
    /// Until the handle is closed. If the nodes refuse this process, the task campaigns again
    /// later, because a person may correct the cause. `Cron::run` reports the error.
    async fn run(mut self, election: Election) {
        let value = format!("pid {}", std::process::id());
        let mut warned = false;
        loop {
            match election.campaign(&*value).await {
                Ok(leadership) => {
                    warned = false;
                    let why = self.lead(&leadership).await;
                    self.term.send_replace(None);
                    let outcome = leadership.resign().await;
                    tracing::debug!(target: "palisade::cron", why, ?outcome, "no longer leads");
                    tokio::time::sleep(LEAVE).await;
                }
                Err(CampaignError::Closed(_)) => return,
                Err(why) => {
                    if !warned {
                        tracing::warn!(target: "palisade::cron", %why, "cannot lead; asks again");
                    }
                    warned = true;
                    tokio::time::sleep(engine::pause(why.advice())).await;
                }
            }
        }
    }

    async fn lead(&mut self, leadership: &Leadership) -> &'static str {
        let stepped = self.step_down.notified();
        *locked(&self.lost) = Some(leadership.lost_signal());
        self.term.send_replace(Some(leadership.term()));
        let resign_request = async {
            let request = leadership.asked_to_resign().await;
            let (name, by, reason) = (leadership.name(), request.by, request.reason);
            tracing::info!(target: "palisade::cron", name, %by, reason, "asked to step down");
            // The other processes check each tick first now. The runs in this process continue to
            // their end.
            self.term.send_replace(None);
            let _ = self.running.wait_for(|running| *running == 0).await;
        };
        tokio::select! {
            biased;
            () = leadership.lost() => "lost",
            () = stepped => "stepped down",
            () = self.redlock.closing() => "closed",
            () = resign_request => "asked",
        }
    }
}

struct Running<'a>(&'a watch::Sender<usize>);

impl<'a> Running<'a> {
    fn begin(running: &'a watch::Sender<usize>) -> Self {
        running.send_modify(|running| *running += 1);
        Self(running)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}
