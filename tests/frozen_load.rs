//! One of five nodes is frozen under full load. The freeze costs no memory, and leaves nothing
//! behind after the thaw.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use palisade::Redlock;
use palisade::node::RedisNode;
use support::server::Server;
use tokio::time::{Instant, sleep};

const CALLERS: usize = 64;
const TTL: Duration = Duration::from_secs(5);
const SECOND: Duration = Duration::from_secs(1);

/// Returns the resident memory in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Returns the rate of pairs per second, measured over this time.
async fn pairs(done: &AtomicU64, within: Duration) -> f64 {
    let (before, begun) = (done.load(Relaxed), Instant::now());
    sleep(within).await;
    (done.load(Relaxed) - before) as f64 / begun.elapsed().as_secs_f64()
}

/// Returns the number of batches that the server has executed.
fn scripts(server: &Server) -> u64 {
    let all = server.cli(&["info", "commandstats"]);
    let line = all.lines().find_map(|l| l.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
    line.split(',').next().unwrap().parse().unwrap()
}

/// Returns the lock that stays longest on this server, and its remaining time.
///
/// The frozen server may have some locks of one batch: a freeze may stop a script after it has read
/// the clock, and the locks it grants after the thaw then have their whole ttl. These grants do not
/// count as votes and are not released, so only their ttl ends them.
fn longest(server: &Server) -> Option<(String, Duration)> {
    let all = server.cli(&["keys", "n-*"]);
    let rest = |key: &str| server.cli(&["pttl", key]).trim().parse::<u64>().ok();
    let left = all.split_whitespace().filter_map(|key| Some((key.to_owned(), rest(key)?)));
    left.map(|(key, ms)| (key, Duration::from_millis(ms))).max_by_key(|(_, left)| *left)
}

async fn one_of_five_is_frozen(span: Duration) {
    let servers: Vec<Server> = (0..5).map(|_| Server::start(&[])).collect();
    let node = |s: &Server| RedisNode::builder(s.url()).trust_fresh(true).build().unwrap();
    let redlock = servers.iter().map(node).fold(Redlock::builder(), palisade::RedlockBuilder::node);
    let redlock = redlock.ttl(TTL).max_ttl(TTL).build().unwrap();
    let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (redlock, stop, done) = (redlock.clone(), Arc::clone(&stop), Arc::clone(&done));
            tokio::spawn(async move {
                for round in 0_u64.. {
                    if stop.load(Relaxed) {
                        return;
                    }
                    let mutex = redlock.mutex(format!("n-{caller}-{round}")).build().unwrap();
                    let guard = mutex.acquire().await;
                    guard.expect("four nodes answer").release().await.unwrap();
                    done.fetch_add(1, Relaxed);
                }
            })
        })
        .collect();
    sleep(SECOND).await;
    let healthy = pairs(&done, 2 * SECOND).await;

    servers[4].freeze();
    // The requests of one node deadline use some memory, which is not growth.
    sleep(2 * SECOND).await;
    let (before, begun) = (resident(), Instant::now());
    let mut most = before;
    while begun.elapsed() < span {
        let now = pairs(&done, SECOND).await;
        assert!(now > 0.0, "nobody gets a lock, {healthy:.0} a second while all were well");
        most = most.max(resident());
        println!("{:.0?}: {now:.0} pairs/s, {} MiB", begun.elapsed(), resident() >> 20);
    }
    let grown = (most - before) >> 20;
    assert!(grown < 32, "{grown} MiB more after {span:?} of a frozen node");

    let thawed_at = Instant::now();
    servers[4].resume();
    sleep(SECOND).await;
    // The thawed node executes its share again, however busy the machine is.
    let batches = || [0, 4].map(|i: usize| scripts(&servers[i]));
    let before = batches();
    sleep(SECOND).await;
    let [well, thawed] = std::array::from_fn(|i| batches()[i] - before[i]);
    println!("batches a second after the thaw: {thawed}, {well} on a node that was well");
    assert!(4 * thawed > well, "{thawed} batches, {well} on a node that was well");

    stop.store(true, Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    let ended = Instant::now();
    for (i, server) in servers.iter().enumerate() {
        // All locks were released, so no lock waits for its ttl.
        while let Some((key, left)) = longest(server) {
            if i == 4 && left + thawed_at.elapsed() < TTL + SECOND {
                println!("{key} is of the script that the freeze cut in two");
                break;
            }
            assert!(ended.elapsed() < TTL / 2, "left behind: {key} for {left:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }
    // Every lock that was granted can be acquired again on all five nodes.
    let again = redlock.mutex("n-0-0").build().unwrap().acquire().await.unwrap();
    again.release().await.unwrap();
}

/// The freeze lasts six seconds, or as many as the variable `FROZEN_SECONDS` states. A minute in a
/// release build is as long as in an incident.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_node_costs_no_memory_and_leaves_nothing() {
    let seconds = std::env::var("FROZEN_SECONDS").ok().and_then(|s| s.parse().ok());
    one_of_five_is_frozen(Duration::from_secs(seconds.unwrap_or(6))).await;
}
