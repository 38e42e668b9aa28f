//! Time between two leaders. In the clean case the leader resigns. In the unclean case the leader
//! is a separate process, and the benchmark kills this process. The name is free when its lease
//! ends: ttl plus declared lock-delay after the last renewal.

use std::process::Stdio;
use std::time::{Duration, Instant};

use palisade::{Election, RedisNode, Redlock, RedlockBuilder};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::Args;
use super::row::Row;
use super::server::Server;
use super::stats::quantile_us;

const TTL: Duration = Duration::from_secs(1);
const CLEAN: usize = 200;
const UNCLEAN: u32 = 9;
/// Time that a campaign's requests need to reach the nodes, so that the candidate waits in the
/// queue.
const FOLLOWS: Duration = Duration::from_millis(20);

/// Prints the table.
pub(crate) async fn table(args: &Args) {
    for nodes in [1, 3, 5].into_iter().filter(|n| args.nodes.is_none_or(|want| want == *n)) {
        for drain in [Duration::ZERO, TTL / 2] {
            row(args, nodes, drain).await;
        }
    }
}

async fn row(args: &Args, nodes: usize, drain: Duration) {
    let servers: Vec<Server> = (0..nodes).map(|_| Server::start(&[])).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let ms = |us: f64| us / 1e3;
    let clean = resigned(&urls, drain).await;
    let (clean, rare) = (ms(quantile_us(&clean, 0.5)), ms(quantile_us(&clean, 0.99)));
    let unclean = killed(args, &urls, drain).await;
    let (half, most) = (ms(quantile_us(&unclean, 0.5)), ms(quantile_us(&unclean, 1.0)));
    // A killed leader is followed within ttl, lock-delay and one round trip. The column `ttl +
    // delay` leaves out the round trip, which takes about as long as a new leader after a
    // resignation.
    Row::default()
        .value("nodes", "nodes", nodes)
        .value("ttl ms", "ttl_ms", TTL.as_millis())
        .value("delay ms", "lock_delay_ms", drain.as_millis())
        .figure("resigned p50", "resigned_p50_ms", 2, clean)
        .figure("p99 ms", "resigned_p99_ms", 2, rare)
        .figure("killed p50", "killed_p50_ms", 0, half)
        .figure("most ms", "killed_most_ms", 0, most)
        .value("ttl + delay", "ttl_and_delay_ms", (TTL + drain).as_millis())
        .print(args.json);
}

/// Returns an election on a new handle, as another process would have it.
fn election(urls: &[String], drain: Duration) -> Election {
    let node = |url: &String| RedisNode::builder(url).trust_fresh(true).build().expect("a node");
    let handle = urls.iter().map(node).fold(Redlock::builder(), RedlockBuilder::node);
    let handle = handle.ttl(TTL).max_ttl(2 * TTL).build().expect("a handle");
    handle.election("handed over").drain(drain).build().expect("a good name")
}

/// Two candidates resign in turn. Returns the sorted times from each resignation until the other
/// candidate leads.
async fn resigned(urls: &[String], drain: Duration) -> Vec<Duration> {
    let (mut leads, mut follows) = (election(urls, drain), election(urls, drain));
    let mut leadership = leads.campaign("a leader").await.expect("nobody leads");
    let mut took = Vec::with_capacity(CLEAN);
    for _ in 0..CLEAN {
        let next = follows.clone();
        let next = tokio::spawn(async move { (next.campaign("a leader").await, Instant::now()) });
        tokio::time::sleep(FOLLOWS).await;
        let resigned = Instant::now();
        let _ = leadership.resign().await;
        let (next, elected) = next.await.expect("a campaign");
        took.push(elected - resigned);
        leadership = next.expect("a term");
        std::mem::swap(&mut leads, &mut follows);
    }
    let _ = leadership.resign().await;
    took.sort_unstable();
    took
}

/// Kills processes that lead. Returns the sorted times from each kill until the election of this
/// process leads.
async fn killed(args: &Args, urls: &[String], drain: Duration) -> Vec<Duration> {
    let me = std::env::current_exe().expect("this program");
    let follows = election(urls, drain);
    let mut took = Vec::new();
    for turn in 0..UNCLEAN {
        let mut child = tokio::process::Command::new(&me);
        child.args(["--worker", &urls.join(","), "--worker-name", LEADS]);
        child.args(["--seconds", &drain.as_secs_f64().to_string()]);
        child.args(args.json.then_some("--json")).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = child.spawn().expect("a process");
        let out = child.stdout.take().expect("a pipe");
        let mut lines = BufReader::new(out).lines();
        while lines.next_line().await.expect("a line").expect("it leads") != LEADS {}
        let next = follows.clone();
        let next = tokio::spawn(async move { (next.campaign("a leader").await, Instant::now()) });
        // Each turn kills the leader at a different moment between two renewals.
        tokio::time::sleep(TTL / 2 + TTL / 4 * turn / UNCLEAN).await;
        let killed = Instant::now();
        child.kill().await.expect("it runs");
        let (next, elected) = next.await.expect("a campaign");
        took.push(elected - killed);
        let _ = next.expect("a term").resign().await;
    }
    took.sort_unstable();
    took
}

/// Name of the worker that leads until it is killed. The worker also prints this name when it
/// begins to lead.
pub(crate) const LEADS: &str = "leads";

/// Leads until the process is killed.
pub(crate) async fn lead(args: &Args, urls: &str) {
    let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
    let leads = election(&urls, Duration::from_secs_f64(args.seconds));
    let _leadership = leads.campaign("a leader").await.expect("nobody leads");
    println!("{LEADS}");
    std::future::pending::<()>().await;
}
