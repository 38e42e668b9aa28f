//! One of five nodes is frozen under full load. During the freeze the memory of the process must
//! not grow, and after the thaw no lock may remain on a node.

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

/// Measures the rate of acquire-release pairs per second during the time `within`.
async fn pairs(done: &AtomicU64, within: Duration) -> f64 {
    let (before, begun) = (done.load(Relaxed), Instant::now());
    sleep(within).await;
    (done.load(Relaxed) - before) as f64 / begun.elapsed().as_secs_f64()
}

/// Returns the lock with the longest remaining ttl on this server, and this ttl.
///
/// After the thaw, the frozen server may still have locks that no caller holds. The freeze may stop
/// the script of a batch after the script has read the clock. After the thaw, the script grants the
/// rest of its locks with their whole ttl. The callers do not count these grants, and send no
/// release for them. Only their ttl ends them.
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
    // Requests to the frozen node use memory until their deadline passes. This memory does not
    // count as growth, so the first measurement is after these two seconds.
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
    // The thawed node must take part again: it executes at least a quarter as many batches as a
    // healthy node.
    let batches = || [0, 4].map(|i: usize| servers[i].calls("evalsha"));
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
        // The callers released all locks, so each server must lose its locks long before their ttl
        // ends. Only the locks of the script that the freeze interrupted may stay longer.
        while let Some((key, left)) = longest(server) {
            if i == 4 && left + thawed_at.elapsed() < TTL + SECOND {
                println!("{key} is of the script that the freeze cut in two");
                break;
            }
            assert!(ended.elapsed() < TTL / 2, "left behind: {key} for {left:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }
    // A lock that was granted before can be acquired again.
    let again = redlock.mutex("n-0-0").build().unwrap().acquire().await.unwrap();
    again.release().await.unwrap();
}

/// The freeze lasts six seconds, or the number of seconds in the environment variable
/// `FROZEN_SECONDS`.
///
/// A manual run of a release build with 60 seconds resembles a real incident.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_node_costs_no_memory_and_leaves_nothing() {
    let seconds = std::env::var("FROZEN_SECONDS").ok().and_then(|s| s.parse().ok());
    one_of_five_is_frozen(Duration::from_secs(seconds.unwrap_or(6))).await;
}
