//! Delivers 18,532 real invoices as an order stream, many of them repeatedly, to consumers that
//! crash and stall. At the end the ledger checks that every order took effect exactly once.
//!
//! ```text
//! cargo run --release -p examples --bin orders                      nodes in memory
//! cargo run --release -p examples --bin orders -- --node redis://…   real servers
//! cargo run --release -p examples --bin orders -- --demo-sentinel   Sentinel groups that the
//!                                                                 example starts and breaks
//! cargo run --release -p examples --bin orders -- --demo-cluster    a cluster, likewise
//! ```

// No other crate can use an item of a program, so the lint against unreachable items is off.
#![allow(unreachable_pub)]

#[path = "../common/mod.rs"]
mod common;
mod consumer;
mod faults;
mod holders;
mod invoice;
mod ledger;
mod report;
mod shards;
mod stream;
mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use palisade::{MemoryNode, Redlock, RedlockBuilder};
use tokio::sync::oneshot;

use consumer::Shift;
use faults::{Endured, Groups};
use report::{ClusterReport, Pulse, Report, json};
use shards::Shards;
use stream::{Level, Stream};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Longest duration of the whole run.
const PATIENCE: Duration = Duration::from_secs(900);

/// Delivers 18,532 real invoices at least once, and books each exactly once.
#[derive(Debug, Parser)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
struct Args {
    /// Seed that decides deliveries, crashes, stalls and faults. Default: random and printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of invoices, taken from the beginning of the file. Default: all.
    #[arg(long)]
    limit: Option<usize>,
    /// Number of concurrent consumers.
    #[arg(long, default_value_t = 8)]
    consumers: usize,
    /// Print a line of JSON as the last line.
    #[arg(long)]
    json: bool,
    /// Use three real Sentinel groups on this machine, with a kill, a freeze and a failover.
    #[arg(long)]
    demo_sentinel: bool,
    /// Use a real cluster on this machine, three masters with a replica each: kill, promote, freeze
    /// and move slots.
    #[arg(long, conflicts_with = "demo_sentinel")]
    demo_cluster: bool,
    /// Let consumers repeat unfinished attempts without asking the ledger, so that some orders are
    /// booked twice and the check at the end fails.
    #[arg(long)]
    blind: bool,
    #[command(flatten)]
    nodes: common::Connect,
}

/// The nodes of the run. Each consumer gets its own client (`Redlock` handle) of the same nodes.
enum Place {
    Memory(Vec<MemoryNode>),
    Servers(common::Connect),
    Groups(Groups),
    Cluster(Shards),
}

impl Place {
    async fn find(args: &Args) -> Result<Self, Failure> {
        if args.demo_sentinel {
            println!("starting three Sentinel groups ...");
            return Ok(Self::Groups(Groups::up().await?));
        }
        if args.demo_cluster {
            println!("starting a cluster ...");
            return Ok(Self::Cluster(Shards::up().await?));
        }
        if args.nodes.is_embedded() {
            return Ok(Self::Memory((0..3).map(|_| MemoryNode::new()).collect()));
        }
        Ok(Self::Servers(args.nodes.clone()))
    }

    fn builder(&self) -> Result<RedlockBuilder, Failure> {
        match self {
            Self::Memory(nodes) => {
                Ok(nodes.iter().fold(Redlock::builder(), |b, node| b.node(node.clone())))
            }
            Self::Servers(nodes) => nodes.builder(self.lease()),
            Self::Groups(groups) => groups.builder(),
            Self::Cluster(shards) => shards.builder(),
        }
    }

    fn lease(&self) -> Duration {
        match self {
            Self::Memory(_) => Duration::from_millis(400),
            Self::Servers(nodes) => nodes.ttl(Duration::from_millis(600)),
            Self::Groups(_) => Duration::from_secs(2),
            Self::Cluster(_) => Duration::from_secs(1),
        }
    }

    /// Returns the time over which deliveries are spread, so that some take place during all
    /// faults.
    fn span(&self) -> Option<Duration> {
        match self {
            Self::Memory(_) | Self::Servers(_) => None,
            Self::Groups(_) => Some(Duration::from_secs(60)),
            Self::Cluster(_) => Some(Duration::from_secs(45)),
        }
    }
}

/// Sets the times and the key prefix of a client (`Redlock` handle). `max_ttl` is short, because
/// after a failover a Sentinel group or a slot grants nothing for at least `max_ttl`.
fn tune(builder: RedlockBuilder, lease: Duration, run: u32) -> RedlockBuilder {
    builder
        .ttl(lease)
        .max_ttl(lease.max(Duration::from_secs(2)))
        .node_deadline(lease / 4)
        .prefix(format!("orders-demo-{run:08x}:"))
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let ended = tokio::select! {
        biased;
        ended = demo(&args) => ended,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
        () = tokio::time::sleep(PATIENCE) => Err(format!("not over after {PATIENCE:?}").into()),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("orders: {e}");
            ExitCode::FAILURE
        }
    }
}

