//! A client: a process with one handle that works under locks, and reports each grant before its
//! next step.

use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use palisade::error::{AcquireError, ResumeError};
use palisade::{HandOver, LockGuard, OnUnavailable, Owner, RedisNode, Redlock};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep};

use super::record::{Grant, Line, Log, Mode, What};
use super::{CLOCK_ERROR, Kind, NODE_DEADLINE, PERMITS, TTL};
use crate::event::{Nanos, TaskId, now};
use crate::world::Failure;

/// Number of tasks of a client for each kind.
const TASKS: u8 = 2;
/// Longest wait of a call. It is longer than a fault, so that a call outlives it.
const WAIT: Duration = Duration::from_secs(5);
/// Time for which the nodes must be silent before work goes on without the lock.
const DEGRADE_AFTER: Duration = Duration::from_millis(200);
/// File with the newest ticket.
const TICKET: &str = "ticket";

/// Arguments of a client.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(long)]
    pub(super) id: u8,
    #[arg(long)]
    pub(super) life: u16,
    #[arg(long)]
    pub(super) seed: u64,
    /// Folder for the file of this process and for tickets.
    #[arg(long)]
    pub(super) dir: PathBuf,
    /// URL of a server. Repeated for each server.
    #[arg(long)]
    pub(super) node: Vec<String>,
    /// Kind of locks. Repeated for each kind.
    #[arg(long)]
    pub(super) kind: Vec<Kind>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(LocalSet::new().run_until(work(args)))
}

