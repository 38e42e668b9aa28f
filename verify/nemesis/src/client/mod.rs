//! A client: a process with its own `Redlock` handle that runs all kinds of work concurrently. A
//! client reports each observation to the ledger, the process that logs all events, before it acts
//! on the observation.

mod batches;
mod elections;
mod locks;
mod orders;
mod takeovers;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use palisade::Redlock;
use palisade::node::SentinelNode;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::JoinSet;

use crate::event::{Answer, EventKind, TaskId, Verb, now};
use crate::locks::Kind;
use crate::locks::record::Journal;
use crate::locks::work::{Pace, TICKET, Task as OfKind};
use crate::runtime;
use crate::wire::Ledger;

/// Longest lease of all clients. The length of each quarantine follows from it.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(2);
/// E, the largest error of any clock that all clients assume.
pub(crate) const CLOCK_ERROR: Duration = Duration::from_millis(500);
/// Default lease of a client.
const TTL: Duration = Duration::from_millis(1_500);

/// Tasks that use locks of other kinds than mutexes: the kind, and the number of the task among the
/// tasks of this kind.
const KINDS: [(Kind, u8); 6] = [
    (Kind::ReadWrite, 0),
    (Kind::Semaphore, 0),
    (Kind::Multi, 0),
    (Kind::HandOver, 0),
    (Kind::HandOver, 1),
    (Kind::Fair, 0),
];
/// Pace (pauses, and percentage of long holds) of the tasks that use locks of other kinds than
/// mutexes.
const PACE: Pace = Pace { rest: (10, 120), long: 10 };

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Arguments of a client process.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(long)]
    pub(crate) id: u8,
    #[arg(long)]
    pub(crate) life: u16,
    #[arg(long)]
    seed: u64,
    /// Socket of the ledger.
    #[arg(long)]
    pub(crate) ledger: PathBuf,
    /// One Sentinel group as `name=host:port,host:port,…`. Repeated for each group.
    #[arg(long)]
    pub(crate) group: Vec<String>,
}

/// State of one task: identity, connection to the ledger, random numbers and `Redlock` handle.
struct Task {
    who: TaskId,
    ledger: Ledger,
    dice: StdRng,
    redlock: Redlock,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    runtime::run_client(work(args))
}

async fn work(args: &Args) -> Result<(), Failure> {
    let redlock = redlock(&args.group)?;
    let mut tasks = JoinSet::new();
    let of = async |task: u8| -> io::Result<Task> {
        let who = TaskId { client: args.id, life: args.life, task };
        let place = u64::from(who.client) << 40 | u64::from(who.life) << 8 | u64::from(task);
        Ok(Task {
            who,
            ledger: Ledger::connect(&args.ledger, who).await?,
            dice: StdRng::seed_from_u64(args.seed ^ place),
            redlock: redlock.clone(),
        })
    };
    for n in 0..8_u8 {
        let task = of(n).await?;
        match n {
            0 | 1 => tasks.spawn_local(locks::work(task)),
            2 | 3 => tasks.spawn_local(orders::work(task)),
            4 => tasks.spawn_local(elections::lead(task)),
            5 => tasks.spawn_local(elections::watch(task)),
            6 => tasks.spawn_local(takeovers::work(task)),
            _ => tasks.spawn_local(batches::work(task)),
        };
    }
    for ((kind, half), n) in KINDS.into_iter().zip(8..) {
        let Task { who, ledger, dice, redlock } = of(n).await?;
        let journal = Journal::Ledger(ledger);
        let ticket = args.ledger.with_file_name(TICKET);
        let task = OfKind { who, kind, half, pace: PACE, journal, dice, redlock, ticket };
        tasks.spawn_local(async { Box::pin(task.work()).await.map_err(io::Error::other) });
    }
    // A task ends only after an error of its connection to the ledger. Then the other tasks end,
    // too.
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

pub(crate) fn redlock(groups: &[String]) -> Result<Redlock, Failure> {
    let mut builder = Redlock::builder()
        .ttl(TTL)
        .max_ttl(MAX_TTL)
        .clock_error(CLOCK_ERROR)
        .node_deadline(Duration::from_millis(250))
        .prefix("nemesis:");
    for group in groups {
        let (name, sentinels) = group.split_once('=').ok_or("--group is name=host:port,…")?;
        builder = builder.node(SentinelNode::new(name, sentinels.split(','))?);
    }
    Ok(builder.build()?)
}

impl Task {
    fn chance(&mut self, n: u32) -> bool {
        self.dice.random_ratio(n, 100)
    }

    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.dice.random_range(range))
    }

    async fn pause(&mut self, range: std::ops::Range<u64>) {
        tokio::time::sleep(self.millis(range)).await;
    }

    async fn verb<T>(
        &mut self,
        verb: Verb,
        name: &Arc<str>,
        within: Duration,
        call: impl Future<Output = T>,
        answer: impl FnOnce(&T) -> Answer,
    ) -> io::Result<T> {
        self.ledger.verb(verb, name, within, call, answer).await
    }

    /// Stops this whole process for a random time, to imitate a long pause of a runtime. The
    /// process renews no lease meanwhile.
    async fn stall(&mut self, range: std::ops::Range<u64>) -> io::Result<()> {
        let length = self.millis(range);
        stall(&mut self.ledger, length).await
    }
}

async fn stall(ledger: &mut Ledger, length: Duration) -> io::Result<()> {
    ledger.report(EventKind::Stalled { until: now() + length.as_nanos() as u64 }).await?;
    std::thread::sleep(length);
    Ok(())
}