async fn demo(args: &Args) -> Result<bool, Failure> {
    let seed = args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let run: u32 = rand::random();
    let invoices =
        invoice::load(concat!(env!("CARGO_MANIFEST_DIR"), "/data/invoices.csv"), args.limit)?;
    println!("{} invoices, {} consumers, --seed {seed}", invoices.len(), args.consumers);
    let mut place = Place::find(args).await?;
    let lease = place.lease();
    if let Place::Servers(_) = &place {
        common::ready(&tune(place.builder()?, lease, run).build()?).await?;
    }
    let shift =
        |level| Arc::new(Shift::new(Stream::new(level, &invoices, seed), lease, args.blind));
    let shifts = [shift(Level::Request), shift(Level::Business)];
    let (screen, bars) = bars(&shifts);
    let pulse = Arc::new(Pulse::new());
    for shift in &shifts {
        shift.stream.spread(place.span());
    }
    let mut consumers = Vec::new();
    for _ in 0..args.consumers {
        let redlock = tune(place.builder()?, lease, run).build()?;
        consumers.push(start(redlock, shifts.clone(), Arc::clone(&pulse), bars.clone()));
    }
    let orders = async {
        for consumer in consumers {
            consumer.await??;
        }
        Ok(())
    };
    let torment = async {
        let say = |text: String| screen.suspend(|| println!("{text}"));
        let tune = |builder| tune(builder, lease, run);
        let endured = match &mut place {
            Place::Groups(groups) => groups.torment(seed, &pulse, tune, say).await,
            Place::Cluster(shards) => shards.torment(seed, &pulse, tune, say).await,
            Place::Memory(_) | Place::Servers(_) => return Ok(None),
        };
        // The faults are over, so deliver the remaining orders at full speed.
        for shift in &shifts {
            shift.stream.spread(None);
        }
        endured.map(Some)
    };
    let ((), endured) = tokio::try_join!(orders, torment)?;
    let elapsed = pulse.elapsed();
    bars.iter().for_each(ProgressBar::finish_and_clear);
    Ok(judge(args, seed, &shifts, elapsed, endured.as_ref()))
}

/// Starts a consumer: a thread with its own runtime, like a process. The thread ends when all
/// orders are settled.
fn start(
    redlock: Redlock,
    [request, business]: [Arc<Shift>; 2],
    pulse: Arc<Pulse>,
    bars: [ProgressBar; 2],
) -> oneshot::Receiver<Result<(), Failure>> {
    let (done, end) = oneshot::channel();
    std::thread::spawn(move || {
        let work = async {
            tokio::try_join!(
                request.serve(&redlock, &pulse, &bars[0]),
                business.serve(&redlock, &pulse, &bars[1])
            )?;
            let closed = redlock.close(Duration::from_secs(5)).await;
            if !closed.is_clean() {
                println!("{closed}");
            }
            Ok(())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let result = runtime.map_err(Failure::from).and_then(|r| r.block_on(work));
        // If the demo was interrupted, the receiver has been dropped, and no task waits for the
        // result.
        let _ = done.send(result);
    });
    end
}

fn bars(shifts: &[Arc<Shift>; 2]) -> (MultiProgress, [ProgressBar; 2]) {
    let screen = MultiProgress::new();
    let style = ProgressStyle::with_template("{prefix:>8} {bar:40} {pos:>6}/{len} {per_sec}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bars = [0, 1].map(|i: usize| {
        let stream = &shifts[i].stream;
        let bar = ProgressBar::new(stream.remaining() as u64).with_style(style.clone());
        screen.add(bar.with_prefix(stream.level.name()))
    });
    (screen, bars)
}

/// Prints the report. Returns true if no order is booked twice or lost in the ledger, if each
/// invoice that the library reported is booked, and if no name had two holders.
fn judge(
    args: &Args,
    seed: u64,
    shifts: &[Arc<Shift>; 2],
    elapsed: Duration,
    endured: Option<&Endured>,
) -> bool {
    for shift in shifts {
        report::print_level(shift);
    }
    if let Some(endured) = endured {
        report::print_faults(&endured.faults);
    }
    let kept = |s: &Arc<Shift>| {
        let audit = s.audit();
        audit.doubles == 0 && audit.lost == 0 && s.counts.broken.get() == 0
    };
    let kept = shifts.iter().all(kept) && endured.is_none_or(|e| e.held_twice == 0);
    let verdict = if kept { "every order exactly once" } else { "PROMISE BROKEN" };
    println!("\n{verdict}; {:.1} s, --seed {seed}", elapsed.as_secs_f64());
    if args.json {
        let [request, business] = shifts;
        let line = match endured {
            Some(endured) if args.demo_cluster => {
                json(&ClusterReport::new(request, business, endured))
            }
            _ => json(&Report::new(seed, request, business, elapsed, endured)),
        };
        println!("{line}");
    }
    kept
}
