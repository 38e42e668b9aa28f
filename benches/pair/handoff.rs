//! One name that everybody wants: how long a lock that was released waits for its next holder, and
//! whether all have their turns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::Args;
use super::contenders::Ours;
use super::server::Server;
use super::stats::quantile_us;

const CLIENTS: usize = 16;
const HOLD: Duration = Duration::from_millis(1);

/// Each client is a handle with connections of its own, as in another process.
pub(crate) async fn measure(args: &Args, nodes: usize, runtime: &str) -> String {
    let servers: Vec<Server> = (0..nodes).map(|_| Server::start(&[])).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let stop = Arc::new(AtomicBool::new(false));
    // Who released last, and when.
    let last: Arc<Mutex<Option<(usize, Instant)>>> = Arc::default();
    let mut holders = Vec::new();
    for me in 0..CLIENTS {
        let (ours, stop, last) = (Ours::connect(&urls), Arc::clone(&stop), Arc::clone(&last));
        holders.push(tokio::spawn(async move {
            let (mut turns, mut waits) = (0_u32, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                let guard =
                    ours.0.mutex("wanted").build().unwrap().acquire().await.expect("a turn");
                let got = Instant::now();
                let before = *last.lock().expect("no panic");
                if let Some((_, released)) = before.filter(|(who, _)| *who != me) {
                    waits.push(got.saturating_duration_since(released));
                }
                turns += 1;
                tokio::time::sleep(HOLD).await;
                *last.lock().expect("no panic") = Some((me, Instant::now()));
                let _ = guard.release().await;
            }
            (turns, waits)
        }));
    }
    tokio::time::sleep(Duration::from_secs_f64(args.seconds * 10.0)).await;
    stop.store(true, Ordering::Relaxed);
    let (mut turns, mut waits) = (Vec::new(), Vec::new());
    for holder in holders {
        let (n, h) = holder.await.expect("a client");
        turns.push(n);
        waits.extend(h);
    }
    waits.sort_unstable();
    let (fewest, most) = (turns.iter().min().copied(), turns.iter().max().copied());
    let share = f64::from(fewest.unwrap_or(0)) / f64::from(most.unwrap_or(0).max(1));
    let (half, rare) = (quantile_us(&waits, 0.5), quantile_us(&waits, 0.99));
    let all = turns.iter().sum::<u32>();
    if args.json {
        return format!(
            "{{\"runtime\":\"{runtime}\",\"nodes\":{nodes},\"clients\":{CLIENTS},\"turns\":{all},\
             \"handoff_p50_us\":{half:.0},\"handoff_p99_us\":{rare:.0},\
             \"turns_min_over_max\":{share:.2}}}"
        );
    }
    format!(
        "{nodes} nodes, {CLIENTS} clients on one name: the next holder p50 {half:.0} µs, p99 \
         {rare:.0} µs after the release began; {all} turns, least over most {share:.2}"
    )
}
