//! The simulated world of the cron tests: nodes, hosts, processes, and a ledger of the runs. Time
//! is virtual (tokio's paused clock).

use std::future::Future;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use palisade::Moment;
use palisade::node::spi::Env;
use palisade::test_util::TokioEnv;
use palisade::{Failed, MemoryNode, Redlock};
use palisade_cron::{Cron, Job, Tick};
use palisade_testing::fault::{Fault, FaultControl, Step};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// An entry of the ledger for one run of the job. It is written when the run begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) at: i64,
    pub(crate) attempt: u32,
    pub(crate) token: u64,
    pub(crate) backfilled: bool,
    pub(crate) requested: bool,
    pub(crate) by: u32,
    /// Beginning of the run by a correct clock, in milliseconds.
    pub(crate) began: u64,
}

#[derive(Default)]
struct Ledger {
    runs: Vec<Run>,
    completed: Vec<i64>,
}

/// A host with a wall clock that the test sets. The monotonic clock is the same on all hosts.
#[derive(Debug)]
pub(crate) struct Host {
    env: Arc<dyn Env>,
    ahead: AtomicI64,
    flick: AtomicI64,
}

impl Host {
    /// Makes the wall clock wrong once: after `looks` readings, one reading is two seconds too low.
    pub(crate) fn flick_after(&self, looks: i64) {
        self.flick.store(looks, Ordering::Relaxed);
    }

    /// Sets the wall clock ahead by this number of seconds.
    pub(crate) fn set_ahead(&self, seconds: i64) {
        self.ahead.store(seconds, Ordering::Relaxed);
    }
}

impl Env for Host {
    fn now(&self) -> Moment {
        self.env.now()
    }

    fn wall_micros(&self) -> u64 {
        let back = self.flick.fetch_sub(1, Ordering::Relaxed) == 0;
        let ahead = self.ahead.load(Ordering::Relaxed) - if back { 2 } else { 0 };
        self.env.wall_micros().saturating_add_signed(ahead * 1_000_000)
    }

    fn random(&self) -> u128 {
        self.env.random()
    }
}

pub(crate) struct World {
    env: Arc<dyn Env>,
    ttl: Duration,
    faults: Vec<Fault>,
    controls: Vec<FaultControl>,
    ledger: Arc<Mutex<Ledger>>,
    count: AtomicU32,
}

/// A simulated process that runs a job. Dropping this value kills the process.
pub(crate) struct Process {
    pub(crate) cron: Cron,
    redlock: Redlock,
    frozen: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Process {
    /// Freezes the process's job at its present point (`true`), or lets the job continue (`false`).
    pub(crate) fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    pub(crate) fn leads(&self) -> bool {
        self.cron.leading().borrow().is_some()
    }

    /// Ends the process cleanly: it releases its locks, so that no other process has to wait for
    /// them.
    pub(crate) async fn end(self) {
        drop(self.redlock.close(Duration::from_secs(1)).await);
    }
}

/// Polls `work` only while `frozen` is false.
async fn unless_frozen<F: Future>(mut frozen: watch::Receiver<bool>, work: F) -> F::Output {
    let mut work = std::pin::pin!(work);
    loop {
        let _ = frozen.wait_for(|frozen| !frozen).await;
        tokio::select! {
            biased;
            Ok(_) = frozen.wait_for(|frozen| *frozen) => {}
            done = &mut work => return done,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn every_second(name: &str) -> Job {
    Job::new(name, "* * * * * *")
}

pub(crate) fn at(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds.unsigned_abs())
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_ttl(Duration::from_secs(2))
    }

    /// The longer the leases, the fewer extensions a test of hours has to compute.
    pub(crate) fn with_ttl(ttl: Duration) -> Self {
        let env: Arc<dyn Env> = Arc::new(TokioEnv::new());
        let node = |_| MemoryNode::builder().env(Arc::clone(&env)).build();
        let faults: Vec<_> = (0..3).map(node).map(Fault::new).collect();
        let controls = faults.iter().map(Fault::control).collect();
        let (ledger, count) = (Arc::default(), AtomicU32::new(0));
        Self { env, ttl, faults, controls, ledger, count }
    }

    pub(crate) fn redlock(&self) -> Redlock {
        self.redlock_with(Arc::clone(&self.env))
    }

    fn redlock_with(&self, env: Arc<dyn Env>) -> Redlock {
        let builder = Redlock::builder().ttl(self.ttl).env(env);
        let all = self.faults.iter().fold(builder, |b, fault| b.node(fault.clone()));
        all.build().unwrap()
    }

    pub(crate) fn host(&self) -> Arc<Host> {
        let (ahead, flick) = (AtomicI64::new(0), AtomicI64::new(-1));
        Arc::new(Host { env: Arc::clone(&self.env), ahead, flick })
    }

    pub(crate) fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.env.wall_micros())
    }

