//! Compares acquire and release of this library with raw `redis` and with `rslock`, in one process.
//!
//! `cargo bench --bench pair` prints a table. With `-- --json` it prints one JSON row per case. The
//! contenders run one after the other within each round. Each ratio is computed within one round,
//! so that other load on the machine affects all contenders alike. Each ratio is shown as `median
//! (least-most)` over the rounds. The benchmark does not check any speed.

mod case;
#[path = "../../tests/support/cluster.rs"]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "shared with the tests")]
mod cluster;
mod clusters;
mod contenders;
mod delay;
mod elections;
mod handoff;
mod locks;
mod records;
mod replay;
mod row;
mod scale;
#[path = "../../tests/support/server.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the tests, which use all of it")]
mod server;
mod stats;

use std::time::Duration;

use case::Case;
use clap::Parser;

#[derive(Parser)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
struct Args {
    /// Print one JSON row per case.
    #[arg(long)]
    json: bool,
    /// Number of rounds per case.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Duration of a round of each contender in seconds.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Runtime of the clients: `default` (a worker per core, as `#[tokio::main]`) or `one` worker.
    /// The servers run on the same machine. With one worker on two cores, the clients have one core
    /// and the servers have the other core.
    #[arg(long)]
    runtime: Option<String>,
    /// Maximum number of locks that are held at the same time in the scale table.
    #[arg(long, default_value_t = 100_000)]
    held: usize,
    /// Run only cases with this many nodes.
    #[arg(long)]
    nodes: Option<usize>,
    /// Run only cases with this many tasks.
    #[arg(long)]
    tasks: Option<usize>,
    /// Measure the cost of many names, held locks and processes. Omit the other tables.
    #[arg(long)]
    scale: bool,
    /// Measure the time without a leader after a resignation and after a kill.
    #[arg(long)]
    elections: bool,
    /// Measure only the time between a release and the next holder's lock.
    #[arg(long)]
    handoff: bool,
    /// Measure only idempotency keys of many callers, executed and replayed.
    #[arg(long)]
    records: bool,
    /// Measure only the kinds of locks beside the mutex.
    #[arg(long)]
    locks: bool,
    /// Measure only a cluster beside lone servers.
    #[arg(long)]
    clusters: bool,
    /// Time for which each holder has the lock with `handoff`, in µs.
    #[arg(long, default_value_t = 1_000)]
    hold_us: u64,
    /// Number of clients with `handoff`. Each has its own connections, as a process would.
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// URLs of the servers, for a worker process of a table.
    #[arg(long, hide = true)]
    worker: Option<String>,
    #[arg(long, hide = true, default_value = "worker")]
    worker_name: String,
    /// An argument that cargo passes.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    let args = Args::parse();
    let mut runtimes = vec!["default", "one"];
    if let Some(only) = &args.runtime {
        runtimes.retain(|r| r == only);
    }
    let special = args.scale || args.elections || args.handoff || args.worker.is_some();
    for name in runtimes.into_iter().take(if special { 1 } else { 2 }) {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        if name == "one" {
            runtime.worker_threads(1);
        }
        let runtime = runtime.enable_all().build().expect("a runtime");
        let work = async {
            if let Some(url) = &args.worker {
                if args.worker_name == elections::LEADS {
                    elections::lead(&args, url).await;
                } else {
                    scale::worker(&args, url).await;
                }
            } else if args.elections {
                elections::table(&args).await;
            } else if args.scale {
                scale::all(&args).await;
            } else {
                tables(&args, name).await;
            }
        };
        runtime.block_on(work);
    }
}

async fn tables(args: &Args, runtime: &str) {
    let wanted = |want: Option<usize>, is: usize| want.is_none_or(|w| w == is);
    let plain = |nodes, tasks| Case { nodes, tasks, frozen: false, delay: Duration::ZERO };
    if args.handoff {
        return handoffs(args, runtime).await;
    }
    if args.records {
        return records(args, runtime).await;
    }
    if args.clusters {
        return clusters::measure(args, runtime).await;
    }
    if args.locks {
        return locks::table(args, runtime).await;
    }
    let mut cases = Vec::new();
    for nodes in [1, 3, 5] {
        cases.extend([1, 8, 64, 512].map(|tasks| plain(nodes, tasks)));
    }
    cases.push(Case { frozen: true, ..plain(5, 1) });
    cases.push(Case { frozen: true, ..plain(5, 64) });
    for nodes in [1, 5] {
        cases.push(Case { delay: Duration::from_micros(200), ..plain(nodes, 1) });
    }
    cases.retain(|c| wanted(args.nodes, c.nodes) && wanted(args.tasks, c.tasks));
    for case in cases {
        case::compare(args, case, runtime).await;
    }
    if args.tasks.is_some() {
        return;
    }
    handoffs(args, runtime).await;
    records(args, runtime).await;
    if wanted(args.nodes, 1) {
        replay::measure(args, runtime).await;
    }
}

async fn records(args: &Args, runtime: &str) {
    for nodes in [1, 3, 5] {
        for callers in [1, 8, 64, 512] {
            if args.nodes.is_none_or(|only| only == nodes)
                && args.tasks.is_none_or(|only| only == callers)
            {
                records::measure(args, runtime, nodes, callers).await;
            }
        }
    }
}

async fn handoffs(args: &Args, runtime: &str) {
    for nodes in [1, 5] {
        if args.nodes.is_none_or(|only| only == nodes) {
            for delay in [0, 200, 2_000].map(Duration::from_micros) {
                handoff::measure(args, nodes, runtime, delay).await;
            }
        }
    }
}
