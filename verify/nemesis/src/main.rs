//! Faults on real processes, with an outside judge.
//!
//! ```text
//! nemesis --seconds 600             three Sentinel groups, eight clients, faults from a seed
//! nemesis table                     what each fault does to one group, as a table
//! nemesis ordinary                  what ordinary events cost ordinary deployments
//! nemesis cron --seconds 600        ticks of a cron job while its leader is struck
//! nemesis judge target/nemesis/events.jsonl    the judgement again
//! ```

mod client;
mod clients;
mod cron;
mod cut;
mod event;
mod faults;
mod handover;
mod judge;
mod kind;
mod ledger;
mod machine;
mod ordinary;
mod report;
mod table;
mod timeline;
mod wire;
mod world;

/// The books of the demo: the same downstream, with the same care.
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
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use clients::Clients;
use event::{Event, What};
use faults::Faults;
use kind::Lane;
use ledger::{Ledger, Shared};
use world::{CANNOT, Cannot, Failure, World};

const CLIENTS: u8 = 8;
/// How long it may take until everybody is served again: a failover that got stuck is tried again
/// after 30 s.
const PATIENCE: Duration = Duration::from_secs(90);

/// Faults on real Sentinel groups and real client processes; a ledger outside of them judges.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// How long faults come.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Decides faults and work. Default: random; it is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Only kinds of faults whose name contains this, for example `clock`; may be given again.
    #[arg(long)]
    only: Vec<String>,
    /// Where the picture and the events go.
    #[arg(long, default_value = "target/nemesis")]
    out: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Judges the events of a run again.
    Judge { events: PathBuf },
    /// What each fault of a Sentinel group does to those who use it, one row a fault.
    Table(table::Args),
    /// What ordinary events cost ordinary deployments, on real servers.
    Ordinary(ordinary::Args),
    /// Ticks of one second on three processes, while the one that leads is struck.
    Cron(cron::Args),
    /// A process of `cron`; started by it.
    #[command(hide = true)]
    CronClient(client::Args),
    /// A client of the table; started by it.
    #[command(hide = true)]
    TableClient(table::client::Args),
    /// The table's watcher; started by it.
    #[command(hide = true)]
    TableWatch(table::watch::Args),
    /// The table's plain writer; started by it.
    #[command(hide = true)]
    TableWriter(table::writer::Args),
    /// A planned handover of a group; started by nemesis and table.
    #[command(hide = true)]
    Handover(handover::Args),
    /// A client; started by the nemesis.
    #[command(hide = true)]
    Client(client::Args),
    /// Keeps a network; started by the nemesis.
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
        Some(Verb::Cron(cron)) => {
            possible().map_err(|why| Cannot(why).into()).and_then(|()| cron::demo(cron, &args.out))
        }
        Some(Verb::CronClient(client)) => cron::run_client(client).map(|()| true),
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

/// Whether networks can be made and cut here.
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

/// A run: true if no promise was broken.
fn torment(args: &Args) -> Result<bool, Failure> {
    let seed = args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    println!(
        "SEED={seed}, {} s; starting three Sentinel groups, {CLIENTS} clients ...",
        args.seconds
    );
    fs::create_dir_all(&args.out)?;
    let file = args.out.join("events.jsonl");
    let ledger = Ledger::new(&file, StdRng::seed_from_u64(seed))?;
    // One thread: clients are killed when the thread that started them ends.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(LocalSet::new().run_until(run(args, seed, Rc::clone(&ledger))));
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
        ledger.borrow_mut().note(What::Served)?;
    } else {
        println!("not served: {}", ledger.borrow().waiting_for(CLIENTS));
    }
    looking.abort();
    for n in 1..=CLIENTS {
        clients.kill(n)?;
    }
    // What they wrote last is still in the sockets.
    let mut before = usize::MAX;
    while ledger.borrow().events() != before {
        before = ledger.borrow().events();
        sleep(Duration::from_millis(100)).await;
    }
    serving.abort();
    Ok(())
}

/// What asks this process to end; received from the first to the last moment.
struct Signals {
    int: Signal,
    term: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let (int, term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { int, term })
    }

    /// Waits; true if somebody wants this to end.
    async fn within(&mut self, length: Duration) -> bool {
        tokio::select! {
            biased;
            _ = self.int.recv() => true,
            _ = self.term.recv() => true,
            () = sleep(length) => false,
        }
    }

    /// Waits until somebody wants this to end.
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
