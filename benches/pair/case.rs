//! One row of the table. The contenders run in turn on the same servers. Each ratio is computed
//! within one round. So other load on the machine affects all contenders.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Args;
use super::contenders::{Contender, contender};
use super::delay::delayed;
use super::server::Server;
use super::stats::{Spread, cpu, quantile_us};

/// The conditions of a comparison.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) nodes: usize,
    pub(crate) tasks: usize,
    /// If true, the last node is frozen.
    pub(crate) frozen: bool,
    /// Delay between client and server, in each direction.
    pub(crate) delay: Duration,
}

/// The measurements of one contender in one round.
pub(crate) struct Run {
    pub(crate) per_s: f64,
    /// Time of each pair, sorted.
    pub(crate) latencies: Vec<Duration>,
    /// Processor time per pair in µs: of this process, and of all servers.
    cpu: (f64, f64),
}

impl Run {
    /// Median time of a pair, in µs.
    pub(crate) fn p50(&self) -> f64 {
        quantile_us(&self.latencies, 0.5)
    }
}

const NAMES: [&str; 4] = ["ours", "raw", "raw default", "rslock"];

pub(crate) fn heading() -> String {
    format!(
        "{:>7} {:>5} {:>5} {:>6} | {:>9} | {:>18} {:>18} {:>18} | {:>18} {:>7} {:>7} {:>7} | \
         {:>15}",
        "runtime",
        "nodes",
        "tasks",
        "frozen",
        "pairs/s",
        "pairs/s over raw",
        "over default raw",
        "over rslock",
        "p50 over raw",
        "p50 µs",
        "p99 µs",
        "raw p50",
        "cpu µs ours/raw"
    )
}

pub(crate) async fn compare(args: &Args, case: Case, runtime: &str) -> String {
    let servers: Vec<Server> = (0..case.nodes).map(|_| Server::start(&[])).collect();
    let at = |server: &Server| {
        if case.delay.is_zero() { server.url() } else { delayed(&server.addr(), case.delay) }
    };
    let urls: Vec<String> = servers.iter().map(at).collect();
    let span = Duration::from_secs_f64(args.seconds);
    let mut all = Vec::new();
    for who in NAMES {
        all.push(contender(who, &urls).await);
        // Warm up: open connections and load scripts. Palisade also uses the last server before
        // this server freezes.
        run(&all[all.len() - 1], who, case, &servers, Duration::from_millis(300)).await;
    }
    if case.frozen {
        servers[case.nodes - 1].freeze();
        // The first calls after the freeze are slower. They are not part of the case.
        run(&all[0], NAMES[0], case, &servers, Duration::from_millis(600)).await;
    }
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        let mut of: [Option<Run>; 4] = [const { None }; 4];
        for i in 0..4 {
            // In the course of the rounds, each contender is first equally often.
            let i = (i + round) % 4;
            of[i] = Some(run(&all[i], NAMES[i], case, &servers, span).await);
        }
        rounds.push(of.map(|run| run.expect("all of them ran")));
    }
    if case.frozen {
        servers[case.nodes - 1].resume();
    }
    row(args, case, runtime, &rounds)
}

fn row(args: &Args, case: Case, runtime: &str, rounds: &[[Run; 4]]) -> String {
    let over = |of: fn(&Run) -> f64, whom: usize| {
        Spread::of(rounds.iter().map(|r| of(&r[0]) / of(&r[whom])).collect())
    };
    let median = |of: fn(&Run) -> f64, who: usize| {
        Spread::of(rounds.iter().map(|r| of(&r[who])).collect()).median
    };
    let (raw, default, rslock) = (over(|r| r.per_s, 1), over(|r| r.per_s, 2), over(|r| r.per_s, 3));
    let default_over_raw =
        Spread::of(rounds.iter().map(|r| r[2].per_s / r[1].per_s).collect()).median;
    let p50_raw = over(Run::p50, 1);
    let (p50, p99) = (median(Run::p50, 0), median(|r| quantile_us(&r.latencies, 0.99), 0));
    let (pairs, raw_p50) = (median(|r| r.per_s, 0), median(Run::p50, 1));
    let cpu = |who| [median(|r| r.cpu.0, who), median(|r| r.cpu.1, who)];
    let ([c, s], [raw_c, raw_s]) = (cpu(0), cpu(1));
    let Case { nodes, tasks, frozen, delay } = case;
    if args.json {
        return format!(
            "{{\"runtime\":\"{runtime}\",\"nodes\":{nodes},\"tasks\":{tasks},\"frozen\":{frozen},\
             \"delay_us\":{},\"ours_pairs_per_s\":{pairs:.0},\
             \"ours_over_raw\":{:.3},\"ours_over_raw_min\":{:.3},\"ours_over_raw_max\":{:.3},\
             \"ours_over_raw_default\":{:.3},\"raw_default_over_raw\":{default_over_raw:.3},\
             \"ours_over_rslock\":{:.3},\"ours_over_rslock_min\":{:.3},\
             \"p50_over_raw\":{:.3},\"p50_over_raw_max\":{:.3},\"ours_p50_us\":{p50:.0},\
             \"ours_p99_us\":{p99:.0},\"raw_p50_us\":{raw_p50:.0},\"ours_client_cpu_us\":{c:.1},\
             \"ours_servers_cpu_us\":{s:.1},\"raw_client_cpu_us\":{raw_c:.1},\
             \"raw_servers_cpu_us\":{raw_s:.1}}}",
            delay.as_micros(),
            raw.median,
            raw.min,
            raw.max,
            default.median,
            rslock.median,
            rslock.min,
            p50_raw.median,
            p50_raw.max
        );
    }
    let cpu = format!("{c:.0}+{s:.0}/{raw_c:.0}+{raw_s:.0}");
    let late = if delay.is_zero() { "" } else { "  0.2 ms of network each way" };
    format!(
        "{runtime:>7} {nodes:>5} {tasks:>5} {frozen:>6} | {pairs:>9.0} | \
         {raw:>18} {default:>18} {rslock:>18} | \
         {p50_raw:>18} {p50:>7.0} {p99:>7.0} {raw_p50:>7.0} | {cpu:>15}{late}"
    )
}

/// Runs pairs of acquire and release in all tasks until the span is over. Each task has its own
/// names. The function waits for the pairs in progress at the end and counts them with their time.
pub(crate) async fn run(
    who: &Arc<dyn Contender>,
    name: &str,
    case: Case,
    servers: &[Server],
    span: Duration,
) -> Run {
    let spent = || (cpu(std::process::id()), servers.iter().map(|s| cpu(s.pid())).sum::<f64>());
    let stop = Arc::new(AtomicBool::new(false));
    let (started, before) = (Instant::now(), spent());
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
    let (took, after) = (started.elapsed(), spent());
    if failed > 0 {
        eprintln!("{name}: {failed} pairs failed with {} nodes", case.nodes);
    }
    latencies.sort_unstable();
    let pairs = latencies.len() as f64;
    let cpu = ((after.0 - before.0) / pairs, (after.1 - before.1) / pairs);
    Run { per_s: pairs / took.as_secs_f64(), latencies, cpu }
}
