//! Slots that move from one master to another: what they grant meanwhile, and what other slots do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use palisade::error::{AcquireError, NodeFault, NodeOutcome};
use palisade::node::ClusterNode;
use palisade::node::spi::{LockNode, Op, OwnerToken, Reply};
use palisade::{FencingToken, LockGuard, Moment, Redlock, TryAcquire};
use tokio::time::{Instant, sleep};

use crate::support::cluster::Cluster;
use crate::support::ops;

/// `cluster-node-timeout` of the clusters.
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// L of these clusters: for so long a word is relied on.
pub(crate) const WINDOW: Duration = Duration::from_secs(6);
pub(crate) const TTL: Duration = Duration::from_secs(3);
/// How long a slot grants nothing after it has another owner.
pub(crate) const QUARANTINE: Duration = TTL.saturating_add(WINDOW);
/// Of a lease that outlives a failover: more than L and a third of it for the renewal.
pub(crate) const LONG: Duration = Duration::from_secs(14);
/// Only a hang exceeds it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn node(cluster: &Cluster) -> ClusterNode {
    ClusterNode::builder(cluster.addresses()).trust_fresh(true).build().unwrap()
}

pub(crate) fn redlock(cluster: &Cluster) -> Redlock {
    redlock_for(cluster, TTL)
}

/// Returns a handle whose leases have this length.
pub(crate) fn redlock_for(cluster: &Cluster, ttl: Duration) -> Redlock {
    Redlock::builder()
        .ttl(ttl)
        .max_ttl(ttl)
        .node_deadline(Duration::from_millis(700))
        .node(node(cluster))
        .build()
        .unwrap()
}

/// Returns a name whose slot the master with this number had at the start.
pub(crate) fn name_at(cluster: &Cluster, master: usize, what: &str) -> String {
    let names = (0..).map(|n| format!("{what}-{n}"));
    let mut names = names.filter(|name| cluster.owner(cluster.slot(name)) == master);
    names.next().expect("there are enough")
}

pub(crate) async fn try_acquire(
    redlock: &Redlock,
    name: &str,
) -> Result<TryAcquire<LockGuard>, AcquireError> {
    redlock.mutex(name).build().unwrap().try_acquire().await
}

