//! Faults of a real cluster, each on a cluster of its own: masters that are killed, frozen and
//! replaced by commands, and a slot that moves. With `--seconds`, one cluster has them all, one
//! after the other as a seed says. Names are locked and keys are run meanwhile. Outside of the
//! library, a table finds a name that is held twice, and a count finds a key that is run twice.
//!
//! ```text
//! nemesis shards                      one row for each fault
//! nemesis shards --only TAKEOVER      some of them
//! nemesis shards --seconds 300        one cluster, and faults for five minutes
//! ```

/// The tasks that lock names and the table are those of the example `orders`.
#[path = "../../../examples/orders/holders.rs"]
#[allow(unreachable_pub)]
mod holders;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade::node::ClusterNode;
use palisade::{Failed, Redlock, TryAcquire};
use palisade_ops::{Deployment, init};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{Instant, sleep};

use self::holders::Holders;
use crate::Signals;
use crate::names::names;
use crate::ordinary::cluster::Cluster;
use crate::ordinary::server::Server;
use crate::world::Failure;

const NODE_TIMEOUT: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(3);
/// A quarantine lasts for a lease and L.
const PATIENCE: Duration = Duration::from_secs(60);
/// The master is replaced meanwhile.
const FREEZE: Duration = Duration::from_secs(5);
const CLIENTS: usize = 3;
/// Number of names in each shard.
const NAMES: usize = 3;

names! {
    /// A fault of the first shard, or of the first two.
    enum Fault {
        Kill = "master killed",
        Freeze = "master frozen, and thawed",
        Failover = "FAILOVER",
        Force = "FAILOVER FORCE",
        Takeover = "TAKEOVER of one shard",
        TakeoverTwo = "TAKEOVER of two shards",
        TakeoverDead = "TAKEOVER of two dead masters",
        Moved = "slot moved",
    }
}

/// Options of `nemesis shards`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print one line of JSON for each row.
    #[arg(long)]
    json: bool,
    /// Only rows whose name contains this text. Can be repeated.
    #[arg(long)]
    only: Vec<String>,
    /// Let one cluster have faults for so long, instead of one fault for each cluster.
    #[arg(long)]
    seconds: Option<u64>,
    /// Let each client use a cluster of its own, so that nobody excludes anybody: the judge must
    /// find it.
    #[arg(long, hide = true)]
    defeat: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    fault: String,
    held_twice: u64,
    run_twice: usize,
    holds: u64,
    /// Holds that ended before their holder gave them up.
    lost: u64,
    /// Longest time without a grant in the shard that had the fault, and in another one.
    seconds_without_grants: f64,
    others_without_grants: f64,
    /// True if running programs are granted locks in the shard again.
    is_served: bool,
    /// True if a program that starts after the fault is.
    serves_new: bool,
    /// What running programs were told last, while they were refused.
    refusal: Option<String>,
}

impl Row {
    fn is_good(&self, fault: Option<Fault>) -> bool {
        // Programs that run cannot tell the successors of two dead masters from the other side of
        // a cut.
        let is_dead = fault == Some(Fault::TakeoverDead);
        let served = self.is_served != is_dead;
        self.held_twice == 0 && self.run_twice == 0 && self.holds > 0 && served && self.serves_new
    }

    fn line(&self) -> String {
        let Self { fault, held_twice, run_twice, holds, lost, .. } = self;
        let (own, others) = (self.seconds_without_grants, self.others_without_grants);
        let refusal = self.refusal.as_ref().map_or(String::new(), |why| format!("\n    {why}"));
        format!(
            "{fault:30} held twice {held_twice}, run twice {run_twice}, holds {holds}, lost \
             {lost}; without grants {own:.1} s, elsewhere {others:.1} s{refusal}"
        )
    }
}

pub(crate) fn shards(args: &Args, seed: u64) -> Result<bool, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        tokio::select! {
            biased;
            () = signals.any() => Err("interrupted; everything is taken down".into()),
            good = rows(args, seed) => good,
        }
    })
}