    pub(crate) async fn sleep(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }

    /// Cuts or heals the connections of all processes to all nodes.
    pub(crate) fn cut(&self, cut: bool) {
        for control in &self.controls {
            if cut { control.cut() } else { control.heal() }
        }
    }

    /// Cuts the connections of all processes to this node, and heals their connections to the other
    /// nodes.
    pub(crate) fn cut_only(&self, node: usize) {
        self.cut(false);
        self.controls[node].cut();
    }

    /// Loses the replies of two nodes, after a number of requests to each of these nodes.
    pub(crate) fn lose_replies_after(&self, requests: usize) {
        for control in &self.controls[1..] {
            let lost = std::iter::repeat_n(Step::lose_reply(), 100);
            control.script(std::iter::repeat_n(Step::fine(), requests).chain(lost));
        }
    }

    /// Ends the loss of replies.
    pub(crate) fn lose_no_replies(&self) {
        self.controls.iter().for_each(FaultControl::clear);
    }

    pub(crate) fn runs(&self) -> Vec<Run> {
        self.ledger.lock().unwrap().runs.clone()
    }

    /// Returns the ticks with a completed run, sorted by time.
    pub(crate) fn completed(&self) -> Vec<i64> {
        let mut all = self.ledger.lock().unwrap().completed.clone();
        all.sort_unstable();
        all
    }

    pub(crate) fn process(&self, job: Job) -> Process {
        self.process_with(job, |_| async { Ok(()) })
    }

    pub(crate) fn process_with<H, Fut>(&self, job: Job, handler: H) -> Process
    where
        H: Fn(Tick) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failed>> + Send + 'static,
    {
        self.process_on(&self.host(), job, handler)
    }

    pub(crate) fn process_on<H, Fut>(&self, host: &Arc<Host>, job: Job, handler: H) -> Process
    where
        H: Fn(Tick) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failed>> + Send + 'static,
    {
        self.process_of("cron", host, job, handler)
    }

    /// Starts a process whose `Cron` has this name.
    pub(crate) fn process_of<H, Fut>(
        &self,
        name: &str,
        host: &Arc<Host>,
        job: Job,
        handler: H,
    ) -> Process
    where
        H: Fn(Tick) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Failed>> + Send + 'static,
    {
        let redlock = self.redlock_with(Arc::clone(host) as Arc<dyn Env>);
        let cron = Cron::new(&redlock).name(name);
        let (env, ledger) = (Arc::clone(&self.env), Arc::clone(&self.ledger));
        let by = self.count.fetch_add(1, Ordering::Relaxed);
        let runs = cron.clone();
        let (frozen, is_frozen) = watch::channel(false);
        let task = tokio::spawn(async move {
            let run = runs.run(job, |tick: Tick| {
                let (at, ledger) = (tick.unix_seconds(), Arc::clone(&ledger));
                ledger.lock().unwrap().runs.push(Run {
                    at,
                    attempt: tick.attempt(),
                    token: tick.fencing_token().get(),
                    backfilled: tick.is_backfilled(),
                    requested: tick.is_requested(),
                    by,
                    began: env.wall_micros() / 1_000,
                });
                let work = handler(tick);
                async move {
                    work.await?;
                    ledger.lock().unwrap().completed.push(at);
                    Ok::<_, Failed>(())
                }
            });
            Box::pin(unless_frozen(is_frozen, run)).await.unwrap();
        });
        Process { cron, redlock, frozen, task }
    }
}