/// Returns how long the name was not granted, and the last refusal.
pub(crate) async fn until_granted(redlock: &Redlock, name: &str) -> (Duration, Option<String>) {
    let (begun, mut last) = (Instant::now(), None);
    loop {
        match try_acquire(redlock, name).await {
            Ok(TryAcquire::Acquired(guard)) => {
                let waited = begun.elapsed();
                guard.release().await.unwrap();
                return (waited, last);
            }
            other => last = Some(format!("{other:?}")),
        }
        assert!(begun.elapsed() < PATIENCE, "{name}: {last:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn fault(error: &AcquireError) -> Option<NodeFault> {
    match error {
        AcquireError::NoQuorum(no) => match &no.nodes[0].1 {
            NodeOutcome::Failed(e) => Some(e.fault()),
            _ => None,
        },
        _ => None,
    }
}

/// A busy machine may answer too late.
fn is_slow(got: &Result<TryAcquire<LockGuard>, AcquireError>) -> bool {
    let slow = [NodeFault::Timeout, NodeFault::PastDeadline, NodeFault::Busy];
    match got {
        Err(AcquireError::NoQuorum(no)) => match &no.nodes[0].1 {
            NodeOutcome::Failed(e) => slow.contains(&e.fault()),
            outcome => *outcome == NodeOutcome::Silent,
        },
        _ => false,
    }
}

/// Acquires and releases names of all slots until it is dropped, and counts what failed.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    /// On names that `chosen` allows.
    pub(crate) fn start(redlock: &Redlock, names: Vec<String>) -> Self {
        let (stop, done, failed) =
            <(Arc<AtomicBool>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let task = |name: String| {
            let (redlock, stop) = (redlock.clone(), Arc::clone(&stop));
            let (done, failed) = (Arc::clone(&done), Arc::clone(&failed));
            tokio::spawn(async move {
                while !stop.load(SeqCst) {
                    match try_acquire(&redlock, &name).await {
                        Ok(TryAcquire::Acquired(guard)) => {
                            let _ = guard.release().await;
                            done.fetch_add(1, SeqCst);
                        }
                        other if is_slow(&other) => {}
                        other => {
                            eprintln!("{name}: {other:?}");
                            failed.fetch_add(1, SeqCst);
                        }
                    }
                    sleep(Duration::from_millis(5)).await;
                }
            })
        };
        let tasks = names.into_iter().map(task).collect();
        Self { stop, done, failed, tasks }
    }

    pub(crate) async fn end(self) -> (usize, usize) {
        self.stop.store(true, SeqCst);
        for task in self.tasks {
            task.await.unwrap();
        }
        (self.done.load(SeqCst), self.failed.load(SeqCst))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_slot_that_moves_grants_nothing_and_its_holder_keeps_it() {
    // On a busy machine a client must not miss the word on a slot for a third of L.
    let (node_timeout, window) = (4 * NODE_TIMEOUT, Duration::from_secs(9));
    let ttl = 2 * window;
    let cluster = Cluster::start(3, 0, node_timeout);
    let (client, other) = (redlock_for(&cluster, ttl), redlock_for(&cluster, ttl));
    let moving = name_at(&cluster, 2, "moving");
    let slot = cluster.slot(&moving);
    let names: Vec<String> = (0..30).map(|n| format!("load-{n}")).collect();
    let names: Vec<_> = names.into_iter().filter(|name| cluster.slot(name) != slot).collect();
    for name in names.iter().chain([&moving]) {
        until_granted(&client, name).await;
    }
    let held = try_acquire(&client, &moving).await.unwrap().acquired().expect("it is free");
    let load = Load::start(&client, names);
    cluster.begin_move(slot, 2, 0);
    // Some keys of the lock are still at the source, and the one that is never there is not.
    let asked = Instant::now();
    loop {
        let refused = try_acquire(&other, &moving).await;
        assert!(!matches!(refused, Ok(TryAcquire::Acquired(_))), "two holders");
        if refused.as_ref().is_err_and(|e| fault(e) == Some(NodeFault::Server)) {
            break;
        }
        assert!(asked.elapsed() < PATIENCE, "{refused:?}");
    }
    // The target gets a higher epoch, in which it also has the slots that it had before.
    cluster.finish_move(slot, 2, 0);
    cluster.until_owned(slot, 0);
    let begun = Instant::now();
    while begun.elapsed() < ttl + window + Duration::from_secs(1) {
        assert!(held.is_valid(), "the holder renews in the quarantine: {:?}", begun.elapsed());
        let got = try_acquire(&other, &moving).await;
        assert!(!matches!(got, Ok(TryAcquire::Acquired(_))), "two holders");
        sleep(Duration::from_millis(100)).await;
    }
    held.release().await.unwrap();
    let (waited, last) = until_granted(&other, &moving).await;
    assert!(waited < Duration::from_secs(5), "{waited:?}: {last:?}");
    let (done, failed) = load.end().await;
    assert!(done > 100 && failed == 0, "{done} and {failed} of other slots");
}

/// The lock was moved, and the rest of its slot never left, with the marker of the history.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_is_closed_at_its_source_begins_a_new_history() {
    let cluster = Cluster::start(3, 0, NODE_TIMEOUT);
    // The new history begins long after the last renewal.
    let ttl = 2 * LONG;
    let (client, other) = (redlock_for(&cluster, ttl), redlock_for(&cluster, ttl));
    let name = name_at(&cluster, 2, "n");
    let slot = cluster.slot(&name);
    for client in [&client, &other] {
        until_granted(client, &name).await;
    }
    let held = try_acquire(&client, &name).await.unwrap().acquired().expect("it is free");
    cluster.begin_move(slot, 2, 0);
    let port = cluster.servers[0].port().to_string();
    let moved = cluster.servers[2].cli(&["migrate", "127.0.0.1", &port, &name, "0", "5000"]);
    assert_eq!(moved, "OK");
    // The words on the owner come from rounds, and one has to see it.
    sleep(WINDOW / 2).await;
    for n in [2, 0] {
        let closed = cluster.servers[n].cli(&["cluster", "setslot", &slot.to_string(), "stable"]);
        assert_eq!(closed, "OK");
    }
    let begun = Instant::now();
    while begun.elapsed() < ttl {
        assert!(held.is_valid(), "the holder puts it back: {:?}", begun.elapsed());
        let got = try_acquire(&other, &name).await;
        assert!(!matches!(got, Ok(TryAcquire::Acquired(_))), "two holders");
        sleep(Duration::from_millis(100)).await;
    }
    held.release().await.unwrap();
    let (waited, last) = until_granted(&other, &name).await;
    assert!(waited < ttl + WINDOW, "{waited:?}: {last:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_free_name_of_a_slot_that_moved_is_granted_after_the_quarantine() {
    let cluster = Cluster::start(3, 0, NODE_TIMEOUT);
    let client = redlock(&cluster);
    let name = name_at(&cluster, 0, "n");
    until_granted(&client, &name).await;
    cluster.move_slot(cluster.slot(&name), 0, 2);
    cluster.until_owned(cluster.slot(&name), 2);
    let (waited, last) = until_granted(&client, &name).await;
    let most = QUARANTINE + Duration::from_secs(4);
    let is_long = waited + Duration::from_secs(1) > QUARANTINE;
    assert!(is_long && waited < most, "{waited:?}: {last:?}");
    // It stays there, so it is granted at once by a client that starts now.
    let (waited, last) = until_granted(&redlock(&cluster), &name).await;
    assert!(waited < Duration::from_secs(3), "{waited:?}: {last:?}");
}

/// Sends one op to the slot of `name`.
async fn ask(node: &Arc<dyn LockNode>, op: Op) -> Result<Reply, palisade::error::NodeError> {
    let env = palisade::node::spi::SystemEnv;
    let deadline: Moment = palisade::node::spi::Env::now(&env) + Duration::from_secs(5);
    let mut batch = ops::batch(TTL, vec![op]);
    batch.terms.clock_error = Duration::from_millis(200);
    node.call(batch, deadline).await.items.remove(0)
}

/// A grants; the slot goes to B, where the holder extends; B fails over to B', which lacks that;
/// the slot comes back to A with A's own marker. Nothing at A says that it was away, but its epoch.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_comes_back_without_what_was_written_elsewhere_begins_a_new_history() {
    let mut cluster = Cluster::start(3, 1, NODE_TIMEOUT);
    let name = name_at(&cluster, 0, "n");
    let slot = cluster.slot(&name);
    let (first, second) = (node(&cluster), node(&cluster));
    let parts = [&first, &second].map(|node| node.part(slot).expect("a cluster has slots"));
    let [first, second] = parts;
    let (holder, stranger) = (OwnerToken::from_random(1), OwnerToken::from_random(2));
    let fence = match ask(&first, ops::acquire(&name, holder, TTL)).await {
        Ok(Reply::Granted { fence }) => fence,
        other => panic!("{other:?}"),
    };
    // The replica of B gets the slot as A left it, and nothing later.
    cluster.move_slot(slot, 0, 1);
    cluster.until_owned(slot, 1);
    let kept = |cluster: &Cluster| cluster.servers[4].cli(&["exists", &name]);
    let replicated = Instant::now();
    assert_eq!(cluster.servers[4].cli(&["readonly"]), "OK");
    while cluster.servers[4].cli(&["dbsize"]) != cluster.servers[1].cli(&["dbsize"]) {
        assert!(replicated.elapsed() < PATIENCE, "{}", kept(&cluster));
        sleep(Duration::from_millis(10)).await;
    }
    let marker = cluster.servers[1].cli(&["cluster", "getkeysinslot", &slot.to_string(), "9"]);
    assert!(marker.contains("palisade:generation"), "{marker}");
    cluster.servers[4].freeze();
    let extended = Instant::now();
    let extend = |reassert| Op::Extend {
        mode: palisade::node::spi::LockMode::Exclusive,
        keys: palisade::node::spi::LockKeys::new(&name),
        owner: holder,
        ttl: TTL,
        token: FencingToken::new(fence),
        meta: None,
        reassert,
    };
    let begun = Instant::now();
    let id = loop {
        match ask(&first, extend(None)).await {
            Ok(Reply::Quarantined { id, .. }) => break id,
            other => assert!(begun.elapsed() < PATIENCE, "{other:?}"),
        }
        sleep(Duration::from_millis(20)).await;
    };
    let valid_until = Instant::now() + TTL;
    assert_eq!(ask(&first, extend(Some(id))).await, Ok(Reply::Done));
    assert!(extended.elapsed() < TTL, "a slow machine");
    cluster.servers[1].kill();
    cluster.servers[4].resume();
    // It has the highest epoch then.
    let took = Instant::now();
    while cluster.servers[4].cli(&["cluster", "failover", "takeover"]) != "OK" {
        assert!(took.elapsed() < PATIENCE);
        sleep(Duration::from_millis(20)).await;
    }
    cluster.until_owned(slot, 4);
    cluster.move_slot(slot, 4, 0);
    cluster.until_owned(slot, 0);
    let mut refused = false;
    let begun = Instant::now();
    loop {
        match ask(&second, ops::acquire(&name, stranger, TTL)).await {
            Ok(Reply::Granted { .. }) => break,
            Ok(Reply::Quarantined { .. }) => refused = true,
            _ => {}
        }
        assert!(begun.elapsed() < PATIENCE);
        sleep(Duration::from_millis(20)).await;
    }
    assert!(refused && Instant::now() > valid_until, "two holders");
}
