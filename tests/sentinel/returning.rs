//! A master is frozen and replaced, comes back unchanged, and is promoted again. Nothing on it says
//! that another server was the master in between (quarantine 16 and 17).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use palisade::error::{AcquireError, NodeOutcome};
use palisade::idempotency::ParkedReason;
use palisade::internal::lineage::Marker;
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

/// A client has used the first master, which is frozen now, and then its successor.
struct Replaced {
    groups: Groups,
    used: Client,
    /// Executed by the successor.
    requests: Vec<Request>,
    /// Identity and marker of the first master.
    unchanged: Vec<String>,
    before: Marker,
}

async fn replaced() -> Replaced {
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
    let (unchanged, before) = (identity(&servers[0]), marker::at(&servers[0]));
    let sees = |sentinel: &String| {
        cli(sentinel, &["SENTINEL", "REPLICAS", &name]).contains("slave-priority\n0\n")
    };
    until("the Sentinels see the priority", || sentinels.iter().all(sees)).await;

    groups.break_("freeze", 0, &["--server", "a1"]);
    let mut requests = Vec::new();
    for what in ["one", "two", "three"] {
        requests.push(used.executed(what).await);
    }
    Replaced { groups, used, requests, unchanged, before }
}

/// One client uses the successor, and goes on or ends before the first master is promoted again.
/// Another one starts then.
async fn returns(goes_on: bool) {
    let Replaced { groups, used, requests, unchanged, before } = replaced().await;
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
    let first = &groups.servers(0)[0];
    let after = marker::at(first);
    assert_eq!(identity(first), unchanged, "it is the same process with the same data");
    assert!(after.epoch > before.epoch && after.history != before.history, "{after:?}");
    after_a_quarantine(&granted, resumed);
    are_forgotten(&requests, &clients).await;
}

fn after_a_quarantine(granted: &[Granted], since: Instant) {
    assert!(granted.iter().any(|granted| granted.refused), "nothing was refused");
    for Granted { at, .. } in granted {
        let waited = at.duration_since(since);
        assert!(waited >= TTL + WINDOW, "granted after {waited:?}, before a quarantine was over");
    }
}

/// And new ones are executed.
async fn are_forgotten(requests: &[Request], clients: &[&Client]) {
    for request in requests {
        for client in clients {
            let got = client.run(request).await;
            let is_forgotten = matches!(&got, Outcome::Parked(parked)
                if matches!(parked.reason, ParkedReason::Forgotten) && parked.undecided);
            assert!(is_forgotten, "{}: {got:?}", request.key);
        }
        assert_eq!(request.runs.load(SeqCst), 1, "{}", request.key);
    }
    for client in clients {
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

/// A person makes the first master the master again. For the Sentinels it is a new group in epoch
/// 0, so only the memory of the client that is at work says that there was another master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_a_person_puts_back_begins_with_a_quarantine_for_who_is_at_work() {
    let Replaced { groups, used, requests, unchanged, before } = replaced().await;
    let (name, sentinels, servers) = (groups.name(0), groups.sentinels(0), groups.servers(0));
    let tell = |at: &String, words: &[&str]| assert_eq!(cli(at, words), "OK", "{words:?}");
    let (host, port) = servers[0].rsplit_once(':').expect("host:port");
    assert!(marker::at(&servers[1]).epoch > before.epoch, "the successor's");
    // Else they make the first master a replica as soon as it is seen again.
    for sentinel in &sentinels {
        tell(sentinel, &["SENTINEL", "REMOVE", &name]);
    }
    for other in &servers[1..] {
        tell(other, &["REPLICAOF", host, port]);
    }
    let resumed = Instant::now();
    groups.break_("resume", 0, &["--server", "a1"]);
    let follow = || cli(&servers[0], &["INFO", "replication"]).contains("connected_slaves:2");
    until("both others to follow", follow).await;
    for sentinel in &sentinels {
        tell(sentinel, &["SENTINEL", "MONITOR", &name, host, port, "2"]);
        tell(sentinel, &["SENTINEL", "SET", &name, "down-after-milliseconds", "3000"]);
    }

    let granted = [used.granted("returned").await];
    let after = marker::at(&servers[0]);
    assert_eq!(identity(&servers[0]), unchanged, "it is the same process with the same data");
    assert_eq!((before.epoch, after.epoch), (0, 0), "the epoch says nothing");
    assert_ne!(after.history, before.history, "{after:?}");
    after_a_quarantine(&granted, resumed);
    are_forgotten(&requests, &[&used, &Client::new(&groups)]).await;
}
