//! Any client of a shared server can publish hints, which wake callers that wait for a lock. A
//! flood of hints wakes only these callers, and each of them only from time to time.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use palisade::Redlock;
use palisade::node::spi::NodeSignal;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;

use super::*;

/// A thread that publishes hints (wake-up messages) as fast as the server accepts them, until the
/// publisher is dropped.
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
                    lines += answers[..n].split(|b| *b == b'\n').count() - 1;
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

/// Returns the median time of `n` acquires of the lock `name`, one after the other. No other caller
/// wants this lock.
async fn median(redlock: &Redlock, name: &str, n: usize) -> Duration {
    let mut took = Vec::new();
    for _ in 0..n {
        let begun = Instant::now();
        let guard = redlock.mutex(name).build().unwrap().acquire().await.expect("it is free");
        took.push(begun.elapsed());
        assert!(guard.release().await.is_ok());
    }
    took.sort_unstable();
    took[n / 2]
}

/// Floods the server with hints (wake-up messages) while callers wait. Asserts that acquires of
/// other names stay fast, and that the callers that wait send few requests. Returns the number of
/// hints that the node passed to its handle.
async fn flooded(name: impl Fn(u64) -> String + Send + 'static) -> u64 {
    const WAITERS: usize = 8;
    const ROUNDS: usize = 200;
    let server = Server::start(&[]);
    let handle = |node: RedisNode| {
        Redlock::builder().node(node).node_deadline(Duration::from_secs(2)).build().unwrap()
    };
    let node = fresh(&server);
    let mut events = node.events();
    let (holds, waits) = (handle(fresh(&server)), handle(node));
    let held = holds.mutex("waited").build().unwrap().acquire().await.unwrap();
    let waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let mutex =
                waits.mutex("waited").acquire_timeout(Duration::from_secs(120)).build().unwrap();
            tokio::spawn(async move { mutex.acquire().await.map(drop) })
        })
        .collect();
    while server.cli(&["exists", "{waited}:queue"]) != "1" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let quiet = median(&waits, "free", ROUNDS).await;
    let publisher = Publisher::start(&server, name);
    // The first hints (wake-up messages) wake all callers that wait for the lock. Wait until this
    // burst of requests has ended, so that the measurement below does not count it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (begun, before) = (Instant::now(), server.calls("evalsha"));
    let loud = median(&waits, "free", ROUNDS).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let requests = server.calls("evalsha") - before;
    let hints = count_hints(&mut events);
    let seconds = begun.elapsed().as_secs_f64();
    assert!(publisher.sent() > 2_000, "it was no flood: {}", publisher.sent());
    drop(publisher);
    assert!(held.is_valid());
    assert!(held.release().await.is_ok());
    for waiter in waiting {
        waiter.await.unwrap().expect("who waits is served in the end");
    }
    assert!(loud < quiet * 40, "{loud:?} instead of {quiet:?}");
    let requests = requests.saturating_sub(2 * ROUNDS as u64);
    assert!((requests as f64) < 130.0 * seconds + 20.0, "{requests} requests in {seconds} s");
    hints
}

/// Returns the number of received hints (wake-up messages), including the hints that the channel
/// dropped.
fn count_hints(events: &mut Receiver<NodeSignal>) -> u64 {
    let mut hints = 0;
    loop {
        match events.try_recv() {
            Ok(NodeSignal::Changed(_)) => hints += 1,
            Ok(_) => {}
            Err(TryRecvError::Lagged(missed)) => hints += missed,
            Err(_) => return hints,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_hints_about_other_names_goes_no_further() {
    let hints = flooded(|i| format!("a stranger's {i}")).await;
    // These few hints (wake-up messages) do not come from the test's publisher. The node itself
    // sends one hint to each caller that began to wait before the subscription was ready.
    assert!(hints <= 8, "{hints} hints");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_hints_wakes_waiters_now_and_then() {
    let hints = flooded(|_| "waited".to_owned()).await;
    assert!(hints < 1_000, "{hints} hints");
}
