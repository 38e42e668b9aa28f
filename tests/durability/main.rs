//! Durability levels (the number of replicas that must have a grant before it counts) on real
//! servers. The tests check which grants count, that a refused grant leaves no lock behind, and
//! which locks survive a failover. They read the replicas' keys with `redis-cli`.

mod failover;
mod refused;
mod renewed;
#[path = "../support/mod.rs"]
mod support;
mod votes;

use std::time::Duration;

use palisade::error::{AcquireError, NodeError, NodeFault, NodeOutcome};
use palisade::{Advice, Durability, MemoryNode, Outcome, RedisNode, Redlock, RunError, TryAcquire};
use support::server::Server;

const TTL: Duration = Duration::from_secs(30);

/// A master and two replicas. The replicas have all data of the master.
struct Trio {
    master: Server,
    replicas: [Server; 2],
}

impl Trio {
    fn start() -> Self {
        let master = Server::start(&["--repl-diskless-sync-delay", "0"]);
        let port = master.port().to_string();
        let replica = || Server::start(&["--replicaof", "127.0.0.1", &port]);
        let replicas = [replica(), replica()];
        let trio = Self { master, replicas };
        trio.follow();
        trio
    }

    /// Waits until both replicas confirm a write. The master sends no data to a new replica before
    /// the replica's first acknowledgement, which may take a second.
    fn follow(&self) {
        until("both replicas confirm a write", || {
            self.master.session("SET warm up PX 1\nWAIT 2 500\n").trim_end().ends_with('2')
        });
    }

    /// Returns a handle with the master as its only node.
    fn redlock(&self) -> Redlock {
        self.redlock_within(Duration::from_secs(1))
    }

    /// Returns a handle with the master as its only node, and with this node deadline.
    fn redlock_within(&self, node_deadline: Duration) -> Redlock {
        let node = RedisNode::builder(self.master.url()).trust_fresh(true).build().unwrap();
        Redlock::builder().node(node).ttl(TTL).node_deadline(node_deadline).build().unwrap()
    }

    /// Returns the number of replicas that have the key now.
    fn have(&self, key: &str) -> usize {
        self.replicas.iter().filter(|r| r.cli(&["EXISTS", key]) == "1").count()
    }
}

fn until(what: &str, mut good: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if good() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never happened: {what}");
}

