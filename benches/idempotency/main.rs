//! Costs of idempotency keys: round trips per call, speed of batches, bytes per record. For the
//! speeds of many callers, run the bench `pair` with `--records`.
//!
//! `cargo bench --bench idempotency` prints a table. With `-- --json` it prints one JSON object.
//! The server counts the round trips. Speeds are given as ratios, or as ranges over the rounds. The
//! benchmark does not check that its figures are good.

#[path = "../pair/row.rs"]
mod row;
#[path = "../../tests/support/server.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the tests, which use all of it")]
mod server;
#[path = "../pair/stats.rs"]
#[allow(dead_code, reason = "shared with the other bench, which uses all of it")]
mod stats;

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use palisade::{Failed, Idempotency, Outcome, RedisNode, Redlock};
use row::Row;
use server::Server;
use stats::Spread;

/// Result of a call. It has 32 bytes as JSON.
const RESULT: &str = "the receipt of an order: 30 by";
/// Number of calls in a batch.
const BATCH: usize = 100;
/// Number of callers that send requests at the same time.
const CALLERS: usize = 64;

#[derive(Parser)]
struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Number of rounds for each speed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Duration of each round in seconds.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Number of completed records whose memory is measured.
    #[arg(long, default_value_t = 1_000_000)]
    records: usize,
    /// An argument that cargo passes.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() {
    let args = Args::parse();
    let before = load();
    let (execute, replay) = round_trips().await;
    let (batch, batch_trips) = batches(&args).await;
    let (alone, together) = (always(&args, 1).await, always(&args, CALLERS).await);
    let bytes = bytes(args.records).await;
    let callers = format!("with {CALLERS} callers");
    let name = format!("always_over_everysec_{CALLERS}_callers");
    Row::default()
        .figure("round trips to run (2)", "execute_round_trips", 2, execute)
        .figure("to replay (1)", "replay_round_trips", 2, replay)
        .value(&format!("of {BATCH} in a batch (2)"), "batch_round_trips", batch_trips)
        .spread("batch over calls (>= 5)", "batch_over_single", 2, batch)
        .spread("always over everysec", "always_over_everysec", 2, alone)
        .spread(&callers, &name, 2, together)
        .value("records", "records", args.records)
        .figure("bytes each (<= 300)", "bytes_per_record", 1, bytes)
        .print(args.json);
    if !args.json {
        println!("in brackets: the target; load average before {before}, after {}", load());
    }
}

/// Returns the load averages of the last 1, 5 and 15 minutes.
fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

struct Lab {
    server: Server,
    orders: Idempotency,
}

impl Lab {
    fn new() -> Self {
        Self::with(&["--appendonly", "no"])
    }

    fn with(args: &[&str]) -> Self {
        let server = Server::start(&[&["--save", ""], args].concat());
        let node = RedisNode::builder(server.url()).trust_fresh(true).build().expect("a node");
        let redlock = Redlock::builder().node(node).node_deadline(Duration::from_secs(2)).build();
        let redlock = redlock.expect("a handle");
        let orders = redlock.idempotency("orders").at_most_once().build().expect("a namespace");
        Self { server, orders }
    }

    /// Returns the number of batches that the server has executed.
    fn trips(&self) -> u64 {
        self.server.calls("evalsha")
    }

    /// Returns the server's memory in use, in bytes.
    fn memory(&self) -> f64 {
        let info = self.server.cli(&["info", "memory"]);
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        line.and_then(|bytes| bytes.trim().parse().ok()).expect("used_memory")
    }

    /// Makes a call. Returns true if its handler ran.
    async fn call(&self, key: String) -> bool {
        let done = self.orders.key(key).run(|_| async { Ok::<_, Failed>(RESULT.to_owned()) });
        let done = done.await.expect("an outcome");
        assert!(done.value().is_some(), "{done:?}");
        done.is_executed()
    }

