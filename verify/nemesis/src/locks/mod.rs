//! Runs all kinds of locks under faults, on three real servers, with eight client processes. After
//! each phase, this process reads the clients' observations. It looks for holders that conflict and
//! for fencing tokens in a wrong order.
//!
//! ```text
//! nemesis locks --seconds 60    the last line is JSON, a member for each kind
//! ```

pub(crate) mod client;
mod faults;
pub(crate) mod judge;
pub(crate) mod record;
pub(crate) mod work;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use palisade_ops::{Deployment, init};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use crate::event::now;
use crate::judge::Violation;
use crate::names::names;
use crate::ordinary::server::Server;
use crate::runtime;
use crate::world::Failure;
use faults::{Clients, Faults, Struck};
use judge::Found;

const CLIENTS: u8 = 8;
/// Number of permits of the semaphore.
const PERMITS: u16 = 4;
/// Length of the leases of all clients.
const TTL: Duration = Duration::from_millis(800);
const CLOCK_ERROR: Duration = Duration::from_millis(100);
const NODE_DEADLINE: Duration = Duration::from_millis(150);
/// Time from the restart of a server until it grants again, with a reserve.
const QUARANTINE: Duration = Duration::from_millis(1_500);
/// Shortest duration of a phase, in which clients use some kinds of locks. Each kind of fault
/// happens once in it.
const PHASE: Duration = Duration::from_secs(8);
/// Time between two kills of clients.
const CRASH_EVERY: Duration = Duration::from_millis(700);
/// Time between two kills of clients in the part of the run (the phase) that tests the fair lock. A
/// killed client keeps its place in the queue for 3 s, and so keeps the other clients out.
const FAIR_CRASH_EVERY: Duration = Duration::from_secs(5);

names! {
    /// A kind of lock. The name of a kind is also the name of the lock that the clients use, or the
    /// part of this name before a colon.
    #[derive(clap::ValueEnum)]
    #[value(rename_all = "snake_case")]
    pub(crate) enum Kind {
        ReadWrite = "read_write",
        Semaphore = "semaphore",
        Reentrant = "reentrant",
        Multi = "multi",
        Degrade = "degrade",
        HandOver = "hand_over",
        /// A mutex whose callers are served in the order of their places in the nodes' queues. A
        /// node that loses its data loses these places, so servers are only frozen in the part of
        /// the run (the phase) that tests this kind.
        Fair = "fair",
    }
}

impl Kind {
    fn of(lock: &str) -> Option<Self> {
        let kind = lock.split(':').next();
        Self::ALL.into_iter().find(|of| Some(of.name()) == kind)
    }
}

/// Arguments of `nemesis locks`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Duration of the faults, in seconds. Each kind has its own phase if this is long enough.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of the clients' work. Random by default, and printed at the start.
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs all kinds of locks under faults. Returns true if no rule was broken and each kind of lock
/// did its work.
pub(crate) fn demo(args: &Args, out: &Path) -> Result<bool, Failure> {
    let seed = args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let length = Duration::from_secs(args.seconds);
    let phases = phases(length);
    println!("seed {seed}, {length:?}: three servers, {CLIENTS} clients, {} phases", phases.len());
    let mut servers: Vec<_> = (0..3).map(|_| Server::start(&[])).collect();
    let urls: Vec<_> = servers.iter().map(Server::url).collect();
    initialise(&urls)?;
    let (mut found, mut faults) = (BTreeMap::new(), Struck::default());
    for (n, kinds) in phases.iter().enumerate() {
        let dir = out.join(format!("locks-{n}"));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir)?;
        let phase = Phase { kinds, urls: &urls, dir: &dir, seed: seed ^ n as u64 };
        let (of_kinds, struck) = phase.run(&mut servers, n, length / phases.len() as u32)?;
        faults.add(struck);
        for (kind, (of, broken)) in of_kinds {
            for Violation { rule, text, .. } in broken {
                println!("BROKEN: {rule}: {text}");
            }
            let fine = if of.is_good() { "" } else { "  NOT GOOD" };
            println!("{:>10}: {}{fine}", kind.name(), serde_json::to_string(&of)?);
            found.insert(kind.name(), of);
        }
    }
    let good = found.values().all(Found::is_good);
    println!("{}", serde_json::json!({ "kinds": found, "faults": faults }));
    Ok(good)
}

