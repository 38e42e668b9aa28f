//! Anybody on a shared server can publish hints: a flood of them wakes nobody who did not ask, and
//! who asked now and then.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use palisade::Redlock;

use super::*;

/// Publishes as fast as the server takes it, until it is dropped.
struct Publisher {
    over: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Publisher {
    fn start(server: &Server, name: impl Fn(u64) -> String + Send + 'static) -> Self {
        const AT_ONCE: usize = 500;
        let mut stream = TcpStream::connect(server.addr()).expect("it listens");
        let (over, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (ends, counts) = (Arc::clone(&over), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            let hints = (0..AT_ONCE as u64).map(|i| {
                let name = name(i);
                format!("PUBLISH palisade:changed \"{name}\"\r\n")
            });
            let chunk: String = hints.collect();
            let mut answers = vec![0; 64 * 1024];
            while !ends.load(Ordering::Relaxed) {
                stream.write_all(chunk.as_bytes()).expect("it takes them");
                let mut lines = 0;
                while lines < AT_ONCE {
                    let n = stream.read(&mut answers).expect("it answers");
                    assert!(n > 0, "the server closed the connection");
                    lines += answers[..n].iter().filter(|b| **b == b'\n').count();
                }
                counts.fetch_add(AT_ONCE as u64, Ordering::Relaxed);
            }
        });
        Self { over, sent, thread: Some(thread) }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn scripts(server: &Server) -> u64 {
    let stats = server.cli(&["info", "commandstats"]);
    let calls = stats.lines().find_map(|l| l.strip_prefix("cmdstat_evalsha:calls="));
    calls.and_then(|c| c.split(',').next()).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// The median of so many acquires, one after the other, of a name that nobody else wants.
async fn median(redlock: &Redlock, name: &str, n: usize) -> Duration {
    let mut took = Vec::new();
    for _ in 0..n {
        let begun = Instant::now();
        let guard = redlock.mutex(name).acquire().await.expect("it is free");
        took.push(begun.elapsed());
        assert!(guard.release().await.is_released());
    }
    took.sort_unstable();
    took[n / 2]
}

async fn flooded(name: impl Fn(u64) -> String + Send + 'static) -> (Duration, Duration, f64) {
    const WAITERS: usize = 8;
    const ROUNDS: usize = 200;
    let server = Server::start(&[]);
    let handle = || {
        let node = fresh(&server);
        Redlock::builder().node(node).node_deadline(Duration::from_secs(2)).build().unwrap()
    };
    let (holds, waits) = (handle(), handle());
    let held = holds.mutex("waited").acquire().await.unwrap();
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let mutex = waits.mutex("waited").wait(Duration::from_secs(120));
            tokio::spawn(async move { mutex.acquire().await.map(drop) })
        })
        .collect();
    while server.cli(&["exists", "{waited}:queue"]) != "1" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let quiet = median(&waits, "free", ROUNDS).await;
    let publisher = Publisher::start(&server, name);
    // Whatever may come at once has come.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (begun, before) = (Instant::now(), scripts(&server));
    let loud = median(&waits, "free", ROUNDS).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asked = scripts(&server) - before;
    let seconds = begun.elapsed().as_secs_f64();
    assert!(publisher.sent() > 2_000, "it was no flood: {}", publisher.sent());
    drop(publisher);
    assert!(held.is_valid());
    assert!(held.release().await.is_released());
    for waiter in waiting {
        waiter.await.unwrap().expect("who waits is served in the end");
    }
    (quiet, loud, (asked as f64 - 2.0 * ROUNDS as f64) / seconds)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_hints_about_other_names_hinders_nobody() {
    let (quiet, loud, asked) = flooded(|i| format!("a stranger's {i}")).await;
    assert!(loud < quiet * 40, "{loud:?} instead of {quiet:?}");
    assert!(asked < 60.0, "those who wait asked {asked} times a second");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_hints_about_one_name_wakes_those_who_wait_now_and_then() {
    let (quiet, loud, asked) = flooded(|_| "waited".to_owned()).await;
    assert!(loud < quiet * 40, "{loud:?} instead of {quiet:?}");
    assert!(asked < 200.0, "those who wait asked {asked} times a second");
}
