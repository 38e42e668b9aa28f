//! acquire + release, ours beside raw `redis` and beside `rslock`, in one process run.
//!
//! `cargo bench --bench pair` prints a table, `-- --json` one JSON row per case. The contenders
//! alternate within each round, and the ratio is taken per round: what else the machine does hits
//! all of them. Speed is shown here and asserted nowhere.

mod contenders;
mod receipts;
#[path = "../../tests/support/server.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the tests, which use all of it")]
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use contenders::{Contender, Ours, contender};
use server::Server;

#[derive(Parser)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
struct Args {
    /// One JSON row per case.
    #[arg(long)]
    json: bool,
    /// Rounds per case; the median of the rounds' ratios is printed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds per contender and round.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Worker threads of the clients' runtime. The servers run on the same machine: with one worker
    /// on two cores neither side takes the other's.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Locks held at once in the memory case.
    #[arg(long, default_value_t = 10_000)]
    held: usize,
    /// Only cases with this many nodes.
    #[arg(long)]
    nodes: Option<usize>,
    /// Only cases with this many tasks.
    #[arg(long)]
    tasks: Option<usize>,
    /// Ours alone, without comparison, for a profiler.
    #[arg(long)]
    profile: bool,
    /// Ours with and without receipts, on the same servers.
    #[arg(long)]
    receipts: bool,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

struct Case {
    nodes: usize,
    tasks: usize,
    frozen: bool,
}

/// What one contender did in one round.
struct Run {
    per_s: f64,
    latencies: Vec<Duration>,
}

fn main() {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.workers)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        if !args.json && !args.receipts && !args.profile {
            println!(
                "{:>5} {:>5} {:>6} | {:>13} {:>9} {:>11} | {:>9} {:>9}",
                "nodes",
                "tasks",
                "frozen",
                "ours pairs/s",
                "ours/raw",
                "ours/rslock",
                "p50 µs",
                "p99 µs"
            );
        }
        let whole = args.nodes.is_none() && args.tasks.is_none() && !args.receipts;
        // First: what other cases give back is used again, and would not be seen.
        let held = if whole && !args.profile { Some(memory(&args).await) } else { None };
        for (nodes, tasks, frozen) in [
            (1, 1, false),
            (1, 64, false),
            (5, 1, false),
            (5, 64, false),
            (5, 1, true),
            (5, 64, true),
        ] {
            let wanted = |want: Option<usize>, is: usize| want.is_none_or(|w| w == is);
            if wanted(args.nodes, nodes) && wanted(args.tasks, tasks) {
                let it = Case { nodes, tasks, frozen };
                match args.receipts {
                    true if frozen => {}
                    true => receipts::compare(&args, &it).await,
                    false => case(&args, &it).await,
                }
            }
        }
        if let Some(held) = held {
            println!("{held}");
        }
    });
}

async fn case(args: &Args, case: &Case) {
    let servers: Vec<Server> = (0..case.nodes).map(|_| Server::start(&[])).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let span = Duration::from_secs_f64(args.seconds);
    if args.profile {
        return profile(&servers, &urls, case, span).await;
    }
    let names = ["ours", "raw", "rslock"];
    let mut all = Vec::new();
    for who in names {
        all.push(contender(who, &urls).await);
        // Warm: connections, scripts, and ours has seen the frozen server before it freezes.
        run(all.last().expect("just pushed"), who, case, Duration::from_millis(300)).await;
    }
    if case.frozen {
        servers[4].freeze();
        // The first calls meet the freeze; the case is about life with it.
        run(&all[0], "ours", case, Duration::from_millis(600)).await;
    }
    let (mut per_s, mut over_raw, mut over_rslock, mut lat) = (vec![], vec![], vec![], vec![]);
    for _ in 0..args.rounds {
        let ours = run(&all[0], names[0], case, span).await;
        let raw = run(&all[1], names[1], case, span).await;
        let rslock = run(&all[2], names[2], case, span).await;
        over_raw.push(ours.per_s / raw.per_s);
        over_rslock.push(ours.per_s / rslock.per_s);
        per_s.push(ours.per_s);
        lat.extend(ours.latencies);
    }
    if case.frozen {
        servers[4].resume();
    }
    lat.sort_unstable();
    let at = |q: f64| lat[((lat.len() - 1) as f64 * q) as usize].as_secs_f64() * 1e6;
    let (pairs, raw, rslock) = (median(per_s), median(over_raw), median(over_rslock));
    let Case { nodes, tasks, frozen } = case;
    if args.json {
        println!(
            "{{\"nodes\":{nodes},\"tasks\":{tasks},\"frozen\":{frozen},\
             \"ours_pairs_per_s\":{pairs:.0},\"ours_over_raw\":{raw:.3},\
             \"ours_over_rslock\":{rslock:.3},\"ours_p50_us\":{:.0},\"ours_p99_us\":{:.0}}}",
            at(0.5),
            at(0.99)
        );
    } else {
        println!(
            "{nodes:>5} {tasks:>5} {frozen:>6} | {pairs:>13.0} {raw:>9.2} {rslock:>11.2} | \
             {:>9.0} {:>9.0}",
            at(0.5),
            at(0.99)
        );
    }
}

