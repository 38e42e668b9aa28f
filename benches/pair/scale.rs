//! A benchmark of growth: processor time and memory with more names, more held locks and more
//! processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};

use super::Args;
use super::case::{Case, run};
use super::contenders::{Contender, Ours, TTL};
use super::row::Row;
use super::server::Server;
use super::stats::{cpu, resident};

/// Number of concurrent tasks. A single task would mostly wait for replies.
const TASKS: usize = 64;

pub(crate) async fn all(args: &Args) {
    for names in [1_000, 10_000, 100_000, 1_000_000] {
        of_names(args, names).await;
    }
    for held in [1_000, 10_000, 100_000] {
        if held <= args.held {
            of_held(args, held).await;
        }
    }
    for processes in [1, 2, 4, 8] {
        of_processes(args, processes).await;
    }
}

/// Measures pairs of acquire and release. The pairs use `names` names in turn. The fence (the key
/// with the last fencing token) of each name stays on the server.
async fn of_names(args: &Args, names: usize) {
    let server = Server::start(&[]);
    let ours = Arc::new(Ours::connect(&[server.url()]));
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let (before, spent) = (resident(), cpu(server.pid()));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (ours, next) = (Arc::clone(&ours), Arc::clone(&next));
            tokio::spawn(async move {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= names {
                        return;
                    }
                    assert!(ours.pair(format!("name:{i}")).await, "nobody else wants it");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a task");
    }
    let per_s = names as f64 / started.elapsed().as_secs_f64();
    let each = (cpu(server.pid()) - spent) / names as f64;
    let grown = resident().saturating_sub(before);
    let memory = server.cli(&["info", "memory"]);
    let used = memory.lines().find_map(|l| l.trim().strip_prefix("used_memory:"));
    let used: f64 = used.and_then(|n| n.parse().ok()).unwrap_or(f64::NAN);
    let on_server = used / names as f64;
    Row::default()
        .value("names", "names", names)
        .figure("pairs/s", "ours_pairs_per_s", 0, per_s)
        .figure("server µs a pair", "server_cpu_us", 1, each)
        .figure("server bytes a name", "server_bytes_per_name", 0, on_server)
        .value("this process grew by bytes", "client_grew_bytes", grown)
        .print(args.json);
}

/// Measures the cost of held locks: memory, and processor time while they are renewed.
pub(crate) async fn of_held(args: &Args, held: usize) {
    let server = Server::start(&[]);
    let ours = Ours::connect(&[server.url()]);
    drop(ours.0.mutex("warm").build().unwrap().acquire().await.expect("a lock"));
    let alive_tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (before, tasks_before) = (resident(), alive_tasks());
    let began = Instant::now();
    let one = |i: usize| {
        let mutex = ours.0.mutex(format!("held:{i}")).build().unwrap();
        async move { mutex.acquire().await }
    };
    let guards: Vec<_> = stream::iter((0..held).map(one))
        .buffered(TASKS)
        .map(|guard| guard.expect("a lock"))
        .collect()
        .await;
    let took = began.elapsed();
    let (spent, on_server) = (cpu(std::process::id()), cpu(server.pid()));
    tokio::time::sleep(TTL + Duration::from_secs(1)).await;
    let us = (TTL + Duration::from_secs(1)).as_secs_f64() * 1e6;
    let share = (cpu(std::process::id()) - spent) / us * 100.0;
    let server_share = (cpu(server.pid()) - on_server) / us * 100.0;
    let alive = guards.iter().filter(|g| g.is_valid()).count();
    let bytes = resident().saturating_sub(before) / held;
    let tasks = alive_tasks().saturating_sub(tasks_before);
    Row::default()
        .value("held", "held", held)
        .value("taken in ms", "acquired_in_ms", took.as_millis())
        .value("alive after one ttl", "alive_after_ttl", alive)
        .value("bytes each", "bytes_per_lock", bytes)
        .value("more tasks", "tasks", tasks)
        .figure("% of a core", "client_cpu_percent", 1, share)
        .figure("at the server", "server_cpu_percent", 1, server_share)
        .print(args.json);
}

/// Measures one server that is used by `processes` processes. Each process has eight tasks.
async fn of_processes(args: &Args, processes: usize) {
    let server = Server::start(&[]);
    let me = std::env::current_exe().expect("this program");
    let before = cpu(server.pid());
    let children: Vec<_> = (0..processes)
        .map(|i| {
            let mut child = tokio::process::Command::new(&me);
            child.args(["--worker", &server.url(), "--seconds", &args.seconds.to_string()]);
            child.args(["--worker-name", &format!("p{i}")]);
            child.stdout(std::process::Stdio::piped()).kill_on_drop(true);
            child.spawn().expect("a process")
        })
        .collect();
    let mut per_s = 0.0;
    let mut pairs = 0.0;
    for child in children {
        let said = child.wait_with_output().await.expect("a process").stdout;
        let said = String::from_utf8_lossy(&said);
        let mut figures = said.split_whitespace().filter_map(|n| n.parse::<f64>().ok());
        per_s += figures.next().expect("pairs a second");
        pairs += figures.next().expect("pairs");
    }
    let each = (cpu(server.pid()) - before) / pairs;
    Row::default()
        .value("processes", "processes", processes)
        .figure("pairs/s in all", "ours_pairs_per_s", 0, per_s)
        .figure("server µs a pair", "server_cpu_us", 1, each)
        .print(args.json);
}

/// Runs one of the processes that use the server in the measurement [`of_processes`].
pub(crate) async fn worker(args: &Args, url: &str) {
    let ours: Arc<dyn Contender> = Arc::new(Ours::connect(&[url.to_owned()]));
    let case = Case { nodes: 1, tasks: 8, frozen: false, delay: Duration::ZERO };
    let span = Duration::from_secs_f64(args.seconds);
    let done = run(&ours, &args.worker_name, case, &[], span).await;
    println!("{} {}", done.per_s, done.latencies.len());
}