/// Returns the error of the only node of a `Redlock` handle, from the error of a failed attempt.
fn word(error: AcquireError) -> NodeError {
    let AcquireError::NoQuorum(no) = error else { panic!("another error: {error}") };
    match no.nodes.into_iter().next() {
        Some((_, NodeOutcome::Failed(e))) => e,
        other => panic!("not a fault: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn each_level_is_reached_and_readable() {
    let trio = Trio::start();
    let redlock = trio.redlock();
    let before = trio.master.calls("wait");
    let guard = redlock.mutex("plain").build().unwrap().acquire().await.unwrap();
    assert_eq!((guard.durability().level, guard.durability().replicas), (Durability::Primary, 0));
    assert_eq!(trio.master.calls("wait"), before, "the default asks nobody");

    let one = redlock.mutex("one").durability(Durability::Replicas(1)).await.unwrap();
    assert!(trio.have("one") >= 1);
    assert!(one.durability().replicas >= 1);
    assert_eq!(one.durability().level, Durability::Replicas(1));

    for turn in 0..50 {
        let name = format!("all-{turn}");
        let all = redlock.mutex(&name).durability(Durability::AllReplicas).await;
        assert_eq!(trio.have(&name), 2, "both have it when the guard is there");
        let all = all.unwrap();
        assert_eq!(all.durability().replicas, 2);
        all.extend().await.unwrap();
        assert_eq!(all.durability().replicas, 2, "and a renewal counts as the grant does");
    }

    let election = redlock.election("lead").durability(Durability::AllReplicas).build().unwrap();
    let leadership = election.campaign("me").await.unwrap();
    assert_eq!(trio.have("{election:lead}:meta"), 2, "the metadata, too");
    assert_eq!(leadership.durability().replicas, 2);
    leadership.proclaim("still me").await.unwrap();
    assert_eq!(leadership.durability().replicas, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn results_are_as_durable_as_asked() {
    let trio = Trio::start();
    let redlock = trio.redlock();
    let orders = |level| {
        let builder = redlock.idempotency("orders").durability(level);
        builder.at_most_once().build().unwrap()
    };
    let all = orders(Durability::AllReplicas);
    let handler = |cx: palisade::idempotency::Context| {
        let (claimed, had) = (cx.durability(), trio.have("idem:orders:7"));
        async move { Ok::<_, String>((claimed.replicas, had)) }
    };
    let out = all.key("7").run(handler).await.unwrap();
    let Outcome::Executed { value, durability, .. } = out else { panic!("{out:?}") };
    assert_eq!(value, (2, 2), "both knew of the attempt when the handler started");
    assert_eq!((durability.level, durability.replicas), (Durability::AllReplicas, 2));
    for replica in &trio.replicas {
        assert_eq!(replica.cli(&["GETRANGE", "idem:orders:7", "150", "-1"]), "[2,2]");
    }

    // One replica is frozen, so it lacks the result. A call that requires this result on all
    // replicas must not return it.
    trio.replicas[1].freeze();
    let one = orders(Durability::Primary);
    assert!(one.key("8").run(|_| async { Ok::<_, String>(1) }).await.unwrap().is_executed());
    let run = || all.key("8").run(|_| async { Err::<i32, _>("must not run".to_owned()) });
    match run().await {
        Err(RunError::NoQuorum { error: no, .. }) => {
            // The error has the second text if the server's answer arrives too late at this
            // process.
            let said = ["1 of 2 replicas have it within", "not known to be on all replicas within"];
            let text = no.to_string();
            assert!(said.iter().any(|said| text.contains(said)), "{text}");
        }
        other => panic!("{other:?}"),
    }
    assert!(
        matches!(
            all.key("9").run(|_| async { Err::<i32, _>("no") }).await,
            Err(RunError::NoQuorum { .. })
        ),
        "no handler without a durable claim"
    );
    trio.replicas[1].resume();
    assert_eq!(run().await.unwrap(), Outcome::Replayed(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn many_locks_share_few_waits() {
    let trio = Trio::start();
    let redlock = trio.redlock_within(Duration::from_secs(2));
    let before = trio.master.calls("wait");
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let redlock = redlock.clone();
            tokio::spawn(async move {
                for turn in 0..20 {
                    let mutex = redlock.mutex(format!("{task}-{turn}")).auto_renew(false);
                    let mutex = mutex.durability(Durability::AllReplicas).build().unwrap();
                    let guard = mutex.acquire().await.unwrap();
                    assert_eq!(guard.durability().replicas, 2);
                    std::mem::forget(guard);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let (locks, waits) = (64 * 20, trio.master.calls("wait") - before);
    println!("{locks} locks, {waits} WAITs, {} batches", trio.master.calls("evalsha"));
    assert!(waits > 0 && waits * 4 < locks, "{waits} WAITs for {locks} locks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn nodes_without_replicas_vote_where_none_can_lack_anything() {
    let server = Server::start(&[]);
    let lone = RedisNode::builder(server.url()).trust_fresh(true).build().unwrap();
    let lone = Redlock::builder().node(lone).build().unwrap();
    let memory = Redlock::builder().node(MemoryNode::new()).build().unwrap();
    for redlock in [&lone, &memory] {
        let all = redlock.mutex("k").durability(Durability::AllReplicas).await.unwrap();
        assert_eq!(all.durability().replicas, 0, "and it says so");
        assert!(all.release().await.is_ok());
    }
    let ask =
        |redlock: &Redlock| redlock.mutex("j").durability(Durability::Replicas(1)).build().unwrap();
    let e = word(ask(&memory).try_acquire().await.unwrap_err());
    assert_eq!((e.fault(), e.advice()), (NodeFault::Unsupported, Advice::Misconfigured));
    let e = word(ask(&lone).try_acquire().await.unwrap_err());
    assert_eq!(e.fault(), NodeFault::NotDurable);
    assert!(e.detail().contains("only 0 connected"), "{e}");
    // The grant was rolled back, so an acquire without a durability level succeeds.
    assert!(matches!(
        lone.mutex("j").build().unwrap().try_acquire().await.unwrap(),
        TryAcquire::Acquired(_)
    ));
    let clients = || server.cli(&["CLIENT", "LIST"]).lines().count();
    assert!(clients() > 2, "one that works, and one a number of replicas that waits");
    drop(lone);
    until("all of them end with the handle", || clients() == 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_level_that_asks_for_nothing_is_refused_before_anything_is_sent() {
    let redlock = Redlock::builder().node(MemoryNode::new()).build().unwrap();
    let none = Durability::Replicas(0);
    let text = [
        redlock.mutex("k").durability(none).build().unwrap_err().to_string(),
        redlock.election("k").durability(none).build().unwrap_err().to_string(),
        redlock.idempotency("k").at_most_once().durability(none).build().unwrap_err().to_string(),
    ];
    for text in text {
        assert!(text.contains("`durability` is Replicas(0): at least 1 replica"), "{text}");
    }
}