/// Returns the kinds of locks that are used in each phase of the run. The fair lock is alone in the
/// first phase, because no server may have lost data before it. The other phases share the other
/// kinds.
fn phases(length: Duration) -> Vec<Vec<Kind>> {
    let others: Vec<_> = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Fair).collect();
    let most = (length.as_secs() / PHASE.as_secs()).saturating_sub(1);
    let n = most.clamp(1, others.len() as u64) as usize;
    let of = |at| others.iter().copied().skip(at).step_by(n).collect();
    std::iter::once(vec![Kind::Fair]).chain((0..n).map(of)).collect()
}

/// Initialises the servers, as `palisade init` does.
fn initialise(urls: &[String]) -> Result<(), Failure> {
    let deployment = urls.iter().fold(Deployment::new(), Deployment::node);
    let done = runtime::run(async { Ok(init(&deployment, "").await?) })?;
    if done.is_done() { Ok(()) } else { Err(done.to_string().into()) }
}

/// The findings about one kind of lock, and the broken rules.
type Judged = (Found, Vec<Violation>);

/// A phase of `nemesis locks`: clients use these kinds of locks while all faults happen.
struct Phase<'a> {
    kinds: &'a [Kind],
    urls: &'a [String],
    dir: &'a Path,
    seed: u64,
}

impl Phase<'_> {
    /// Runs this phase of `nemesis locks`, at least until each fault has happened once. The first
    /// fault hits the server `first`.
    fn run(
        &self,
        servers: &mut [Server],
        first: usize,
        length: Duration,
    ) -> Result<(Vec<(Kind, Judged)>, Struck), Failure> {
        let dice = &mut StdRng::seed_from_u64(self.seed);
        // The kernel kills the clients when the thread that started them ends. So this thread
        // starts them, because it lives until the end of the phase.
        let mut clients = Clients::start(self.kinds, self.urls, self.dir, self.seed)?;
        let (end, stop) = mpsc::channel();
        let all_happened = &AtomicBool::new(false);
        let mut faults = Faults { servers, stop, kinds: self.kinds, dir: self.dir, all_happened };
        let struck = std::thread::scope(|scope| {
            let faults = scope.spawn(move || faults.strike(first));
            let begun = Instant::now();
            let is_over = || {
                let all_happened = all_happened.load(Ordering::Relaxed) || faults.is_finished();
                all_happened && begun.elapsed() >= length
            };
            let is_fair = self.kinds.contains(&Kind::Fair);
            let crash_every = if is_fair { FAIR_CRASH_EVERY } else { CRASH_EVERY };
            let worked = clients_work(&mut clients, crash_every, is_over, dice);
            drop(end);
            let struck = faults.join().map_err(|_| "the servers could not be disturbed")?;
            worked.map(|clients_killed| Struck { clients_killed, ..struck })
        })?;
        clients.end();
        let (lines, end) = (record::read(self.dir)?, now());
        let found = self.kinds.iter().map(|kind| (*kind, judge::judge(*kind, &lines, end)));
        Ok((found.collect(), struck))
    }
}

/// Waits until `is_over` returns true, while the clients work. Kills one client after each time
/// `crash_every`, and starts it again. Returns the number of kills.
fn clients_work(
    clients: &mut Clients<'_>,
    crash_every: Duration,
    is_over: impl Fn() -> bool,
    dice: &mut StdRng,
) -> Result<u32, Failure> {
    let (mut killed, mut next) = (0, Instant::now() + crash_every);
    while !is_over() {
        std::thread::sleep(Duration::from_millis(100));
        clients.look()?;
        if Instant::now() >= next {
            clients.crash_one(dice)?;
            killed += 1;
            next = Instant::now() + crash_every;
        }
    }
    Ok(killed)
}
