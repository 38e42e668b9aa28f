//! A cron job under faults. Three processes run the same job on real Sentinel groups, with one tick
//! per second. Every 20 s the leading process is killed, frozen, cut off or made to resign. A
//! ledger outside of these processes records each effect of a tick.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use palisade::Failed;
use palisade_cron::{Cron, Job, Overlap, Tick};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use crate::Signals;
use crate::client;
use crate::clients::Clients;
use crate::cut::{Cut, cut, mend};
use crate::event::{Event, EventKind, TaskId, now};
use crate::ledger::{self, Ledger as Book, Shared};
use crate::runtime;
use crate::wire::{Ledger, LedgerReply, LedgerRequest};
use crate::world::{Failure, Place, World};

const PROCESSES: u8 = 3;
/// Interval between the beginnings of two faults. Each fault lasts for [`LASTS`].
const EVERY: Duration = Duration::from_secs(20);
const LASTS: Duration = Duration::from_secs(6);
/// Maximum delay with which a tick still runs.
const LATE: Duration = Duration::from_secs(60);
const CALM: Duration = Duration::from_secs(15);
const LEAD: &str = "cron";

/// Arguments of `nemesis cron`.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Duration of the faults, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

pub(crate) fn run_client(args: &client::Args) -> Result<(), Failure> {
    runtime::run(work(args))
}

async fn work(args: &client::Args) -> Result<(), Failure> {
    let redlock = client::redlock(&args.group)?;
    let cron = Cron::new(&redlock);
    let who = TaskId { client: args.id, life: args.life, task: 0 };
    let mut ledger = Ledger::connect(&args.ledger, who).await?;
    let mut resign = signal(SignalKind::user_defined1())?;
    let job = Job::new("job", "* * * * * *").overlap(Overlap::Allow).late(LATE);
    let run = cron.run(job, |tick: Tick| effect(args, who, tick));
    let report = async {
        loop {
            // Read the time before the term. So the process held this term at the time `at` or
            // later.
            let at = now();
            if let Some(term) = cron.term() {
                let valid = EventKind::Valid { name: LEAD.into(), token: term.get(), until: at };
                ledger.report_at(at, valid).await?;
            }
            tokio::select! {
                biased;
                _ = resign.recv() => cron.step_down(),
                () = sleep(Duration::from_millis(50)) => {}
            }
        }
    };
    tokio::select! {
        biased;
        ended = run => Ok(ended?),
        ended = report => ended,
    }
}

async fn effect(args: &client::Args, who: TaskId, tick: Tick) -> Result<(), Failed> {
    let mut ledger = Ledger::connect(&args.ledger, who).await?;
    let key: Arc<str> = tick.unix_seconds().to_string().into();
    let token = tick.fencing_token().get();
    let reply = ledger.request(LedgerRequest::Probe { key: Arc::clone(&key), token }).await?;
    if matches!(reply, LedgerReply::Value(Some(_))) {
        return Ok(());
    }
    // With this pause, some faults hit a tick in the middle of its work.
    sleep(Duration::from_millis(100)).await;
    let value = format!("{}.{}.{}", who.client, who.life, tick.attempt()).into();
    if ledger.accepts(LedgerRequest::Book { key, token, value }).await? {
        Ok(())
    } else {
        Err(Failed::retry("the ledger has seen a larger token"))
    }
}

/// Runs `nemesis cron`. Returns true if each tick took effect once.
pub(crate) fn demo(args: &Args, out: &Path) -> Result<bool, Failure> {
    std::fs::create_dir_all(out)?;
    let ledger = Book::new(&out.join("cron.jsonl"), StdRng::seed_from_u64(1))?;
    println!("{} s; starting three Sentinel groups, {PROCESSES} processes ...", args.seconds);
    let length = Duration::from_secs(args.seconds);
    let ended = runtime::run(run(length, out, Rc::clone(&ledger)));
    let end = ended?;
    let events = ledger.borrow_mut().close()?;
    Ok(judge(&events, end))
}