async fn rows(args: &Args, seed: u64) -> Result<bool, Failure> {
    let tell = |row: &Row, good| -> Result<(), Failure> {
        if args.json {
            println!("{}", serde_json::to_string(row)?);
        } else {
            println!("{}{}", row.line(), if good { "" } else { "  NOT GOOD" });
        }
        Ok(())
    };
    let named = |f: &Fault| {
        args.only.is_empty() || args.only.iter().any(|only| f.name().contains(only.as_str()))
    };
    let faults: Vec<Fault> = Fault::ALL.into_iter().filter(named).collect();
    if faults.is_empty() {
        return Err(
            format!("no such row; there are: {}", Fault::ALL.map(Fault::name).join(", ")).into()
        );
    }
    if let Some(seconds) = args.seconds {
        println!("seed {seed}");
        let row = long(seconds, seed, args.defeat).await?;
        let good = row.is_good(None);
        tell(&row, good)?;
        return Ok(good);
    }
    let mut good = true;
    for fault in faults {
        let mut shards = Shards::up()?;
        let load = Load::start(&shards, args.defeat).await?;
        let begun = Instant::now();
        shards.strike(fault).await?;
        let patience = if fault == Fault::TakeoverDead { PATIENCE / 2 } else { PATIENCE };
        load.until_served(begun, patience).await;
        let served = load.served(begun);
        shards.mend();
        let row = load.end(fault.name(), (begun, served), &shards).await?;
        good &= row.is_good(Some(fault));
        tell(&row, row.is_good(Some(fault)))?;
    }
    Ok(good)
}

/// Faults of one cluster, one after the other, each mended before the next.
async fn long(seconds: u64, seed: u64, defeat: bool) -> Result<Row, Failure> {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut shards = Shards::up()?;
    let load = Load::start(&shards, defeat).await?;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(seconds) {
        let fault = Fault::ALL[dice.random_range(0..Fault::ALL.len())];
        if fault == Fault::TakeoverDead {
            continue;
        }
        println!("{:5.1} s  {}", begun.elapsed().as_secs_f64(), fault.name());
        let struck = Instant::now();
        shards.strike(fault).await?;
        sleep(Duration::from_millis(dice.random_range(0..4_000))).await;
        shards.mend();
        load.until_served(struck, PATIENCE).await;
        sleep(Duration::from_millis(dice.random_range(0..2_000))).await;
    }
    let served = load.served(begun);
    load.end("all, one after the other", (begun, served), &shards).await
}

/// A cluster with three masters, each with a replica. The slot of its first tag may move.
struct Shards {
    cluster: Cluster,
    /// The present master of each shard, and of the first tag.
    masters: [usize; 3],
    home: usize,
    dead: Vec<usize>,
    frozen: Vec<usize>,
    /// Hash tags in each shard. The first one of the first shard is only for the slot that moves.
    tags: [Vec<String>; 3],
}

impl Shards {
    fn up() -> Result<Self, Failure> {
        block_in_place(|| {
            let cluster = Cluster::start(3, 1, NODE_TIMEOUT);
            let mut tags: [Vec<String>; 3] = Default::default();
            for tag in (0..).map(|n| format!("{{{n}}}")) {
                tags[cluster.owner(cluster.slot(&tag))].push(tag);
                if tags.iter().all(|tags| tags.len() > NAMES) {
                    break;
                }
            }
            let (dead, frozen) = (Vec::new(), Vec::new());
            Ok(Self { cluster, masters: [0, 1, 2], home: 0, dead, frozen, tags })
        })
    }

    async fn init(&self) -> Result<(), Failure> {
        let url = format!("cluster://{}", self.cluster.addresses().join(","));
        let made = init(&Deployment::new().node(url).timeout(PATIENCE), "").await?;
        if made.is_done() { Ok(()) } else { Err(made.to_string().into()) }
    }

    fn redlock(&self) -> Result<Redlock, Failure> {
        let node = ClusterNode::new(self.cluster.servers.iter().map(Server::addr))?;
        let redlock = Redlock::builder().ttl(TTL).max_ttl(TTL).node(node).build()?;
        Ok(redlock)
    }

    fn replica(&self, shard: usize) -> usize {
        (self.masters[shard] + 3) % 6
    }

    fn promote(&mut self, shard: usize, how: &[&str]) -> Result<(), Failure> {
        let replica = self.replica(shard);
        let command = [&["cluster", "failover"], how].concat();
        let answer = self.cluster.servers[replica].cli(&command);
        if answer != "OK" {
            return Err(format!("CLUSTER FAILOVER {how:?}: {answer}").into());
        }
        until_role(&self.cluster, replica, "master")?;
        self.masters[shard] = replica;
        Ok(())
    }

