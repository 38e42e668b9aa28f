//! Many clients acquire a lock of the same name. This benchmark measures the time from a release to
//! the lock of the next holder, and how evenly the clients get their turns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::Args;
use super::contenders::{Contender as _, Ours};
use super::delay::delayed;
use super::row::Row;
use super::server::Server;
use super::stats::{cpu, quantile_us};

/// The client that released last, and the time of its release.
type Last = Arc<Mutex<Option<(usize, Instant)>>>;

/// Measures the time from a release to the next holder. Each client is a `Redlock` handle with its
/// own connections, as in another process. `delay` is the delay in each direction between clients
/// and servers. With a delay, the result depends mainly on the protocol. Without a delay, it also
/// depends on the order in which the machine runs the clients.
pub(crate) async fn measure(args: &Args, nodes: usize, runtime: &str, delay: Duration) {
    let servers: Vec<Server> = (0..nodes).map(|_| Server::start(&[])).collect();
    let at = |server: &Server| {
        if delay.is_zero() { server.url() } else { delayed(&server.addr(), delay) }
    };
    let urls: Vec<String> = servers.iter().map(at).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let last = Last::default();
    let mut holders = Vec::new();
    let lone = Ours::connect(&urls);
    let mut trips = round_trips(&lone).await;
    for me in 0..args.clients {
        let (ours, stop, last) = (Ours::connect(&urls), Arc::clone(&stop), Arc::clone(&last));
        let hold = Duration::from_micros(args.hold_us);
        holders.push(tokio::spawn(client((me, hold), ours, stop, last)));
    }
    let used = || servers.iter().map(|server| cpu(server.pid())).sum::<f64>();
    let before = used();
    tokio::time::sleep(Duration::from_secs_f64(args.seconds * 10.0)).await;
    let spent = used() - before;
    stop.store(true, Ordering::Relaxed);
    let (mut turns, mut waits, mut took) = (Vec::new(), Vec::new(), Vec::new());
    for holder in holders {
        let (n, h, t) = holder.await.expect("a client");
        turns.push(n);
        waits.extend(h);
        took.extend(t);
    }
    waits.sort_unstable();
    took.sort_unstable();
    let (fewest, most) = (turns.iter().min().copied(), turns.iter().max().copied());
    let share = f64::from(fewest.unwrap_or(0)) / f64::from(most.unwrap_or(0).max(1));
    let (half, rare) = (quantile_us(&waits, 0.5), quantile_us(&waits, 0.99));
    let all = turns.iter().sum::<u32>();
    trips.extend(round_trips(&lone).await);
    trips.sort_unstable();
    let trip = quantile_us(&trips, 0.5);
    // The clients of this benchmark sleep before each release, so the servers were idle before it.
    // The single caller of `round_trips` keeps its servers busy. So the row compares the time to
    // the next holder with both: the time of such a release, and that caller's round trip.
    let release = quantile_us(&took, 0.5);
    Row::default()
        .value("runtime", "runtime", runtime)
        .value("nodes", "nodes", nodes)
        .value("delay µs", "delay_us", delay.as_micros())
        .value("clients", "clients", args.clients)
        .value("turns", "turns", all)
        .figure("next holder p50 µs", "handoff_p50_us", 0, half)
        .figure("round trip of a lone caller µs", "round_trip_us", 0, trip)
        .figure("round trips", "handoff_over_round_trip", 1, half / trip)
        .figure("release µs", "release_p50_us", 0, release)
        .figure("releases", "handoff_over_release", 1, half / release)
        .figure("next holder p99 µs", "handoff_p99_us", 0, rare)
        .figure("servers' µs a turn", "servers_cpu_us", 1, spent / f64::from(all.max(1)))
        .figure("least over most turns", "turns_min_over_max", 2, share)
        .print(args.json);
}

/// Runs one client. Returns how often the client had the lock, the times from another client's
/// release to each lock of this client, and the durations of this client's releases.
async fn client(
    (me, hold): (usize, Duration),
    ours: Ours,
    stop: Arc<AtomicBool>,
    last: Last,
) -> (u32, Vec<Duration>, Vec<Duration>) {
    let (mut turns, mut waits, mut took) = (0_u32, Vec::new(), Vec::new());
    while !stop.load(Ordering::Relaxed) {
        let guard = ours.0.mutex("wanted").build().unwrap().acquire().await.expect("a turn");
        let got = Instant::now();
        let before = *last.lock().expect("no panic");
        if let Some((_, released)) = before.filter(|(who, _)| *who != me) {
            waits.push(got.saturating_duration_since(released));
        }
        turns += 1;
        if !hold.is_zero() {
            tokio::time::sleep(hold).await;
        }
        let begun = Instant::now();
        *last.lock().expect("no panic") = Some((me, begun));
        let _ = guard.release().await;
        took.push(begun.elapsed());
    }
    (turns, waits, took)
}

/// Returns the durations of the requests of a caller without rivals. Each pair of acquire and
/// release has two requests.
async fn round_trips(lone: &Ours) -> Vec<Duration> {
    let mut took = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(500) {
        let begun = Instant::now();
        assert!(lone.pair("alone".to_owned()).await, "nobody else wants it");
        took.push(begun.elapsed() / 2);
    }
    took
}
