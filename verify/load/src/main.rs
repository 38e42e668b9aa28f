//! A load test with very many locks, waiters and leaders in one process, on real servers that the
//! program starts itself.
//!
//! ```text
//! cargo run --release -p load -- guards 40000 3
//! cargo run --release -p load -- waiters 100000
//! cargo run --release -p load -- elections 10000
//! ```
//!
//! The first command holds 40,000 locks. Three times, one of three servers is frozen for a minute.
//! In the second command, 100,000 callers wait for one lock on one server. The third command leads
//! 10,000 elections for a minute.
//!
//! The exit code is 1 if a lock or a leadership was lost, or if a waiter did not get the lock.

#[path = "../../../tests/support/server.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "shared with the tests")]
mod server;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use palisade::{LockGuard, Redlock, TryAcquire};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::server::Server;

/// Time for which a server is frozen, and for which the leaders lead.
const SPAN: Duration = Duration::from_secs(60);
/// Number of concurrent calls of `acquire`.
const CALLERS: usize = 256;

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, or| args.get(at).map_or(or, |n| n.parse().expect("a number"));
    let fine = match args.first().map(String::as_str) {
        Some("guards") => {
            let mut fine = true;
            for round in 1..=number(2, 1) {
                println!("round {round}");
                fine &= guards(number(1, 40_000)).await;
            }
            fine
        }
        Some("waiters") => waiters(number(1, 100_000)).await,
        Some("elections") => elections(number(1, 10_000)).await,
        _ => {
            eprintln!("load guards [N] [TIMES] | waiters [N] | elections [N]");
            false
        }
    };
    ExitCode::from(u8::from(!fine))
}

fn handle(servers: &[Server]) -> Redlock {
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    Redlock::from_urls(urls.join(" ")).expect("addresses of servers")
}

/// Starts servers, and waits until their first quarantine (a time without grants) has ended.
async fn servers(n: usize) -> (Vec<Server>, Redlock) {
    let servers: Vec<Server> = (0..n).map(|_| Server::start(&[])).collect();
    let redlock = handle(&servers);
    let first = redlock.mutex("first").acquire_timeout(SPAN).build().expect("a mutex");
    drop(first.acquire().await.expect("after the quarantine"));
    // A grant proves only that the quarantine of a majority has ended. Wait for the other servers,
    // too.
    sleep(Duration::from_secs(2)).await;
    (servers, redlock)
}

/// Holds `n` locks while one of three servers is frozen. Returns true if no lock was lost.
async fn guards(n: usize) -> bool {
    let (servers, redlock) = servers(3).await;
    let (next, begun) = (Arc::new(AtomicUsize::new(0)), Instant::now());
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (redlock, next) = (redlock.clone(), Arc::clone(&next));
        callers.spawn(async move {
            let mut held = Vec::new();
            let mut refused = 0_usize;
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= n {
                    return (held, refused);
                }
                let mutex = redlock.mutex(format!("lock-{i}")).build().expect("a mutex");
                loop {
                    match mutex.acquire().await {
                        Ok(guard) => break held.push(guard),
                        Err(_) => refused += 1,
                    }
                }
            }
        });
    }
    let (mut held, mut refused) = (Vec::<LockGuard>::new(), 0);
    while let Some(done) = callers.join_next().await {
        let (some, times) = done.expect("a caller");
        held.extend(some);
        refused += times;
    }
    println!("{} held after {:.1?}, refused {refused} times", held.len(), begun.elapsed());
    watch("all servers up", &held, Duration::from_secs(10), &redlock).await;
    servers[2].freeze();
    watch("one frozen", &held, SPAN, &redlock).await;
    servers[2].resume();
    watch("thawed", &held, Duration::from_secs(20), &redlock).await;
    let lost = held.iter().filter(|guard| !guard.is_valid()).count();
    println!("{lost} of {n} lost");
    lost == 0
}

