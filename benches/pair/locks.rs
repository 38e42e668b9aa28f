//! A benchmark of each kind of lock (read-write lock, semaphore and others) in comparison with a
//! mutex, on the same servers and in the same rounds.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use palisade::{Owner, Permit, Redlock, ReentrantGuard, TryAcquire};

use super::Args;
use super::case::{Case, Run, run};
use super::contenders::{Contender, Ours};
use super::row::Row;
use super::server::Server;
use super::stats::Spread;

/// Number of permits of the semaphore. Half of the permits are held during the whole measurement.
const PERMITS: u16 = 10;
/// Number of tasks that hold the same read lock.
const READERS: usize = 64;

/// A kind of lock, or a way to use one, that is compared with a mutex.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Read,
    Write,
    Permit,
    ThreeNames,
    Inner,
    Readers,
    Fair,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Read,
        Self::Write,
        Self::Permit,
        Self::ThreeNames,
        Self::Inner,
        Self::Readers,
        Self::Fair,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Read => "read lock",
            Self::Write => "write lock",
            Self::Permit => "permit, 5 of 10 held",
            Self::ThreeNames => "three names",
            Self::Inner => "reentrant, inner",
            Self::Readers => "64 readers of a name",
            Self::Fair => "fair mutex",
        }
    }

    /// Returns the target for this kind: the name of a figure in the printed row, and the bound of
    /// this figure. The write lock has no target, because it is a mutex.
    fn target(self) -> &'static str {
        match self {
            Self::Read | Self::Fair => "p50_over_mutex <= 1.15",
            Self::Write => "",
            Self::Permit => "p50_over_mutex <= 1.25",
            Self::ThreeNames => "p50_over_mutex <= 1.4",
            Self::Inner => "p50_us <= 1",
            Self::Readers => "rate_over_mutex >= 0.8",
        }
    }

    /// Returns the number of tasks that run at the same time.
    fn tasks(self, args: &Args) -> usize {
        if self == Self::Readers { READERS } else { args.tasks.unwrap_or(1) }
    }
}

/// Palisade with one kind of lock, as one side of the comparison (a contender), and the guards that
/// are held while it is measured.
struct Of {
    redlock: Redlock,
    kind: Kind,
    owner: Owner,
    _permits: Vec<Permit>,
    _outer: Option<ReentrantGuard>,
}

impl Of {
    async fn new(kind: Kind, urls: &[String]) -> Self {
        let Ours(redlock) = Ours::connect(urls);
        let (owner, mut permits, mut outer) = (Owner::new(), Vec::new(), None);
        if kind == Kind::Permit {
            let semaphore = redlock.semaphore("permits", PERMITS).build().unwrap();
            for _ in 0..PERMITS / 2 {
                permits.push(semaphore.acquire().await.expect("a permit"));
            }
        }
        if kind == Kind::Inner {
            let lock = redlock.mutex("inner").build().unwrap().reentrant();
            outer = Some(lock.acquire(&owner).await.expect("the lock is free"));
        }
        Self { redlock, kind, owner, _permits: permits, _outer: outer }
    }
}