    async fn strike(&mut self, fault: Fault) -> Result<(), Failure> {
        block_in_place(|| self.strike_now(fault))?;
        if fault == Fault::Freeze {
            sleep(FREEZE).await;
        }
        Ok(())
    }

    fn strike_now(&mut self, fault: Fault) -> Result<(), Failure> {
        let (old, new) = (self.masters[0], self.replica(0));
        match fault {
            Fault::Kill => {
                self.cluster.servers[old].kill();
                self.dead.push(old);
                until_role(&self.cluster, new, "master")?;
                self.masters[0] = new;
            }
            Fault::Freeze => {
                self.cluster.servers[old].freeze();
                self.frozen.push(old);
                until_role(&self.cluster, new, "master")?;
                self.masters[0] = new;
            }
            Fault::Failover => self.promote(0, &[])?,
            Fault::Force => {
                self.cluster.servers[old].freeze();
                self.frozen.push(old);
                self.promote(0, &["force"])?;
            }
            Fault::Takeover => self.promote(0, &["takeover"])?,
            Fault::TakeoverTwo => {
                self.promote(0, &["takeover"])?;
                self.promote(1, &["takeover"])?;
            }
            Fault::TakeoverDead => {
                for shard in [0, 1] {
                    let master = self.masters[shard];
                    self.cluster.servers[master].kill();
                    self.dead.push(master);
                }
                self.promote(0, &["takeover"])?;
                self.promote(1, &["takeover"])?;
            }
            Fault::Moved => {
                let slot = self.cluster.slot(&self.tags[0][0]);
                let to = (self.home + 1) % 3;
                self.cluster.move_slot(slot, self.masters[self.home], self.masters[to]);
                self.home = to;
            }
        }
        Ok(())
    }

    /// Brings back who is dead or frozen, as a replica.
    fn mend(&mut self) {
        block_in_place(|| {
            for at in self.frozen.drain(..) {
                self.cluster.servers[at].resume();
            }
            for at in self.dead.drain(..) {
                self.cluster.servers[at].again();
            }
            self.cluster.until_ok();
            self.cluster.until("all replicas follow", |server| {
                let info = server.cli(&["info", "replication"]);
                info.contains("role:master") || info.contains("master_link_status:up")
            });
        });
    }
}