/// Runs the processes and the faults. Returns the last tick of the job that must have taken effect.
async fn run(length: Duration, out: &Path, ledger: Shared) -> Result<u64, Failure> {
    let mut signals = Signals::new()?;
    let world = Rc::new(World::up(PROCESSES, out)?);
    let listener = UnixListener::bind(world.socket())?;
    let serving = tokio::task::spawn_local(ledger::serve(Rc::clone(&ledger), listener));
    let clients =
        Clients::start_as("cron-client", Rc::clone(&world), Rc::clone(&ledger), 1, PROCESSES)?;
    let begun = Instant::now();
    // The first tick can run only after the first quarantine of the servers. So the faults begin
    // after the first process leads.
    while leader(&ledger).is_none() && begun.elapsed() < LATE {
        sleep(Duration::from_millis(100)).await;
    }
    let begun = Instant::now();
    for n in 0_u32.. {
        if begun.elapsed() + EVERY > length {
            break;
        }
        if signals.within(EVERY.saturating_sub(LASTS)).await {
            return Err("interrupted; everything is taken down".into());
        }
        let Some(struck) = leader(&ledger) else {
            println!("{:7.1} s  no leader", begun.elapsed().as_secs_f64());
            continue;
        };
        let what = strike(n, struck, &world, &clients).await?;
        println!("{:7.1} s  process {struck} {what}", begun.elapsed().as_secs_f64());
    }
    sleep(length.saturating_sub(begun.elapsed())).await;
    let end = wall_seconds();
    sleep(CALM).await;
    for n in 1..=PROCESSES {
        clients.kill(n)?;
    }
    sleep(Duration::from_millis(200)).await;
    serving.abort();
    Ok(end)
}

/// Injects one fault into the process `p`, waits, and ends the fault.
async fn strike(n: u32, p: u8, world: &World, clients: &Clients) -> Result<&'static str, Failure> {
    Ok(match n % 4 {
        0 => {
            clients.kill(p)?;
            sleep(LASTS).await;
            clients.spawn(p)?;
            "is killed"
        }
        1 => {
            clients.freeze(p);
            sleep(LASTS).await;
            clients.resume(p)?;
            "is frozen"
        }
        2 => {
            let boxes: Vec<_> =
                (1..=3).flat_map(|g| (1..=3).map(move |b| Place::Box(g, b))).collect();
            let cuts = Cut::both_ways(&[Place::Client(p)], &boxes);
            cut(world, n, &cuts).await?;
            sleep(LASTS).await;
            mend(world, n, &cuts).await?;
            "is cut off"
        }
        _ => {
            clients.signal(p, "USR1");
            sleep(LASTS).await;
            "resigns"
        }
    })
}

/// Returns the client whose report of leadership is the newest. Returns `None` if this report is
/// older than one second.
fn leader(ledger: &Shared) -> Option<u8> {
    let ledger = ledger.borrow();
    let last = ledger.so_far().iter().rev().find(|e| matches!(e.kind, EventKind::Valid { .. }))?;
    (now() - last.at < 1_000_000_000).then_some(last.who.client)
}

fn wall_seconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// Checks ticks and terms, and prints the result. Returns true if no rule was broken.
fn judge(events: &[Event], end: u64) -> bool {
    let mut booked: BTreeMap<u64, u32> = BTreeMap::new();
    // For each term: the first and the last time at which a process reported this term, and the
    // processes that reported it.
    let mut terms: BTreeMap<u64, (u64, u64, BTreeSet<TaskId>)> = BTreeMap::new();
    for e in events {
        match &e.kind {
            EventKind::Booked { key, accepted: true, .. } => {
                *booked.entry(key.parse().unwrap_or(0)).or_default() += 1;
            }
            EventKind::Valid { token, .. } => {
                let span = terms.entry(*token).or_insert((e.at, e.at, BTreeSet::new()));
                (span.0, span.1) = (span.0.min(e.at), span.1.max(e.at));
                span.2.insert(e.who);
            }
            _ => {}
        }
    }
    let first = booked.keys().next().copied().unwrap_or(end);
    // A term must not be reported after the first report of the next term.
    let spans: Vec<_> = terms.values().collect();
    let overlaps = spans.windows(2).filter(|w| w[0].1 >= w[1].0).count();
    let shared = spans.iter().filter(|span| span.2.len() > 1).count();
    let ticks = end.saturating_sub(first) + 1;
    let completed = (first..=end).filter(|tick| booked.contains_key(tick)).count() as u64;
    let doubled = booked.values().filter(|n| **n > 1).count();
    let missed: Vec<_> = (first..=end).filter(|tick| !booked.contains_key(tick)).collect();
    if !missed.is_empty() {
        println!("missed: {missed:?}");
    }
    println!(
        "{{\"ticks\":{ticks},\"completed\":{completed},\"doubled\":{doubled},\"missed\":{},\
         \"leaders\":{},\"two_leaders_at_once\":{}}}",
        missed.len(),
        terms.len(),
        overlaps + shared
    );
    !booked.is_empty() && doubled == 0 && missed.is_empty() && overlaps + shared == 0
}
