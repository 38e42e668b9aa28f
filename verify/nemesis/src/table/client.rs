//! A client of the failover table: a process that uses the library on one Sentinel group as
//! programs do. A client reports each observation to the ledger, which logs it, before it acts on
//! the observation.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use palisade::node::{MinReplicas, SentinelNode};
use palisade::{Durability, ElectionBuilder, LockGuard, MutexBuilder, Redlock};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::witness::{PREFIX, Witness};
use crate::event::{EventKind, Nanos, TaskId, now};
use crate::runtime;
use crate::wire::Ledger;

/// Number of locks that a client holds all the time. The library renews these locks.
pub(super) const SITTING: u8 = 16;
/// Number of lock names for which all clients compete.
const HOT: u32 = 4;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Arguments of a client process of the failover table.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(long)]
    id: u8,
    /// Number of clients.
    #[arg(long)]
    of: u8,
    /// Socket of the ledger, the process that logs all events.
    #[arg(long)]
    ledger: PathBuf,
    #[arg(long)]
    group: String,
    /// Address of a Sentinel, `host:port`. Repeated for each Sentinel.
    #[arg(long)]
    sentinel: Vec<String>,
    /// Longest lease, in milliseconds.
    #[arg(long)]
    max_ttl: u64,
    /// Count a grant only if all replicas have it.
    #[arg(long)]
    all_replicas: bool,
    /// Turn all safety checks off. This is a deliberate defect, which the check of the event log
    /// must find.
    #[arg(long)]
    defeat: bool,
}

impl Args {
    fn redlock(&self, votes: UnboundedSender<(Nanos, EventKind)>) -> Result<Locks, Failure> {
        let mut node = SentinelNode::builder(&*self.group, self.sentinel.clone());
        if self.defeat {
            node = node.min_replicas_check(MinReplicas::Off).failover_window(Duration::ZERO);
            node = node.trust_unconfirmed_master(true);
        }
        let max_ttl = Duration::from_millis(self.max_ttl);
        let builder = Redlock::builder().ttl(max_ttl).max_ttl(max_ttl).prefix(PREFIX);
        let builder = builder.clock_error(clock_error(self.max_ttl));
        let node = node.build()?;
        let redlock = builder.node(Witness { node, votes }).build()?;
        let level = if self.all_replicas { Durability::AllReplicas } else { Durability::Primary };
        Ok(Locks { redlock, level })
    }
}

/// Returns the clock error E of the failover table's clients. It is nearly as large as the library
/// permits.
pub(super) fn clock_error(max_ttl_ms: u64) -> Duration {
    Duration::from_millis(max_ttl_ms / 2).saturating_sub(Duration::from_millis(100))
}

/// A `Redlock` handle, and the durability level for its locks and elections.
#[derive(Clone)]
pub(super) struct Locks {
    redlock: Redlock,
    level: Durability,
}

impl Locks {
    pub(super) fn mutex(&self, name: impl AsRef<str>) -> MutexBuilder {
        self.redlock.mutex(name).durability(self.level)
    }