fn until_role(cluster: &Cluster, at: usize, role: &str) -> Result<(), Failure> {
    let end = std::time::Instant::now() + PATIENCE;
    while !cluster.servers[at].cli(&["role"]).starts_with(role) {
        if std::time::Instant::now() > end {
            return Err(format!("{} is no {role}", cluster.servers[at].addr()).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// What is seen of the shard with the fault, and of another one.
#[derive(Debug, Default)]
struct Seen {
    grants: Vec<Instant>,
    refusal: Option<String>,
}

#[derive(Debug, Default)]
struct Watch {
    shards: [Mutex<Seen>; 2],
    /// How often the handler of each key was started.
    runs: Mutex<BTreeMap<String, u32>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clients that lock names and run keys.
struct Load {
    holders: Holders,
    watch: Arc<Watch>,
    tasks: JoinSet<()>,
    /// Clusters of clients that exclude nobody.
    _others: Vec<Shards>,
}

impl Load {
    async fn start(shards: &Shards, defeat: bool) -> Result<Self, Failure> {
        shards.init().await?;
        let (mut clients, mut others) = (Vec::new(), Vec::new());
        for n in 0..CLIENTS {
            if defeat && n > 0 {
                let other = Shards::up()?;
                other.init().await?;
                others.push(other);
            }
            clients.push(others.last().unwrap_or(shards).redlock()?);
        }
        let names: Vec<String> = (0..3)
            .flat_map(|shard| shards.tags[shard].iter().map(|tag| format!("{tag}held")))
            .collect();
        let (watch, mut tasks) = (Arc::new(Watch::default()), JoinSet::new());
        let told = |e: palisade::idempotency::RunError| drop(e);
        for (n, tag) in [&shards.tags[0][0], &shards.tags[2][0]].into_iter().enumerate() {
            tasks.spawn(watches(clients[0].clone(), tag.clone(), Arc::clone(&watch), n));
        }
        for tag in shards.tags.iter().map(|tags| tags[0].clone()) {
            for client in &clients[..2] {
                let keys = client.idempotency("shards").at_most_once().build()?;
                let (watch, tag) = (Arc::clone(&watch), tag.clone());
                tasks.spawn(async move {
                    for n in 0_u64.. {
                        let key = format!("{tag}{n}");
                        let handler = async |_| {
                            *lock(&watch.runs).entry(key.clone()).or_default() += 1;
                            Ok::<_, Failed>(n)
                        };
                        // Twice, as it would be delivered again.
                        for _ in 0..2 {
                            let run = keys.key(key.as_str()).run(handler).await;
                            let _ = run.map_err(told);
                        }
                        sleep(Duration::from_millis(50)).await;
                    }
                });
            }
        }
        let holders = Holders::start(&clients, &names).map_err(|e| e.to_string())?;
        let load = Self { holders, watch, tasks, _others: others };
        load.until_served(Instant::now(), PATIENCE).await;
        Ok(load)
    }

    /// Waits until the shard grants again, three seconds after this instant or later.
    async fn until_served(&self, since: Instant, patience: Duration) {
        let end = Instant::now() + patience;
        while Instant::now() < end && !self.is_served(since) {
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Whether running programs are served, and what they were told last.
    fn served(&self, since: Instant) -> (bool, Option<String>) {
        (self.is_served(since), lock(&self.watch.shards[0]).refusal.clone())
    }

    fn is_served(&self, since: Instant) -> bool {
        let (seen, now) = (lock(&self.watch.shards[0]), Instant::now());
        let before = now.checked_sub(Duration::from_secs(3)).filter(|before| *before >= since);
        let Some(before) = before else { return false };
        let gaps = seen.grants.iter().rev().take_while(|at| **at >= before).copied();
        let all: Vec<Instant> = std::iter::once(now).chain(gaps).collect();
        all.len() > 3 && all.windows(2).all(|two| two[0] - two[1] < Duration::from_secs(1))
    }

    async fn end(
        mut self,
        fault: &str,
        (begun, (is_served, refusal)): (Instant, (bool, Option<String>)),
        shards: &Shards,
    ) -> Result<Row, Failure> {
        let new = shards.redlock()?;
        let name = format!("{}new", shards.tags[0][0]);
        let mutex = new.mutex(name).acquire_timeout(PATIENCE).build()?;
        let serves_new = mutex.acquire().await.is_ok();
        self.tasks.shutdown().await;
        let [holds, lost, held_twice] = self.holders.end().await.map_err(|e| e.to_string())?;
        let gap = |n: usize| {
            let seen = lock(&self.watch.shards[n]);
            let mut all = seen.grants.clone();
            all.push(Instant::now());
            let first = all.partition_point(|at| *at < begun).saturating_sub(1);
            let gaps = all[first..].windows(2).map(|two| two[1] - two[0]);
            gaps.max().unwrap_or_default().as_secs_f64()
        };
        Ok(Row {
            fault: fault.to_owned(),
            held_twice,
            run_twice: lock(&self.watch.runs).values().filter(|runs| **runs > 1).count(),
            holds,
            lost,
            seconds_without_grants: gap(0),
            others_without_grants: gap(1),
            is_served,
            serves_new,
            refusal,
        })
    }
}

/// Locks new names in a slot, one after the other.
async fn watches(client: Redlock, tag: String, watch: Arc<Watch>, shard: usize) {
    for n in 0_u64.. {
        let mutex = client.mutex(format!("{tag}fresh-{n}")).auto_renew(false).build();
        let answer = mutex.expect("settings fit together").try_acquire().await;
        let mut guard = None;
        {
            let mut seen = lock(&watch.shards[shard]);
            match answer {
                Ok(TryAcquire::Acquired(got)) => {
                    seen.grants.push(Instant::now());
                    guard = Some(got);
                }
                Ok(TryAcquire::Taken(_)) => {}
                Err(e) => seen.refusal = Some(e.to_string()),
            }
        }
        if let Some(guard) = guard {
            let _ = guard.release().await;
        }
        sleep(Duration::from_millis(20)).await;
    }
}
