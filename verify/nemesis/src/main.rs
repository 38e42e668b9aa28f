//! Injects faults into real processes. A separate check of the log then looks for broken rules.
//!
//! ```text
//! nemesis --seconds 600             three Sentinel groups, eight clients, faults from a seed
//! nemesis table                     effects of each fault on one group, as a table
//! nemesis ordinary                  cost of ordinary events for ordinary deployments
//! nemesis lineage --runs 20         returning masters, wrong servers, backups: what they break
//! nemesis shards                    faults of a cluster, one row each; or --seconds 300
//! nemesis cron --seconds 600        ticks of a cron job, with faults of its leader
//! nemesis locks --seconds 60        all kinds of locks, with faults of servers and clients
//! nemesis judge target/nemesis/events.jsonl    checks the log of an earlier run again
//! ```

mod client;
mod clients;
mod cron;
mod cut;
mod detour;
mod event;
mod faults;
mod groups;
mod handover;
mod judge;
mod kind;
mod ledger;
mod lineage;
mod locks;
mod machine;
mod names;
mod ordinary;
mod report;
mod runtime;
mod shards;
mod switch;
mod table;
mod timeline;
mod wire;
mod world;

/// The ledger of the example `orders` is used here, too: the outside system that records effects,
/// with the same checks of tokens.
#[path = "../../../examples/orders/ledger.rs"]
#[allow(dead_code, unreachable_pub)]
mod books;

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use clients::Clients;
use event::{Event, EventKind};
use faults::Faults;
use kind::Lane;
use ledger::{Ledger, Shared};
use world::{CANNOT, Cannot, Failure, World};

const CLIENTS: u8 = 8;
/// Maximum time from the last fault until each client gets its locks and other work done again.
/// Sentinel repeats a failed failover after 30 s.
const PATIENCE: Duration = Duration::from_secs(90);

/// Injects faults into real Sentinel groups and real client processes, and checks the log of
/// events, which a process outside of them writes.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Duration of the faults, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of faults and work. Random by default, and printed at the start.
    #[arg(long)]
    seed: Option<u64>,
    /// Only kinds of faults whose name contains this text, for example `clock`. Can be repeated.
    #[arg(long)]
    only: Vec<String>,
    /// Folder for the output: a picture of the run and the log of its events.
    #[arg(long, default_value = "target/nemesis")]
    out: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Checks the events of an earlier run again.
    Judge { events: PathBuf },
    /// Shows the effects of each fault of a Sentinel group on its users, one row for each fault.
    Table(table::Args),
    /// Measures the cost of ordinary events for ordinary deployments, on real servers.
    Ordinary(ordinary::Args),
    /// Lets clients meet data that are not those they used, and looks for two holders and second
    /// runs.
    Lineage(lineage::Args),
    /// Shows the effects of each fault of a cluster on its users, or injects faults for some time.
    Shards(shards::Args),
    /// Runs ticks of one second on three processes, and injects faults into the leading process.
    Cron(cron::Args),
    /// Runs one of the three processes of `nemesis cron`, which starts this command.
    #[command(hide = true)]
    CronClient(client::Args),
    /// Runs all kinds of locks on real servers, and injects faults into servers and clients.
    Locks(locks::Args),
    /// Runs a client of `nemesis locks`, which starts this command.
    #[command(hide = true)]
    LocksClient(locks::client::Args),
    /// Runs a client of the failover table. Started by `nemesis table`.
    #[command(hide = true)]
    TableClient(table::client::Args),
    /// Runs the process that observes the servers and Sentinels of the failover table. Started by
    /// `nemesis table`.
    #[command(hide = true)]
    TableWatch(table::watch::Args),
    /// Runs the failover table's process that writes without locks. Started by `nemesis table`.
    #[command(hide = true)]
    TableWriter(table::writer::Args),
    /// Hands a Sentinel group over to another master. Started by `nemesis` and by `nemesis table`.
    #[command(hide = true)]
    Handover(handover::Args),
    /// Runs a client of the library, under faults. Started by `nemesis`.
    #[command(hide = true)]
    Client(client::Args),
    /// Keeps a network open until the standard input ends. Started by `nemesis`.
    #[command(hide = true)]
    Hold,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let ended = match &args.verb {
        Some(Verb::Judge { events }) => judge_again(&args, events),
        Some(Verb::Table(table)) => possible()
            .map_err(|why| Cannot(why).into())
            .and_then(|()| table::table(table, &args.out)),
        Some(Verb::Ordinary(ordinary)) => ordinary::ordinary(ordinary),
        Some(Verb::Lineage(lineage)) => lineage::lineage(lineage),
        Some(Verb::Shards(shards)) => {
            shards::shards(shards, args.seed.unwrap_or_else(rand::random))
        }
        Some(Verb::Cron(cron)) => {
            possible().map_err(|why| Cannot(why).into()).and_then(|()| cron::demo(cron, &args.out))
        }
        Some(Verb::CronClient(client)) => cron::run_client(client).map(|()| true),
        Some(Verb::Locks(locks)) => locks::demo(locks, &args.out),
        Some(Verb::LocksClient(client)) => locks::client::run(client).map(|()| true),
        Some(Verb::TableClient(client)) => table::client::run(client).map(|()| true),
        Some(Verb::TableWatch(watch)) => table::watch::run(watch).map(|()| true),
        Some(Verb::TableWriter(writer)) => table::writer::run(writer).map(|()| true),
        Some(Verb::Handover(of)) => handover::run(of),
        Some(Verb::Client(client)) => client::run(client).map(|()| true),
        Some(Verb::Hold) => world::hold().map(|()| true).map_err(Failure::from),
        None => possible().map_err(|why| Cannot(why).into()).and_then(|()| torment(&args)),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("nemesis: {e}");
            if e.is::<Cannot>() { ExitCode::from(CANNOT) } else { ExitCode::FAILURE }
        }
    }
}

