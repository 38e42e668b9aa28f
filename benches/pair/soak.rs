//! One of five nodes freezes under full load and later runs again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Args;
use super::contenders::{Contender, Ours, TTL};
use super::server::Server;
use super::stats::resident;

const TASKS: usize = 64;

/// Prints memory and throughput each second. At the end prints the number of locks that are left
/// after all leases have ended.
pub(crate) async fn frozen(args: &Args, span: Duration) {
    let servers: Vec<Server> = (0..5).map(|_| Server::start(&[])).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let ours = Arc::new(Ours::connect(&urls));
    let (stop, pairs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..TASKS)
        .map(|t| {
            let (ours, stop, pairs) = (Arc::clone(&ours), Arc::clone(&stop), Arc::clone(&pairs));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    if ours.pair(format!("soak:{t}")).await {
                        pairs.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    let mut rows = Vec::new();
    let phases = [("healthy", 5), ("frozen", span.as_secs()), ("thawed", 5)];
    for (phase, seconds) in phases {
        match phase {
            "frozen" => servers[4].freeze(),
            "thawed" => servers[4].resume(),
            _ => {}
        }
        for second in 0..seconds {
            let (before, began) = (pairs.load(Ordering::Relaxed), Instant::now());
            tokio::time::sleep(Duration::from_secs(1)).await;
            let done = (pairs.load(Ordering::Relaxed) - before) as f64;
            let per_s = done / began.elapsed().as_secs_f64();
            let memory = resident() as f64 / f64::from(1 << 20);
            if args.json {
                println!(
                    "{{\"phase\":\"{phase}\",\"second\":{second},\"ours_pairs_per_s\":{per_s:.0},\
                     \"resident_mib\":{memory:.1}}}"
                );
            }
            rows.push((phase, per_s, memory));
        }
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("a task");
    }
    tokio::time::sleep(TTL + Duration::from_secs(2)).await;
    // The pattern matches only the keys of locks. The other keys of a lock begin with a brace.
    let here = |s: &Server| s.cli(&["--scan", "--pattern", "soak:*"]);
    let left: usize = servers.iter().map(|s| here(s).split_whitespace().count()).sum();
    if args.json {
        return println!("{{\"locks_left\":{left}}}");
    }
    let of = |wanted: &str, figure: fn(&(&str, f64, f64)) -> f64| -> Vec<f64> {
        rows.iter().filter(|(phase, ..)| *phase == wanted).map(figure).collect()
    };
    for phase in ["healthy", "frozen", "thawed"] {
        let (pace, memory) = (of(phase, |r| r.1), of(phase, |r| r.2));
        let range = |v: &[f64]| {
            let least = v.iter().copied().fold(f64::INFINITY, f64::min);
            (least, v.iter().copied().fold(0.0, f64::max))
        };
        let ((a, b), (c, d)) = (range(&pace), range(&memory));
        println!("{phase:>8}: {a:.0}-{b:.0} pairs/s by second, {c:.1}-{d:.1} MiB resident");
        if phase == "thawed" {
            println!("          the first second after the thaw: {:.0} pairs/s", pace[0]);
        }
    }
    println!("{left} locks left on any node, {TTL:?} and more after the last pair");
}