    /// Runs a batch of calls.
    async fn batch(&self, keys: impl Iterator<Item = String>) {
        let calls = keys.map(|key| (self.orders.key(key), ()));
        let run = |_, ()| async { Ok::<_, Failed>(RESULT.to_owned()) };
        let done = self.orders.run_each(calls, BATCH, run).await;
        let bad = done.iter().find(|d| !d.as_ref().is_ok_and(Outcome::is_executed));
        assert!(bad.is_none(), "{bad:?}");
    }
}

/// Returns the round trips of two kinds of calls: a call that runs its handler, and a call that
/// replays a stored result.
async fn round_trips() -> (f64, f64) {
    const CALLS: u64 = 1_000;
    let lab = Lab::new();
    lab.call("warm".to_owned()).await;
    let mut counted = [0.0; 2];
    for trips in &mut counted {
        let before = lab.trips();
        for i in 0..CALLS {
            lab.call(format!("order-{i}")).await;
        }
        *trips = (lab.trips() - before) as f64 / CALLS as f64;
    }
    (counted[0], counted[1])
}

/// Returns the speed of a batch divided by the speed of single calls, and the round trips of the
/// batch.
async fn batches(args: &Args) -> (Spread, u64) {
    let lab = Lab::new();
    lab.batch((0..BATCH).map(|i| format!("warm-{i}"))).await;
    let span = Duration::from_secs_f64(args.seconds);
    let (mut ratios, mut next, mut trips) = (Vec::new(), 0, u64::MAX);
    for _ in 0..args.rounds {
        let mut rates = [0.0; 2];
        for (together, rate) in [false, true].into_iter().zip(&mut rates) {
            let (began, mut done) = (Instant::now(), 0);
            while began.elapsed() < span {
                if together {
                    let before = lab.trips();
                    // Only the batch is measured, not the requests for the server's count before
                    // and after it.
                    let paused = Instant::now();
                    lab.batch((next..next + BATCH).map(|i| format!("order-{i}"))).await;
                    *rate += paused.elapsed().as_secs_f64();
                    trips = trips.min(lab.trips() - before);
                    done += BATCH;
                    next += BATCH;
                } else {
                    let one = Instant::now();
                    lab.call(format!("order-{next}")).await;
                    *rate += one.elapsed().as_secs_f64();
                    done += 1;
                    next += 1;
                }
            }
            *rate = done as f64 / *rate;
        }
        ratios.push(rates[1] / rates[0]);
    }
    (Spread::of(ratios), trips)
}

/// Returns a ratio of two rates of calls. The first rate is measured with `appendfsync always`, the
/// second with `everysec`. Each measurement has `callers` callers.
async fn always(args: &Args, callers: usize) -> Spread {
    let lab = |fsync| Arc::new(Lab::with(&["--appendonly", "yes", "--appendfsync", fsync]));
    let labs = [lab("everysec"), lab("always")];
    let (mut ratios, mut next) = (Vec::new(), 0);
    for round in 0..=args.rounds {
        let mut rates = [0.0; 2];
        for (lab, rate) in labs.iter().zip(&mut rates) {
            let (began, lab) = (Instant::now(), Arc::clone(lab));
            let call = move |caller, turn| {
                let lab = Arc::clone(&lab);
                async move { assert!(lab.call(format!("order-{next}-{caller}-{turn}")).await) }
            };
            let done = stats::load(callers, Duration::from_secs_f64(args.seconds), call).await;
            *rate = done.len() as f64 / began.elapsed().as_secs_f64();
        }
        next += 1;
        // The first round warms up both servers and is not counted.
        if round > 0 {
            ratios.push(rates[1] / rates[0]);
        }
    }
    Spread::of(ratios)
}

/// Returns the size of a completed record in Redis's memory, in bytes.
async fn bytes(records: usize) -> f64 {
    let lab = Lab::new();
    lab.call("warm".to_owned()).await;
    let before = lab.memory();
    for first in (0..records).step_by(BATCH) {
        let end = (first + BATCH).min(records);
        lab.batch((first..end).map(|i| format!("order-{i:07}"))).await;
    }
    (lab.memory() - before) / records as f64
}
