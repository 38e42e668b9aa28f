//! A master is frozen and replaced, comes back unchanged, and is promoted again. Nothing on it says
//! that another server was the master in between (quarantine 16 and 17).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use palisade::error::{AcquireError, NodeOutcome};
use palisade::idempotency::ParkedReason;
use palisade::{Failed, Idempotency, Outcome, Redlock, SentinelNode, TryAcquire};
use tokio::time::{Instant, sleep};

use crate::support::group::{Groups, cli};
use crate::support::marker;
use crate::support::wait::until;

const TTL: Duration = Duration::from_secs(4);
/// The groups' L: max-lag 1 s, and two more.
const WINDOW: Duration = Duration::from_secs(3);
/// Time limit of a wait. Only a hang exceeds it.
const PATIENCE: Duration = Duration::from_secs(400);
const PAUSE: Duration = Duration::from_millis(50);

struct Client {
    redlock: Redlock,
    orders: Idempotency,
}

struct Request {
    key: String,
    made: SystemTime,
    runs: Arc<AtomicU32>,
}

struct Granted {
    at: Instant,
    /// True if the node was in quarantine before.
    refused: bool,
}

impl Client {
    fn new(groups: &Groups) -> Self {
        let node = SentinelNode::builder(groups.name(0), groups.sentinels(0)).trust_fresh(true);
        let redlock = Redlock::builder().ttl(TTL).max_ttl(TTL).node(node.build().unwrap());
        let redlock = redlock.build().unwrap();
        let orders = redlock.idempotency("orders").at_most_once().build().unwrap();
        Self { redlock, orders }
    }

    /// Tries to acquire locks with new names until one is granted.
    async fn granted(&self, what: &str) -> Granted {
        let (begun, mut refused) = (Instant::now(), false);
        for n in 0.. {
            let mutex = self.redlock.mutex(format!("{what}-{n}")).build().unwrap();
            let got = mutex.try_acquire().await;
            if let Ok(TryAcquire::Acquired(guard)) = got {
                let at = Instant::now();
                let _ = guard.release().await;
                return Granted { at, refused };
            }
            refused |= matches!(&got, Err(AcquireError::NoQuorum(no))
                if matches!(no.nodes[0].1, NodeOutcome::Quarantined { .. }));
            assert!(begun.elapsed() < PATIENCE, "{what}: {got:?}");
            sleep(PAUSE).await;
        }
        unreachable!()
    }

    /// Runs a request until it has an outcome.
    async fn run(&self, request: &Request) -> Outcome<u32> {
        let begun = Instant::now();
        loop {
            let runs = Arc::clone(&request.runs);
            let handler = async move { Ok::<_, Failed>(runs.fetch_add(1, SeqCst) + 1) };
            let call = self.orders.key(&request.key).created_at(request.made);
            let got = call.run(|_| handler).await;
            if let Ok(outcome) = got {
                return outcome;
            }
            assert!(begun.elapsed() < PATIENCE, "{}: {got:?}", request.key);
            sleep(PAUSE).await;
        }
    }

    /// Makes new requests until one is executed. Those that were made in a quarantine, or soon
    /// after the loss before it, may be parked.
    async fn executed(&self, what: &str) -> Request {
        let begun = Instant::now();
        for n in 0.. {
            let (key, made) = (format!("{what}-{n}"), SystemTime::now());
            let request = Request { key, made, runs: Arc::default() };
            let got = self.run(&request).await;
            if matches!(got, Outcome::Executed { .. }) {
                return request;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: {got:?}");
            sleep(PAUSE).await;
        }
        unreachable!()
    }
}

/// Returns the process and the name of the data of the server at `at`.
fn identity(at: &str) -> Vec<String> {
    let names = ["run_id:", "master_replid:"];
    let info = cli(at, &["INFO"]);
    let lines = info.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
    lines.map(|line| line.trim().to_owned()).collect()
}

/// One client uses the successor, and goes on or ends before the first master is promoted again.
/// Another one starts then.
async fn returns(goes_on: bool) {
    let groups = Groups::up(1);
    let (name, sentinels, servers) = (groups.name(0), groups.sentinels(0), groups.servers(0));
    for sentinel in &sentinels {
        // If the Sentinels begin a failover before they see the first master again, they wait for
        // twice this time before the next one.
        let words = ["SENTINEL", "SET", &name, "failover-timeout", "6000"];
        assert_eq!(cli(sentinel, &words), "OK");
    }
    // The second server alone may replace the first one.
    assert_eq!(cli(&servers[2], &["CONFIG", "SET", "replica-priority", "0"]), "OK");
    let used = Client::new(&groups);
    used.granted("before").await;
    let first = || (identity(&servers[0]), marker::at(&servers[0]));
    let (unchanged, before) = first();
    let sees = |sentinel: &String| {
        cli(sentinel, &["SENTINEL", "REPLICAS", &name]).contains("slave-priority\n0\n")
    };
    until("the Sentinels see the priority", || sentinels.iter().all(sees)).await;

    groups.break_("freeze", 0, &["--server", "a1"]);
    let mut requests = Vec::new();
    for what in ["one", "two", "three"] {
        requests.push(used.executed(what).await);
    }
    let used = if goes_on {
        Some(used)
    } else {
        let _ = used.redlock.close(TTL).await;
        drop(used);
        None
    };
    // The Sentinels make a server that says it is a master a replica of a living one. So the
    // successor is dead before the first master is seen again.
    groups.break_("kill", 0, &["--server", "a2"]);
    let resumed = Instant::now();
    groups.break_("resume", 0, &["--server", "a1"]);

    let new = Client::new(&groups);
    let clients: Vec<&Client> = used.iter().chain([&new]).collect();
    let granted = join_all(clients.iter().map(|client| client.granted("returned"))).await;
    let (now, after) = first();
    assert_eq!(now, unchanged, "it is the same process with the same data");
    assert!(after.epoch > before.epoch && after.history != before.history, "{after:?}");
    assert!(granted.iter().any(|granted| granted.refused), "nothing was refused");
    for Granted { at, .. } in &granted {
        let waited = at.duration_since(resumed);
        assert!(waited >= TTL + WINDOW, "granted after {waited:?}, before a quarantine was over");
    }

    for request in &requests {
        for client in &clients {
            let got = client.run(request).await;
            let is_forgotten = matches!(&got, Outcome::Parked(parked)
                if matches!(parked.reason, ParkedReason::Forgotten) && parked.undecided);
            assert!(is_forgotten, "{}: {got:?}", request.key);
        }
        assert_eq!(request.runs.load(SeqCst), 1, "{}", request.key);
    }
    for client in &clients {
        let request = client.executed("after").await;
        assert_eq!(request.runs.load(SeqCst), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_returns_unchanged_begins_with_a_quarantine() {
    returns(true).await;
}

/// Only the Sentinels' epoch says that there was another master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_returns_after_all_clients_ended_begins_with_a_quarantine() {
    returns(false).await;
}