fn possible() -> Result<(), String> {
    let status = fs::read_to_string("/proc/self/status").map_err(|_| "needs Linux with /proc")?;
    if !status.lines().any(|l| l.starts_with("Uid:\t0\t")) {
        return Err("networks are made and cut by root only; run this as root".to_owned());
    }
    let has = |tool: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|p| p.join(tool).exists())
    };
    let tools = ["ip", "nft", "nsenter", "unshare", "setpriv", "redis-server", "redis-cli"];
    match tools.into_iter().find(|t| !has(t)) {
        Some(tool) => Err(format!("{tool} is missing; scripts/need redis netns installs it")),
        None => Ok(()),
    }
}

/// Performs a run with faults of real servers and clients. Returns true if no rule was broken.
fn torment(args: &Args) -> Result<bool, Failure> {
    let seed = args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    println!(
        "SEED={seed}, {} s; starting three Sentinel groups, {CLIENTS} clients ...",
        args.seconds
    );
    fs::create_dir_all(&args.out)?;
    let file = args.out.join("events.jsonl");
    let ledger = Ledger::new(&file, StdRng::seed_from_u64(seed))?;
    let ended = runtime::run(run(args, seed, Rc::clone(&ledger)));
    let mut events = ledger.borrow_mut().close()?;
    ended?;
    judge::sort(&mut events);
    tell(args, &events, seed, args.seconds)
}

async fn run(args: &Args, seed: u64, ledger: Shared) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let mut world = World::up(CLIENTS, &args.out)?;
    let dice = &mut StdRng::seed_from_u64(seed ^ 0xc10c);
    println!("{}", world.make_unequal(dice, client::CLOCK_ERROR).await?);
    let world = Rc::new(world);
    let listener = UnixListener::bind(world.socket())?;
    let serving = tokio::task::spawn_local(ledger::serve(Rc::clone(&ledger), listener));
    let clients = Clients::start(Rc::clone(&world), Rc::clone(&ledger), seed, CLIENTS)?;
    let clients = Rc::new(clients);
    let looking = {
        let clients = Rc::clone(&clients);
        tokio::task::spawn_local(async move {
            while clients.look().is_ok() {
                sleep(Duration::from_millis(200)).await;
            }
        })
    };
    let faults = Faults::new(world, Rc::clone(&clients), Rc::clone(&ledger));
    let (end, stop) = watch::channel(false);
    let lanes = async {
        let (heavy, light) =
            (Lane::heavy(seed).only(&args.only), Lane::light(seed).only(&args.only));
        tokio::try_join!(faults.run(heavy, stop.clone()), faults.run(light, stop)).map(|_| ())
    };
    let clock = async {
        let interrupted = signals.within(Duration::from_secs(args.seconds)).await;
        let _ = end.send(true);
        interrupted
    };
    let (struck, interrupted) = tokio::join!(lanes, clock);
    struck?;
    if interrupted {
        return Err("interrupted; everything is taken down".into());
    }
    faults.heal().await;
    ledger.borrow_mut().calm()?;
    println!("all is healed; until everybody is served ...");
    let calm = Instant::now();
    while !ledger.borrow().all_served(CLIENTS) && calm.elapsed() < PATIENCE {
        if signals.within(Duration::from_millis(100)).await {
            return Err("interrupted; everything is taken down".into());
        }
    }
    if ledger.borrow().all_served(CLIENTS) {
        ledger.borrow_mut().note(EventKind::Served)?;
    } else {
        println!("not served: {}", ledger.borrow().waiting_for(CLIENTS));
    }
    looking.abort();
    for n in 1..=CLIENTS {
        clients.kill(n)?;
    }
    // The last lines of the clients may still be in the sockets. Wait until no more events arrive.
    let mut before = usize::MAX;
    while ledger.borrow().events() != before {
        before = ledger.borrow().events();
        sleep(Duration::from_millis(100)).await;
    }
    serving.abort();
    Ok(())
}

/// Receives SIGINT and SIGTERM.
struct Signals {
    int: Signal,
    term: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let (int, term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { int, term })
    }

    /// Waits for `length`. Returns true if a signal arrives first.
    async fn within(&mut self, length: Duration) -> bool {
        tokio::select! {
            biased;
            _ = self.int.recv() => true,
            _ = self.term.recv() => true,
            () = sleep(length) => false,
        }
    }

    /// Waits until a signal arrives, without a limit.
    async fn any(&mut self) {
        tokio::select! {
            biased;
            _ = self.int.recv() => {}
            _ = self.term.recv() => {}
        }
    }
}

fn judge_again(args: &Args, file: &Path) -> Result<bool, Failure> {
    let lines = BufReader::new(File::open(file)?).lines();
    let mut events = Vec::new();
    for line in lines {
        events.push(serde_json::from_str::<Event>(&line?)?);
    }
    judge::sort(&mut events);
    tell(args, &events, args.seed.unwrap_or(0), args.seconds)
}

fn tell(args: &Args, events: &[Event], seed: u64, seconds: u64) -> Result<bool, Failure> {
    let found = judge::judge(events);
    fs::create_dir_all(&args.out)?;
    let picture = args.out.join("timeline.svg");
    fs::write(&picture, timeline::draw(events, &found))?;
    let report = report::report(events, &found, seed, seconds);
    let (table, line) = report.rsplit_once('\n').unwrap_or(("", &report));
    println!("{table}\npicture: {}", picture.display());
    println!("events:  {}", args.out.join("events.jsonl").display());
    println!("{line}");
    Ok(found.is_empty())
}