/// Prints, every five seconds, the smallest remaining validity of the locks and the results of new
/// attempts.
async fn watch(phase: &str, held: &[LockGuard], span: Duration, redlock: &Redlock) {
    let begun = Instant::now();
    let (mut granted, mut refused, mut why) = (0, 0, None);
    let mut said = Instant::now();
    let mut least = Duration::MAX;
    while begun.elapsed() < span {
        let mutex = redlock.mutex(format!("new-{granted}-{refused}")).build().expect("a mutex");
        match mutex.try_acquire().await {
            Ok(TryAcquire::Acquired(guard)) => {
                granted += 1;
                drop(guard.release().await);
            }
            Ok(TryAcquire::Taken(_)) => refused += 1,
            Err(e) => {
                refused += 1;
                why = Some(e);
            }
        }
        let left = held.iter().map(LockGuard::remaining).min().unwrap_or_default();
        least = least.min(left);
        if said.elapsed() >= Duration::from_secs(5) {
            said = Instant::now();
            let valid = held.iter().filter(|guard| guard.is_valid()).count();
            println!(
                "{phase}: {:.0?}: {valid} held, at least {least:.1?} left; new locks: {granted} \
                 granted, {refused} refused",
                begun.elapsed()
            );
        }
        sleep(Duration::from_millis(100)).await;
    }
    if let Some(why) = why {
        println!("{phase}: the last refusal: {why}");
    }
}

/// Starts `n` callers that wait for one lock. Returns true if each caller acquired the lock.
async fn waiters(n: usize) -> bool {
    let (_servers, redlock) = servers(1).await;
    let (turns, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mutex = redlock.mutex("hot").acquire_timeout(Duration::from_secs(3_600));
    let mutex = mutex.build().expect("a mutex");
    let first = mutex.acquire().await.expect("it is free");
    let mut all = JoinSet::new();
    for _ in 0..n {
        let (mutex, turns, failed) = (mutex.clone(), Arc::clone(&turns), Arc::clone(&failed));
        all.spawn(async move {
            match mutex.acquire().await {
                Ok(guard) => {
                    turns.fetch_add(1, Ordering::Relaxed);
                    drop(guard.release().await);
                }
                Err(_) => _ = failed.fetch_add(1, Ordering::Relaxed),
            }
        });
    }
    // After this wait, each caller has sent an acquire and has been refused, because the lock is
    // held.
    sleep(Duration::from_secs(5 + n as u64 / 10_000)).await;
    drop(first.release().await);
    let begun = Instant::now();
    let (mut before, mut still) = (0, 0);
    while !all.is_empty() && still < 30 {
        sleep(Duration::from_secs(1)).await;
        while all.try_join_next().is_some() {}
        let now = turns.load(Ordering::Relaxed);
        println!("{:.0?}: {} turns, {} waiting", begun.elapsed(), now - before, all.len());
        still = if now == before { still + 1 } else { 0 };
        before = now;
    }
    let per_second = before as f64 / begun.elapsed().as_secs_f64();
    let failed = failed.load(Ordering::Relaxed);
    println!(
        "{before} turns in {:.1?}, {per_second:.0} a second; {failed} failed",
        begun.elapsed()
    );
    before == n
}

/// Leads `n` elections. Returns true if no leadership was lost.
async fn elections(n: usize) -> bool {
    let (_servers, redlock) = servers(1).await;
    let lost = Arc::new(AtomicUsize::new(0));
    let (leading, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let begun = Instant::now();
    let mut all = JoinSet::new();
    for i in 0..n {
        let redlock = redlock.clone();
        let [lost, leading, failed] = [&lost, &leading, &failed].map(Arc::clone);
        all.spawn(async move {
            let election = redlock.election(format!("seat-{i}")).build().expect("an election");
            match election.campaign("me").await {
                Ok(leadership) => {
                    leading.fetch_add(1, Ordering::Relaxed);
                    leadership.lost().await;
                    lost.fetch_add(1, Ordering::Relaxed);
                }
                Err(e) => {
                    if failed.fetch_add(1, Ordering::Relaxed) == 0 {
                        println!("the first failure: {e}");
                    }
                }
            }
        });
    }
    let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    let mut all_lead = None;
    while all_lead.is_none_or(|since: Instant| since.elapsed() < SPAN) && begun.elapsed() < 3 * SPAN
    {
        sleep(Duration::from_secs(5)).await;
        if of(&leading) + of(&failed) == n {
            all_lead.get_or_insert_with(Instant::now);
        }
        println!(
            "{:.0?}: {} lead, {} failed, {} lost",
            begun.elapsed(),
            of(&leading),
            of(&failed),
            of(&lost)
        );
    }
    of(&lost) == 0 && of(&leading) == n
}