impl Contender for Of {
    fn pair(&self, name: String) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        let redlock = &self.redlock;
        match self.kind {
            Kind::Read => Box::pin(read(redlock, name)),
            Kind::Readers => Box::pin(read(redlock, "readers".to_owned())),
            Kind::Write => Box::pin(async move {
                match redlock.rw_lock(name).build().unwrap().try_write().await {
                    Ok(TryAcquire::Acquired(guard)) => guard.release().await.is_ok(),
                    _ => false,
                }
            }),
            Kind::Permit => Box::pin(async move {
                match redlock.semaphore("permits", PERMITS).build().unwrap().try_acquire().await {
                    Ok(TryAcquire::Acquired(permit)) => permit.release().await.is_ok(),
                    _ => false,
                }
            }),
            Kind::ThreeNames => Box::pin(async move {
                let names = ["a", "b", "c"].map(|part| format!("{name}:{part}"));
                match redlock.multi(names).build().unwrap().try_acquire().await {
                    Ok(TryAcquire::Acquired(guard)) => guard.release().await.is_ok(),
                    _ => false,
                }
            }),
            Kind::Fair => Box::pin(async move {
                // Only `acquire` waits in the fair queue. `try_acquire` makes a single attempt and
                // is never fair.
                match redlock.mutex(name).fair(true).build().unwrap().acquire().await {
                    Ok(guard) => guard.release().await.is_ok(),
                    Err(_) => false,
                }
            }),
            Kind::Inner => Box::pin(async move {
                // An acquire of a reentrant lock that the owner already holds returns without
                // waiting for a reply. Without this line, the task would never give control back to
                // the runtime, and on one thread the timer that ends this part of the benchmark
                // would not run.
                tokio::task::consume_budget().await;
                let lock = redlock.mutex("inner").build().unwrap().reentrant();
                match lock.acquire(&self.owner).await {
                    Ok(guard) => guard.release().await.is_ok(),
                    Err(_) => false,
                }
            }),
        }
    }
}

async fn read(redlock: &Redlock, name: String) -> bool {
    match redlock.rw_lock(name).build().unwrap().try_read().await {
        Ok(TryAcquire::Acquired(guard)) => guard.release().await.is_ok(),
        _ => false,
    }
}

pub(crate) async fn table(args: &Args, runtime: &str) {
    for nodes in [1, 3, 5] {
        if args.nodes.is_none_or(|only| only == nodes) {
            for kind in Kind::ALL {
                measure(args, runtime, nodes, kind).await;
            }
        }
    }
}

/// Measures one kind of lock and the mutex, one after the other in each round. Each ratio is
/// computed within one round.
async fn measure(args: &Args, runtime: &str, nodes: usize, kind: Kind) {
    let servers: Vec<Server> = (0..nodes).map(|_| Server::start(&[])).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let case = Case { nodes, tasks: kind.tasks(args), frozen: false, delay: Duration::ZERO };
    let span = Duration::from_secs_f64(args.seconds);
    let mutex: Arc<dyn Contender> = Arc::new(Ours::connect(&urls));
    let both = [mutex, Arc::new(Of::new(kind, &urls).await)];
    let once =
        async |i: usize, span| run(&both[i], ["mutex", "kind"][i], case, &servers, span).await;
    for i in 0..2 {
        once(i, Duration::from_millis(300)).await;
    }
    let mut rounds: Vec<[Run; 2]> = Vec::new();
    for round in 0..args.rounds {
        // The mutex and the kind of lock that is compared with it take turns to be measured first,
        // so that neither has an advantage.
        rounds.push(if round % 2 == 0 {
            let mutex = once(0, span).await;
            [mutex, once(1, span).await]
        } else {
            let of = once(1, span).await;
            [once(0, span).await, of]
        });
    }
    row(args, runtime, (nodes, case.tasks), kind, &rounds);
}

fn row(
    args: &Args,
    runtime: &str,
    (nodes, tasks): (usize, usize),
    kind: Kind,
    rounds: &[[Run; 2]],
) {
    let over =
        |of: fn(&Run) -> f64| Spread::of(rounds.iter().map(|[m, k]| of(k) / of(m)).collect());
    let median = |i: usize| Spread::of(rounds.iter().map(|r| r[i].p50()).collect()).median;
    let (p50, rate) = (over(Run::p50), over(|run| run.per_s));
    let (mutex_us, us) = (median(0), median(1));
    Row::default()
        .value("kind", "kind", kind.name())
        .value("runtime", "runtime", runtime)
        .value("nodes", "nodes", nodes)
        .value("tasks", "tasks", tasks)
        .figure("p50 µs", "p50_us", 2, us)
        .figure("mutex", "mutex_p50_us", 2, mutex_us)
        // This ratio is far below 0.01 for an inner acquire of a reentrant lock, so it has four
        // decimals.
        .spread("p50 over mutex", "p50_over_mutex", 4, p50)
        .spread("rate over mutex", "rate_over_mutex", 3, rate)
        .value("target", "target", kind.target())
        .print(args.json);
}