async fn work(args: &Args) -> Result<(), Failure> {
    let mut builder = Redlock::builder()
        .ttl(TTL)
        .max_ttl(TTL)
        .clock_error(CLOCK_ERROR)
        .node_deadline(NODE_DEADLINE)
        .prefix("demo:");
    for url in &args.node {
        builder = builder.node(RedisNode::new(url)?);
    }
    let redlock = builder.build()?;
    let log = Log::create(&args.dir.join(format!("client-{}-{}.jsonl", args.id, args.life)))?;
    let log = Rc::new(log);
    let mut tasks = JoinSet::new();
    for (n, (kind, half)) in
        args.kind.iter().flat_map(|kind| (0..TASKS).map(move |half| (*kind, half))).enumerate()
    {
        let who = TaskId { client: args.id, life: args.life, task: n as u8 };
        let place = u64::from(args.id) << 40 | u64::from(args.life) << 8 | n as u64;
        let task = Task {
            who,
            half,
            log: Rc::clone(&log),
            dice: StdRng::seed_from_u64(args.seed ^ place),
            redlock: redlock.clone(),
            ticket: args.dir.join(TICKET),
        };
        tasks.spawn_local(task.work(kind));
    }
    // A task ends only after an error that no fault of the demo explains.
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// State of one task.
struct Task {
    who: TaskId,
    /// Number of the task among those of one kind.
    half: u8,
    log: Rc<Log>,
    dice: StdRng,
    redlock: Redlock,
    ticket: PathBuf,
}

impl Task {
    async fn work(mut self, kind: Kind) -> Result<(), Failure> {
        loop {
            match kind {
                Kind::ReadWrite => self.read_write().await?,
                Kind::Semaphore => self.semaphore().await?,
                Kind::Reentrant => self.reentrant().await?,
                Kind::Multi => self.multi().await?,
                Kind::Degrade => self.degrade().await?,
                Kind::HandOver if self.half == 0 => self.hand_over().await?,
                Kind::HandOver => self.resume().await?,
                Kind::Fair => self.fair().await?,
            }
            self.pause(0..15).await;
        }
    }

    async fn read_write(&mut self) -> Result<(), Failure> {
        let lock = self.redlock.rw_lock(Kind::ReadWrite.name()).acquire_timeout(WAIT).build()?;
        let (since, names) = (now(), || vec![Kind::ReadWrite.name().to_owned()]);
        if self.chance(75) {
            let Some(guard) = served(lock.read().await)? else { return Ok(()) };
            self.hold(&guard, grant(names(), Mode::Shared, since)).await?;
            return self.end(guard.into()).await;
        }
        let Some(guard) = served(lock.write().await)? else { return Ok(()) };
        self.hold(&guard, grant(names(), Mode::Exclusive, since)).await?;
        if self.chance(70) {
            return self.end(guard.into()).await;
        }
        let since = now();
        let guard = guard.downgrade().await;
        self.hold(&guard, grant(names(), Mode::Shared, since)).await?;
        self.end(guard.into()).await
    }

    async fn semaphore(&mut self) -> Result<(), Failure> {
        let name = Kind::Semaphore.name();
        let semaphore = self.redlock.semaphore(name, PERMITS).acquire_timeout(WAIT).build()?;
        let since = now();
        let Some(permit) = served(semaphore.acquire().await)? else { return Ok(()) };
        let mode = Mode::Slot(permit.slot());
        self.hold(&permit, grant(vec![name.to_owned()], mode, since)).await?;
        self.end(permit.into()).await
    }

    async fn reentrant(&mut self) -> Result<(), Failure> {
        let name = Kind::Reentrant.name();
        let lock = self.redlock.mutex(name).acquire_timeout(WAIT).build()?.reentrant();
        let (owner, since) = (Owner::new(), now());
        let Some(outer) = served(lock.acquire(&owner).await)? else { return Ok(()) };
        self.begin(&outer, grant(vec![name.to_owned()], Mode::Exclusive, since))?;
        let mut inner = Vec::new();
        for _ in 0..self.dice.random_range(1..4) {
            // The lock may be lost meanwhile. Then the owner cannot enter again.
            let Ok(guard) = lock.acquire(&owner).await else { break };
            self.note(now(), What::Inner { token: guard.fencing_token().get() })?;
            inner.push(guard);
        }
        self.rely(&outer).await?;
        // The first guard is released before the others, which keep the lock.
        let _ = outer.release().await;
        if let Some(last) = inner.pop() {
            inner.clear();
            self.rely(&last).await?;
            self.note(now(), What::Over)?;
            let _ = last.release().await;
        } else {
            self.note(now(), What::Over)?;
        }
        Ok(())
    }

    /// Acquires both names, in an order that differs from task to task.
    async fn multi(&mut self) -> Result<(), Failure> {
        let mut names = ["left", "right"].map(|side| format!("{}:{side}", Kind::Multi.name()));
        if self.half == 1 {
            names.reverse();
        }
        let lock = self.redlock.multi(&names).acquire_timeout(WAIT * 2).build()?;
        let since = now();
        let Some(guard) = served(lock.acquire().await)? else { return Ok(()) };
        self.hold(&guard, grant(names.to_vec(), Mode::Exclusive, since)).await?;
        let _ = guard.release().await;
        Ok(())
    }

    async fn degrade(&mut self) -> Result<(), Failure> {
        let name = Kind::Degrade.name();
        let lock = self.redlock.mutex(name).acquire_timeout(WAIT).build()?;
        let lock = lock.on_unavailable(OnUnavailable::Local).degrade_after(DEGRADE_AFTER)?;
        let since = now();
        let Some(guard) = served(lock.acquire().await)? else { return Ok(()) };
        let names = vec![name.to_owned()];
        if let Some(held) = guard.lock() {
            self.hold(held, grant(names, Mode::Exclusive, since)).await?;
        } else {
            // A degraded guard has no deadline. It is inside as long as it lives.
            let at = now();
            let until = at;
            let grant = Grant { until, ..grant(names, Mode::Degraded, since) };
            self.note(at, What::Held(grant))?;
            self.pause(1..10).await;
            let at = now();
            self.note(at, What::Valid { until: at })?;
            self.note(at, What::Over)?;
        }
        let _ = guard.release().await;
        Ok(())
    }

    /// Acquires the lock, and hands it over to the task that reads the ticket first.
    async fn hand_over(&mut self) -> Result<(), Failure> {
        let name = Kind::HandOver.name();
        let lock = self.redlock.mutex(name).acquire_timeout(WAIT).build()?;
        let since = now();
        let Some(guard) = served(lock.acquire().await)? else { return Ok(()) };
        self.hold(&guard, grant(vec![name.to_owned()], Mode::Exclusive, since)).await?;
        self.pass_on(guard).await
    }

    async fn pass_on(&mut self, guard: LockGuard) -> Result<(), Failure> {
        let Ok(ticket) = guard.hand_over().await else { return Ok(()) };
        let TaskId { client, life, task } = self.who;
        let new = self.ticket.with_extension(format!("{client}-{life}-{task}"));
        std::fs::write(&new, serde_json::to_vec(&ticket)?)?;
        std::fs::rename(new, &self.ticket)?;
        Ok(())
    }

    /// Redeems the newest ticket. Several tasks read the same one.
    async fn resume(&mut self) -> Result<(), Failure> {
        let ticket = match std::fs::read(&self.ticket) {
            Ok(text) => serde_json::from_slice::<HandOver>(&text)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        // If all try at the same time, the nodes may be split among them.
        if self.chance(75) {
            return Ok(());
        }
        let since = now();
        let guard = match self.redlock.resume(&ticket).await {
            Ok(guard) => guard,
            Err(ResumeError::Gone(_) | ResumeError::NoQuorum(_)) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        let of = grant(vec![ticket.name().to_owned()], Mode::Exclusive, since);
        let ticket = Some(ticket.fencing_token().get());
        self.hold(&guard, Grant { ticket, ..of }).await?;
        if self.chance(50) { self.pass_on(guard).await } else { self.end(guard).await }
    }

    /// Acquires the lock in the order of the callers.
    async fn fair(&mut self) -> Result<(), Failure> {
        let name = Kind::Fair.name();
        let lock = self.redlock.mutex(name).fair(true).acquire_timeout(WAIT).build()?;
        let (since, mut queued) = (now(), None);
        let acquired = lock.acquire_with(|_| queued = queued.or_else(|| Some(now()))).await;
        let Some(guard) = served(acquired)? else { return Ok(()) };
        let of = grant(vec![name.to_owned()], Mode::Exclusive, since);
        self.hold(&guard, Grant { queued, ..of }).await?;
        self.end(guard).await
    }

    /// Reports the grant, relies on the lock for some time, and reports the end.
    async fn hold(&mut self, guard: &LockGuard, grant: Grant) -> io::Result<()> {
        self.begin(guard, grant)?;
        self.rely(guard).await?;
        self.note(now(), What::Over)
    }

    fn begin(&mut self, guard: &LockGuard, grant: Grant) -> io::Result<()> {
        let at = now();
        let (token, until) = (guard.fencing_token().get(), guard.valid_until().as_nanos());
        self.note(at, What::Held(Grant { token, until, ..grant }))
    }

    /// Relies on the lock for some time, mostly short, sometimes over several renewals. Ends early
    /// if the lock is lost.
    async fn rely(&mut self, guard: &LockGuard) -> io::Result<()> {
        let length = match self.dice.random_range(0..100) {
            0..94 => self.millis(1..12),
            94..99 => self.millis(20..100),
            _ => self.millis(300..1_200),
        };
        let begun = Instant::now();
        while begun.elapsed() < length {
            let step = self.millis(2..40).min(length.saturating_sub(begun.elapsed()));
            tokio::select! {
                biased;
                () = guard.lost() => return Ok(()),
                () = sleep(step) => {}
            }
            // Read the clock first. A renewal in between only makes the deadline later.
            let at = now();
            if !guard.is_valid() {
                return Ok(());
            }
            self.note(at, What::Valid { until: guard.valid_until().as_nanos() })?;
        }
        Ok(())
    }

    /// Releases or drops the lock, whose end was reported before.
    async fn end(&mut self, guard: LockGuard) -> Result<(), Failure> {
        if self.chance(15) {
            drop(guard);
        } else {
            // Whatever the nodes answered, this task no longer relies on the lock.
            let _ = guard.release().await;
        }
        Ok(())
    }

    fn note(&self, at: Nanos, what: What) -> io::Result<()> {
        self.log.add(&Line { at, who: self.who, what })
    }

    /// Returns true with a probability of `n` percent.
    fn chance(&mut self, n: u32) -> bool {
        self.dice.random_ratio(n, 100)
    }

    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.dice.random_range(range))
    }

    async fn pause(&mut self, range: std::ops::Range<u64>) {
        sleep(self.millis(range)).await;
    }
}

/// Returns a grant whose guard is not known yet.
fn grant(names: Vec<String>, mode: Mode, since: Nanos) -> Grant {
    Grant { names, mode, token: 0, since, queued: None, until: 0, ticket: None }
}

/// Returns the guard. Returns `None` for an error that a fault, or other callers, explain.
fn served<G>(result: Result<G, AcquireError>) -> Result<Option<G>, AcquireError> {
    match result {
        Ok(guard) => Ok(Some(guard)),
        Err(AcquireError::TimedOut { .. } | AcquireError::NoQuorum(_)) => Ok(None),
        Err(e) => Err(e),
    }
}