/// Processor time of a process so far, in µs.
fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let of_thread = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = of_thread.split_whitespace().skip(11).take(2);
    ticks.filter_map(|t| t.parse::<f64>().ok()).sum::<f64>() * 1e4
}

/// Processor time per pair, ours and the server's: what counts when the machine is busy.
async fn profile(servers: &[Server], urls: &[String], case: &Case, span: Duration) {
    for who in ["ours", "raw", "rslock"] {
        let contender = contender(who, urls).await;
        run(&contender, who, case, span / 4).await;
        let spent = || (cpu(std::process::id()), servers.iter().map(|s| cpu(s.pid())).sum::<f64>());
        let before = spent();
        let done = run(&contender, who, case, span).await;
        let (after, pairs) = (spent(), done.latencies.len() as f64);
        println!(
            "{who}: {:.0} pairs/s, client {:.2} µs, servers {:.2} µs a pair",
            done.per_s,
            (after.0 - before.0) / pairs,
            (after.1 - before.1) / pairs
        );
    }
}

/// All tasks do pairs on their own names until the span is over; a pair that is under way then is
/// awaited and counted with its time.
async fn run(who: &Arc<dyn Contender>, name: &str, case: &Case, span: Duration) -> Run {
    let stop = Arc::new(AtomicBool::new(false));
    let started = Instant::now();
    let tasks: Vec<_> = (0..case.tasks)
        .map(|t| {
            let (who, stop, lock) = (Arc::clone(who), Arc::clone(&stop), format!("{name}:{t}"));
            tokio::spawn(async move {
                let (mut latencies, mut failed) = (Vec::with_capacity(1 << 14), 0_u32);
                while !stop.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    if who.pair(lock.clone()).await {
                        latencies.push(begun.elapsed());
                    } else {
                        failed += 1;
                    }
                }
                (latencies, failed)
            })
        })
        .collect();
    tokio::time::sleep(span).await;
    stop.store(true, Ordering::Relaxed);
    let (mut latencies, mut failed) = (Vec::new(), 0);
    for task in tasks {
        let (l, f) = task.await.expect("a task");
        latencies.extend(l);
        failed += f;
    }
    if failed > 0 {
        eprintln!("{name}: {failed} pairs failed with {} nodes", case.nodes);
    }
    Run { per_s: latencies.len() as f64 / started.elapsed().as_secs_f64(), latencies }
}

/// What many held locks cost: resident memory per lock, kept by one keeper task.
async fn memory(args: &Args) -> String {
    let servers: Vec<Server> = (0..1).map(|_| Server::start(&[])).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let ours = Ours::connect(&urls);
    drop(ours.0.mutex("warm").build().unwrap().acquire().await.expect("a lock"));
    let (before, tasks_before) = (resident(), tasks());
    let mut guards = Vec::with_capacity(args.held);
    for i in 0..args.held {
        guards.push(
            ours.0.mutex(format!("held:{i}")).build().unwrap().acquire().await.expect("a lock"),
        );
    }
    tokio::time::sleep(Duration::from_secs(11)).await;
    let alive = guards.iter().filter(|g| g.is_valid()).count();
    let (bytes, tasks) = (resident().saturating_sub(before), tasks().saturating_sub(tasks_before));
    let each = bytes / args.held.max(1);
    if args.json {
        format!(
            "{{\"held\":{},\"alive_after_ttl\":{alive},\"rss_bytes\":{bytes},\
             \"bytes_per_lock\":{each},\"tasks\":{tasks}}}",
            args.held
        )
    } else {
        format!(
            "{} locks held: {alive} alive after one ttl, {:.1} MiB resident ({each} bytes each), \
             {tasks} more tasks",
            args.held,
            bytes as f64 / f64::from(1 << 20)
        )
    }
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|p| p.parse::<usize>().ok());
    pages.unwrap_or(0) * 4_096
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