    fn election(&self, name: &str) -> ElectionBuilder {
        self.redlock.election(name).durability(self.level)
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    runtime::run_client(work(args))
}

struct Task {
    id: u8,
    of: u8,
    ledger: Ledger,
    redlock: Locks,
    dice: StdRng,
}

async fn work(args: &Args) -> Result<(), Failure> {
    let (votes, seen) = unbounded_channel();
    let redlock = args.redlock(votes)?;
    let mut tasks = JoinSet::new();
    let who = |task| TaskId { client: args.id, life: 1, task };
    tasks.spawn_local(tell(Ledger::connect(&args.ledger, who(0)).await?, seen));
    for task in 1..=6_u8 {
        let it = Task {
            id: args.id,
            of: args.of,
            ledger: Ledger::connect(&args.ledger, who(task)).await?,
            redlock: redlock.clone(),
            dice: StdRng::seed_from_u64(u64::from(args.id) << 8 | u64::from(task)),
        };
        match task {
            1 => tasks.spawn_local(it.sit()),
            2 => tasks.spawn_local(it.ask_again_and_again()),
            3 => tasks.spawn_local(it.wait_for_each()),
            4 => tasks.spawn_local(it.lead()),
            _ => tasks.spawn_local(it.rival()),
        };
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

async fn tell(
    mut ledger: Ledger,
    mut seen: UnboundedReceiver<(Nanos, EventKind)>,
) -> io::Result<()> {
    while let Some((at, kind)) = seen.recv().await {
        ledger.report_at(at, kind).await?;
    }
    Ok(())
}

fn held(guard: &LockGuard, since: Nanos) -> EventKind {
    let token = guard.fencing_token().get();
    EventKind::Held {
        name: guard.name().into(),
        token,
        since,
        until: guard.valid_until().as_nanos(),
    }
}

fn over(guard: &LockGuard, lost: bool) -> EventKind {
    EventKind::Over { name: guard.name().into(), token: guard.fencing_token().get(), lost }
}

impl Task {
    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.dice.random_range(range))
    }

    /// Holds the locks that this client keeps all the time. Reports each renewal and each loss to
    /// the ledger, which logs the events. Acquires a lost lock again.
    async fn sit(mut self) -> io::Result<()> {
        let (got, mut gets) = unbounded_channel();
        let mut seats: Vec<Option<(LockGuard, u64)>> = Vec::new();
        for n in 0..SITTING {
            seats.push(None);
            self.take_seat(n, &got);
        }
        loop {
            while let Ok((n, guard, since)) = gets.try_recv() {
                self.ledger.report(held(&guard, since)).await?;
                let until = guard.valid_until().as_nanos();
                seats[usize::from(n)] = Some((guard, until));
            }
            for n in 0..SITTING {
                let Some((guard, before)) = &mut seats[usize::from(n)] else { continue };
                let at = now();
                if !guard.is_valid() {
                    self.ledger.report_at(at, over(guard, true)).await?;
                    seats[usize::from(n)] = None;
                    self.take_seat(n, &got);
                    continue;
                }
                let until = guard.valid_until().as_nanos();
                if until != *before {
                    *before = until;
                    let token = guard.fencing_token().get();
                    let valid = EventKind::Valid { name: guard.name().into(), token, until };
                    self.ledger.report_at(at, valid).await?;
                }
            }
            sleep(Duration::from_millis(3)).await;
        }
    }

    fn take_seat(&self, n: u8, got: &UnboundedSender<(u8, LockGuard, Nanos)>) {
        let mutex = self
            .redlock
            .mutex(format!("sit-{}-{n}", self.id))
            .acquire_timeout(Duration::from_secs(5))
            .build()
            .expect("settings fit together");
        let got = got.clone();
        tokio::task::spawn_local(async move {
            loop {
                let since = now();
                if let Ok(guard) = mutex.acquire().await {
                    let _ = got.send((n, guard, since));
                    return;
                }
                sleep(Duration::from_millis(20)).await;
            }
        });
    }

    /// Tries to acquire locks with new names, one after another. The results show the times at
    /// which the group grants locks.
    async fn ask_again_and_again(mut self) -> io::Result<()> {
        for n in 0_u64.. {
            let name = format!("fresh-{}-{n}", self.id);
            let mutex = self
                .redlock
                .mutex(name)
                .ttl(Duration::from_secs(1))
                .auto_renew(false)
                .build()
                .expect("settings fit together");
            let since = now();
            if let Ok(taken) = mutex.try_acquire().await
                && let Some(guard) = taken.acquired()
            {
                self.ledger.report(held(&guard, since)).await?;
                self.ledger.report(over(&guard, false)).await?;
                let _ = guard.release().await;
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Acquires locks with new names, one after another. Each call waits up to 120 s, as a program
    /// with a long timeout does.
    async fn wait_for_each(mut self) -> io::Result<()> {
        for n in 0_u64.. {
            let name = format!("fresh-{}-w{n}", self.id);
            let mutex = self.redlock.mutex(name).ttl(Duration::from_secs(1)).auto_renew(false);
            let mutex = mutex.acquire_timeout(Duration::from_secs(120)).build();
            let mutex = mutex.expect("settings fit together");
            let since = now();
            if let Ok(guard) = mutex.acquire().await {
                self.ledger.report(held(&guard, since)).await?;
                self.ledger.report(over(&guard, false)).await?;
                let _ = guard.release().await;
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn rival(mut self) -> io::Result<()> {
        loop {
            let pause = self.millis(5..60);
            sleep(pause).await;
            let seat = self.dice.random_ratio(4, 10);
            let name = if seat {
                let client = self.dice.random_range(1..=self.of);
                format!("sit-{client}-{}", self.dice.random_range(0..SITTING))
            } else {
                format!("lock-{}", self.dice.random_range(0..HOT))
            };
            let renew = self.dice.random_ratio(7, 10);
            let ttl = Duration::from_millis(if seat { 3_000 } else { 1_500 });
            let mutex = self.redlock.mutex(name).ttl(ttl).auto_renew(renew);
            let mutex = mutex.acquire_timeout(self.millis(100..1_500)).build();
            let mutex = mutex.expect("settings fit together");
            let since = now();
            let got = if seat {
                mutex.try_acquire().await.ok().and_then(palisade::TryAcquire::acquired)
            } else {
                mutex.acquire().await.ok()
            };
            if let Some(guard) = got {
                let long = self.dice.random_ratio(2, 10);
                let length = self.millis(if long { 500..2_500 } else { 2..100 });
                self.hold(guard, since, length).await?;
            }
        }
    }

    async fn hold(&mut self, guard: LockGuard, since: Nanos, length: Duration) -> io::Result<()> {
        self.ledger.report(held(&guard, since)).await?;
        let (begun, token) = (Instant::now(), guard.fencing_token().get());
        let mut before = 0;
        while begun.elapsed() < length {
            let at = now();
            if !guard.is_valid() {
                return self.ledger.report_at(at, over(&guard, true)).await;
            }
            let until = guard.valid_until().as_nanos();
            if until != before {
                let valid = EventKind::Valid { name: guard.name().into(), token, until };
                self.ledger.report_at(at, valid).await?;
                before = until;
            }
            sleep(Duration::from_millis(5)).await;
        }
        self.ledger.report(over(&guard, false)).await?;
        let _ = guard.release().await;
        Ok(())
    }

    /// Repeatedly campaigns, leads for some time and resigns.
    async fn lead(mut self) -> io::Result<()> {
        loop {
            let pause = self.millis(10..200);
            sleep(pause).await;
            let election = self.redlock.election("table").ttl(Duration::from_secs(3));
            let election = election.acquire_timeout(Duration::from_secs(2)).build();
            let election = election.expect("settings fit together");
            let since = now();
            let value = self.id.to_string();
            let Ok(won) = election.campaign(value).await else {
                continue;
            };
            let (name, token): (Arc<str>, _) = ("election:table".into(), won.term().get());
            let until = won.valid_until().as_nanos();
            let held = EventKind::Held { name: Arc::clone(&name), token, since, until };
            self.ledger.report(held).await?;
            let (begun, length) = (Instant::now(), self.millis(500..4_000));
            let mut lost = false;
            while begun.elapsed() < length && !lost {
                let at = now();
                lost = !won.is_valid();
                let until = won.valid_until().as_nanos();
                if !lost {
                    let valid = EventKind::Valid { name: Arc::clone(&name), token, until };
                    self.ledger.report_at(at, valid).await?;
                    sleep(Duration::from_millis(20)).await;
                }
            }
            self.ledger.report(EventKind::Over { name, token, lost }).await?;
            if !lost {
                let _ = won.resign().await;
            }
        }
    }
}
