//! One row of the printed table. The contenders (palisade and other lock implementations) run one
//! after the other on the same servers, in each round. Each ratio is computed within one round, so
//! that other load on the machine affects all contenders alike.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Args;
use super::contenders::{Contender, contender};
use super::delay::delayed;
use super::row::Row;
use super::server::Server;
use super::stats::{Spread, cpu, load, quantile_us};

/// The conditions of a comparison: servers, tasks and network.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) nodes: usize,
    pub(crate) tasks: usize,
    /// If true, the last node is frozen.
    pub(crate) frozen: bool,
    /// Delay between client and server, in each direction.
    pub(crate) delay: Duration,
}

/// The measurements of one contender (a lock implementation) in one round.
pub(crate) struct Run {
    pub(crate) per_s: f64,
    /// Time of each pair of acquire and release, sorted.
    pub(crate) latencies: Vec<Duration>,
    /// Processor time per pair of acquire and release, in µs: of this process, and of all servers.
    cpu: (f64, f64),
}

impl Run {
    /// Returns the median time of a pair of acquire and release, in µs.
    pub(crate) fn p50(&self) -> f64 {
        quantile_us(&self.latencies, 0.5)
    }
}

const NAMES: [&str; 4] = ["ours", "raw", "raw default", "rslock"];

pub(crate) async fn compare(args: &Args, case: Case, runtime: &str) {
    let servers: Vec<Server> = (0..case.nodes).map(|_| Server::start(&[])).collect();
    let at = |server: &Server| {
        if case.delay.is_zero() { server.url() } else { delayed(&server.addr(), case.delay) }
    };
    let urls: Vec<String> = servers.iter().map(at).collect();
    let span = Duration::from_secs_f64(args.seconds);
    let mut all = Vec::new();
    for who in NAMES {
        all.push(contender(who, &urls).await);
        // Warm up: open connections and load scripts. This also makes palisade use the last server
        // before that server is frozen.
        run(&all[all.len() - 1], who, case, &servers, Duration::from_millis(300)).await;
    }
    if case.frozen {
        servers[case.nodes - 1].freeze();
        // The first calls after the server is frozen are slower. The printed result must not
        // contain them, so they run here and are not counted.
        run(&all[0], NAMES[0], case, &servers, Duration::from_millis(600)).await;
    }
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        let mut of: [Option<Run>; 4] = [const { None }; 4];
        for i in 0..4 {
            // The order of the contenders rotates from round to round. So each contender runs first
            // equally often.
            let i = (i + round) % 4;
            of[i] = Some(run(&all[i], NAMES[i], case, &servers, span).await);
        }
        rounds.push(of.map(|run| run.expect("all of them ran")));
    }
    if case.frozen {
        servers[case.nodes - 1].resume();
    }
    row(args, case, runtime, &rounds);
}

fn row(args: &Args, case: Case, runtime: &str, rounds: &[[Run; 4]]) {
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
    Row::default()
        .value("runtime", "runtime", runtime)
        .value("nodes", "nodes", case.nodes)
        .value("tasks", "tasks", case.tasks)
        .value("frozen", "frozen", case.frozen)
        .value("delay µs", "delay_us", case.delay.as_micros())
        .figure("pairs/s", "ours_pairs_per_s", 0, pairs)
        .spread("over raw", "ours_over_raw", 3, raw)
        .spread("over default raw", "ours_over_raw_default", 3, default)
        .figure("", "raw_default_over_raw", 3, default_over_raw)
        .spread("over rslock", "ours_over_rslock", 3, rslock)
        .spread("p50 over raw", "p50_over_raw", 3, p50_raw)
        .figure("p50 µs", "ours_p50_us", 0, p50)
        .figure("p99 µs", "ours_p99_us", 0, p99)
        .figure("raw p50", "raw_p50_us", 0, raw_p50)
        .figure("cpu µs", "ours_client_cpu_us", 1, c)
        .figure("servers", "ours_servers_cpu_us", 1, s)
        .figure("raw cpu", "raw_client_cpu_us", 1, raw_c)
        .figure("servers", "raw_servers_cpu_us", 1, raw_s)
        .print(args.json);
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
    let (started, before) = (Instant::now(), spent());
    let (who, name) = (Arc::clone(who), Arc::<str>::from(name));
    let pair = {
        let name = Arc::clone(&name);
        move |task, _| {
            let (who, lock) = (Arc::clone(&who), format!("{name}:{task}"));
            async move {
                let begun = Instant::now();
                who.pair(lock).await.then(|| begun.elapsed())
            }
        }
    };
    let done = load(case.tasks, span, pair).await;
    let (took, after) = (started.elapsed(), spent());
    let mut latencies: Vec<_> = done.iter().copied().flatten().collect();
    let failed = done.len() - latencies.len();
    if failed > 0 {
        eprintln!("{name}: {failed} pairs failed with {} nodes", case.nodes);
    }
    latencies.sort_unstable();
    let pairs = latencies.len() as f64;
    let cpu = ((after.0 - before.0) / pairs, (after.1 - before.1) / pairs);
    Run { per_s: pairs / took.as_secs_f64(), latencies, cpu }
}
