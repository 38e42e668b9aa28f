//! A benchmark of idempotency keys with many callers: palisade runs a handler for each key,
//! palisade replays stored results, and the raw contender uses two raw commands for each key.
//!
//! Programs often contain the code of the raw contender: `SET key owner NX PX`, the work, and `SET
//! key result PX`, on all servers. The raw contender has no fencing, no fingerprint and no quorum
//! logic. If its process dies during the work, the key stays set, and the work is not repeated.

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::{Failed, Idempotency};

use super::Args;
use super::contenders::{Ours, Raw};
use super::row::Row;
use super::server::Server;
use super::stats::{Spread, cpu, load, switches};

const RESULT: &str = "the receipt of an order: 30 by";

#[derive(Clone, Copy, PartialEq)]
enum Work {
    /// Palisade runs the handler of a new key in each call.
    Execute,
    /// Palisade replays a stored result in each call. Each caller has a completed key of its own.
    Replay,
    /// The raw contender (code without palisade) runs its two commands for a new key in each call.
    Raw,
}

/// Measurements of one kind of work in one round.
struct Run {
    per_s: f64,
    /// Processor time per key in µs: of this process, of all servers, and of the Lua scripts on the
    /// servers.
    cpu: (f64, f64, f64),
    /// Context switches per key, of this process and of all servers.
    switches: f64,
}

/// Measures each kind of work ([`Work`]) with this number of nodes and callers, and prints a row of
/// the benchmark's table.
pub(crate) async fn measure(args: &Args, runtime: &str, nodes: usize, callers: usize) {
    let servers: Vec<Server> = (0..nodes).map(|_| Server::start(&[])).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let orders = Ours::connect(&urls).0.idempotency("bench").at_most_once().build();
    let clients = Arc::new((orders.expect("a namespace"), Raw::connect(&urls).await));
    for caller in 0..callers {
        ours(&clients.0, format!("replay-{caller}")).await;
    }
    let span = Duration::from_secs_f64(args.seconds);
    let works = [Work::Execute, Work::Raw, Work::Replay];
    let mut rounds: Vec<[Run; 3]> = Vec::new();
    // The first round only warms up the servers, and its figures are not counted.
    for round in 0..=args.rounds {
        let mut of = [None, None, None];
        for i in 0..3 {
            let i = (i + round) % 3;
            let name = format!("{runtime}-{round}");
            of[i] = Some(run(&clients, works[i], (&name, callers), &servers, span).await);
        }
        rounds.push(of.map(|run| run.expect("all three ran")));
    }
    let median = |of: fn(&Run) -> f64, work: usize| {
        Spread::of(rounds[1..].iter().map(|r| of(&r[work])).collect())
    };
    let over = Spread::of(rounds[1..].iter().map(|r| r[0].per_s / r[1].per_s).collect());
    let (execute, raw, replay) =
        (median(|r| r.per_s, 0), median(|r| r.per_s, 1), median(|r| r.per_s, 2));
    let script = |work| median(|r| r.cpu.2, work).median;
    let (client, server) = (median(|r| r.cpu.0, 0).median, median(|r| r.cpu.1, 0).median);
    let switched = median(|r| r.switches, 0).median;
    Row::default()
        .value("runtime", "runtime", runtime)
        .value("nodes", "nodes", nodes)
        .value("callers", "callers", callers)
        .spread("keys executed/s", "execute_per_s", 0, execute)
        .spread("over two raw SETs", "execute_over_raw", 3, over)
        .figure("", "raw_per_s", 0, raw.median)
        .spread("replayed/s", "replay_per_s", 0, replay)
        .figure("µs/exec", "server_us_per_execute", 1, script(0))
        .figure("µs/repl", "server_us_per_replay", 1, script(2))
        .figure("cpu µs", "client_cpu_us_per_execute", 1, client)
        .figure("servers", "servers_cpu_us_per_execute", 1, server)
        .figure("switches", "switches_per_execute", 2, switched)
        .print(args.json);
}

async fn ours(orders: &Idempotency, key: String) {
    let done = orders.key(key).run(|_| async { Ok::<_, Failed>(RESULT.to_owned()) }).await;
    assert!(done.is_ok_and(|done| done.value().is_some()), "a result");
}

/// Runs all callers until the time of one measurement is over.
async fn run(
    clients: &Arc<(Idempotency, Raw)>,
    work: Work,
    (name, callers): (&str, usize),
    servers: &[Server],
    span: Duration,
) -> Run {
    let spent = || {
        let of = |figure: fn(&Server) -> f64| servers.iter().map(figure).sum::<f64>();
        let me = std::process::id();
        let scripts = of(script_us);
        (cpu(me), of(|s| cpu(s.pid())), scripts, switches(me) + of(|s| switches(s.pid())))
    };
    let (before, began) = (spent(), Instant::now());
    let (clients, name) = (Arc::clone(clients), name.to_owned());
    let call = move |caller, turn| {
        let (clients, key) = (Arc::clone(&clients), format!("{name}-{caller}-{turn}"));
        async move {
            match work {
                Work::Execute => ours(&clients.0, key).await,
                Work::Replay => ours(&clients.0, format!("replay-{caller}")).await,
                Work::Raw => clients.1.once(&format!("raw-{key}"), RESULT).await,
            }
        }
    };
    let done = load(callers, span, call).await.len() as f64;
    let (took, after) = (began.elapsed().as_secs_f64(), spent());
    let per = |after: f64, before: f64| (after - before) / done;
    Run {
        per_s: done / took,
        cpu: (per(after.0, before.0), per(after.1, before.1), per(after.2, before.2)),
        switches: per(after.3, before.3),
    }
}

/// Returns the total time of scripts on the server, in µs.
fn script_us(server: &Server) -> f64 {
    let stats = server.cli(&["info", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    let usec = line.and_then(|line| line.split_once("usec=")?.1.split(',').next()?.parse().ok());
    usec.unwrap_or(0.0)
}
