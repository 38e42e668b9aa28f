//! Refusals because of too few replicas, a new data history (the server may have lost grants) or a
//! missing permission. Each time, the lock is not granted, the error names the reason, and no lock
//! is left behind on the server.

use std::sync::Arc;

use palisade::node::spi::BarrierPoint;
use palisade::node::spi::LockNode;
use palisade::node::spi::Op;
use palisade::node::spi::{Env as _, SystemEnv};

use super::*;
use crate::support::ops;

/// Waits until the refused lock's key is gone from the server. The roll-back of the attempt deletes
/// the key long before the ttl ends.
fn nothing_stands(trio: &Trio, name: &str) {
    until("the grant is rolled back", || trio.master.cli(&["EXISTS", name]) == "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_frozen_replica_is_a_typed_refusal_in_time() {
    let trio = Trio::start();
    let redlock = trio.redlock();
    trio.replicas[0].freeze();
    let all = redlock.mutex("k").durability(Durability::AllReplicas).build().unwrap();
    let refused = tokio::time::timeout(TTL / 2, all.try_acquire()).await.expect("in time");
    let error = refused.unwrap_err();
    assert!(matches!(error.advice(), Advice::RetryAfter(_)), "{error}");
    let e = word(error);
    assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::NotDurable, true));
    let text = e.to_string();
    assert!(text.contains("1 of 2 replicas have it within"), "{text}");
    assert!(text.contains("bring the replicas up, or use a lower durability"), "{text}");
    nothing_stands(&trio, "k");

    // One replica is enough for a lock that requires one replica.
    for turn in 0..20 {
        let name = format!("one-{turn}");
        let one = redlock
            .mutex(&name)
            .durability(Durability::Replicas(1))
            .build()
            .unwrap()
            .try_acquire()
            .await;
        let guard = one.unwrap().acquired().unwrap();
        assert_eq!(guard.durability().replicas, 1);
        assert_eq!(trio.replicas[1].cli(&["EXISTS", &name]), "1");
    }

    // While a replica is frozen, the holder cannot renew its lock at the required level. But the
    // lock is not lost before its lease ends.
    let held = redlock.mutex("held").durability(Durability::Replicas(1)).await.unwrap();
    trio.replicas[1].freeze();
    let until = held.valid_until();
    let error = held.extend().await.unwrap_err();
    assert!(error.to_string().contains("0 of 1 replicas have it"), "{error}");
    assert_eq!((held.valid_until(), held.is_valid()), (until, true));

    trio.replicas[0].resume();
    trio.replicas[1].resume();
    let guard = all.acquire().await.unwrap();
    assert_eq!((guard.durability().replicas, trio.have("k")), (2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_caller_waits_for_a_replica_that_only_others_need() {
    let trio = Trio::start();
    let redlock = trio.redlock_within(Duration::from_secs(5));
    trio.replicas[0].freeze();
    let all = redlock.mutex("all").durability(Durability::AllReplicas).build().unwrap();
    let stuck = tokio::spawn(async move { all.try_acquire().await });
    until("somebody waits for both", || {
        trio.master.cli(&["INFO", "clients"]).contains("blocked_clients:1")
    });
    for turn in 0..25 {
        let one = redlock
            .mutex(format!("one-{turn}"))
            .durability(Durability::Replicas(1))
            .build()
            .unwrap();
        assert!(one.try_acquire().await.unwrap().acquired().is_some());
    }
    assert!(!stuck.is_finished(), "25 locks later it still waits");
    trio.replicas[0].resume();
    let guard = stuck.await.unwrap().unwrap().acquired().expect("and then both have it");
    assert_eq!((guard.durability().replicas, trio.have("all")), (2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_replica_that_is_down_is_waited_for_where_it_is_known() {
    let mut trio = Trio::start();
    let node = |replicas: Option<u32>| {
        let builder = RedisNode::builder(trio.master.url()).trust_fresh(true);
        let builder = replicas.map_or(builder.clone(), |n| builder.replicas(n));
        let node_deadline = Duration::from_secs(1);
        let builder = Redlock::builder().node(builder.build().unwrap()).ttl(TTL);
        builder.node_deadline(node_deadline).build().unwrap()
    };
    let (seen, configured) = (node(None), node(Some(2)));
    let all = |r: &Redlock, name: &str| {
        r.mutex(name).durability(Durability::AllReplicas).build().unwrap()
    };
    drop(all(&seen, "a").acquire().await.unwrap());
    trio.replicas[0].kill();
    until("it is gone", || {
        trio.master.cli(&["INFO", "replication"]).contains("connected_slaves:1")
    });
    for (redlock, name) in [(&seen, "b"), (&configured, "c")] {
        let e = word(all(redlock, name).try_acquire().await.unwrap_err());
        assert_eq!(e.fault(), NodeFault::NotDurable);
        assert!(e.detail().contains("only 1 connected"), "{e}");
        nothing_stands(&trio, name);
    }
    // The new `Redlock` handle has connected only after the replica was killed, so it does not wait
    // for this replica. When the killed replica is connected again, the handle waits for it, too.
    let late = node(None);
    let guard = all(&late, "b").try_acquire().await.unwrap().acquired().unwrap();
    assert_eq!(guard.durability().replicas, 1);
    trio.replicas[0].again();
    trio.follow();
    let guard = all(&late, "c").acquire().await.unwrap();
    assert_eq!((guard.durability().replicas, trio.have("c")), (2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_master_demoted_while_it_waits_grants_nothing() {
    let trio = Trio::start();
    let redlock = trio.redlock_within(Duration::from_secs(8));
    for replica in &trio.replicas {
        replica.freeze();
    }
    let attempts: Vec<_> = [("k", Durability::AllReplicas), ("j", Durability::Replicas(1))]
        .into_iter()
        .map(|(name, level)| {
            let mutex = redlock.mutex(name).durability(level).build().unwrap();
            tokio::spawn(async move { mutex.try_acquire().await })
        })
        .collect();
    until("both wait", || trio.master.cli(&["INFO", "clients"]).contains("blocked_clients:2"));
    assert_eq!(trio.master.cli(&["EXISTS", "k", "j"]), "2", "granted there, and nowhere else");
    let port = trio.replicas[0].port().to_string();
    assert_eq!(trio.master.cli(&["REPLICAOF", "127.0.0.1", &port]), "OK");
    for attempt in attempts {
        let e = word(attempt.await.unwrap().unwrap_err());
        assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::NotMaster, true), "{e}");
    }
    // The server becomes master again, and the replicas run. The locks of the two refused attempts
    // must be rolled back, and must not count as granted now.
    assert_eq!(trio.master.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    for replica in &trio.replicas {
        replica.resume();
    }
    nothing_stands(&trio, "k");
    nothing_stands(&trio, "j");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_barrier_knows_one_history_of_one_process() {
    let mut trio = Trio::start();
    let node = RedisNode::builder(trio.master.url()).trust_fresh(true).build().unwrap();
    let node: Arc<dyn LockNode> = Arc::new(node);
    let soon = || SystemEnv.now() + Duration::from_secs(30);
    let point = async || {
        let lookup = Op::Lookup {
            key: "r".into(),
            retention: Duration::from_secs(1),
            fingerprint: None,
            born: None,
            accepted: Duration::ZERO,
        };
        let facts = node.call(ops::batch(TTL, vec![lookup]), soon()).await.facts.unwrap();
        BarrierPoint { identity: facts.identity, replication: facts.replication }
    };
    let ask = |at: &BarrierPoint| node.barrier(at.clone(), Durability::AllReplicas, soon());
    let first = point().await;
    assert_eq!(ask(&first).await, Ok(2));

    // The master is demoted and promoted again. This begins a new data history (sequence of writes)
    // at the same address, and the grants of the old data history may be lost.
    let port = trio.replicas[0].port().to_string();
    assert_eq!(trio.master.cli(&["REPLICAOF", "127.0.0.1", &port]), "OK");
    assert_eq!(trio.master.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    let other = BarrierPoint { identity: "nobody".into(), ..first.clone() };
    for at in [&first, &other] {
        let e = ask(at).await.unwrap_err();
        assert!(e.is_ambiguous(), "{e}");
        assert_eq!(e.fault(), NodeFault::NotDurable, "{e}");
    }
    let second = point().await;
    assert_eq!(second.identity, first.identity);
    trio.follow();
    assert_eq!(ask(&second).await, Ok(2));

    // After a restart, another server process has the same address. A barrier (the wait for
    // replicas) that was begun at the old process fails.
    trio.master.restart();
    assert!(ask(&second).await.is_err());
    let third = point().await;
    assert_ne!(third.identity, second.identity);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_missing_permission_is_named() {
    let trio = Trio::start();
    let rights = "~* &palisade:changed* -@all +hello +select +info +time +script|load +evalsha \
                  +get +getrange +mget +exists +set +del +pexpire +pexpireat +pttl +setrange \
                  +strlen +hset +hmget +zadd +zrem +zrange +zcard +zscore +zremrangebyscore \
                  +publish +subscribe";
    let rule: Vec<_> = "ACL SETUSER palisade on >pw".split(' ').chain(rights.split(' ')).collect();
    assert_eq!(trio.master.cli(&rule), "OK");
    let node = RedisNode::builder(trio.master.url()).username("palisade").password("pw");
    let node = node.trust_fresh(true).build().unwrap();
    let redlock = Redlock::builder().node(node).ttl(TTL).node_deadline(Duration::from_secs(5));
    let redlock = redlock.build().unwrap();
    let all = redlock.mutex("k").durability(Durability::AllReplicas).build().unwrap();
    let error = all.try_acquire().await.unwrap_err();
    assert_eq!(error.advice(), Advice::Misconfigured);
    let e = word(error);
    assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::NoPermission, true));
    assert!(e.detail().contains("wait"), "{e}");
    nothing_stands(&trio, "k");
    assert_eq!(trio.master.cli(&["ACL", "SETUSER", "palisade", "+wait"]), "OK");
    assert_eq!(all.acquire().await.unwrap().durability().replicas, 2);
}

/// A barrier (the wait until replicas have all writes) writes a key of its own, so that replicas
/// have a write to confirm. No user's lock may have the name of this key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_lock_is_held_under_the_key_of_barriers() {
    let server = Server::start(&[]);
    let handle = |prefix: &str| {
        let node = RedisNode::builder(server.url()).trust_fresh(true).build().unwrap();
        Redlock::builder().node(node).ttl(TTL).prefix(prefix).build().unwrap()
    };
    for (prefix, name) in
        [("", "palisade:barrier"), ("palisade:", "barrier"), ("palisade:", "generation")]
    {
        let (mine, rival) = (handle(prefix), handle(prefix));
        let Ok(lock) = mine.mutex(name).auto_renew(false).build() else { continue };
        let held = match lock.try_acquire().await {
            Ok(TryAcquire::Acquired(held)) => held,
            other => panic!("{prefix}{name}: nobody has it: {other:?}"),
        };
        let all = mine.mutex("other").durability(Durability::AllReplicas).build().unwrap();
        drop(all.acquire().await.unwrap());
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let second = rival.mutex(name).build().unwrap().try_acquire().await.unwrap().acquired();
        assert!(held.is_valid() && second.is_none(), "{prefix}{name} is held twice");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_new_connection_forgets_no_replica_of_the_same_server() {
    let mut trio = Trio::start();
    let redlock = trio.redlock();
    let all = |name: &str| {
        let mutex = redlock.mutex(name).durability(Durability::AllReplicas);
        mutex.acquire_timeout(Duration::from_secs(2)).build().unwrap()
    };
    assert!(all("a").try_acquire().await.unwrap().acquired().is_some());
    trio.replicas[0].kill();
    until("it is gone", || {
        trio.master.cli(&["INFO", "replication"]).contains("connected_slaves:1")
    });
    for (turn, name) in ["b", "c"].into_iter().enumerate() {
        let refused = all(name).acquire().await;
        let e = word(refused.expect_err(&format!("{turn} new connections, one replica lacks it")));
        assert_eq!(e.fault(), NodeFault::NotDurable);
        trio.master.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        trio.master.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// While a backup by `redis-cli --rdb` runs, the server lists it as a replica. After its end, locks
/// for all replicas must not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_backup_that_came_and_went_is_not_waited_for() {
    use std::io::{Read as _, Write as _};
    let trio = Trio::start();
    let redlock = trio.redlock();
    let all = |name: &str| {
        let mutex = redlock.mutex(name).durability(Durability::AllReplicas);
        mutex.acquire_timeout(Duration::from_secs(2)).build().unwrap()
    };
    assert!(all("a").try_acquire().await.unwrap().acquired().is_some());
    let connected = |n| {
        let line = format!("connected_slaves:{n}");
        until("so many replicas", || trio.master.cli(&["INFO", "replication"]).contains(&line));
    };
    let mut backup = std::net::TcpStream::connect(trio.master.addr()).unwrap();
    // The server saves each key with a delay of half a second, so that the backup runs long enough
    // for this test.
    trio.master.cli(&["CONFIG", "SET", "rdb-key-save-delay", "500000"]);
    backup.write_all(b"REPLCONF rdb-only 1\r\n").unwrap();
    backup.read_exact(&mut [0; "+OK\r\n".len()]).unwrap();
    backup.write_all(b"SYNC\r\n").unwrap();
    connected(3);
    let e = word(all("b").try_acquire().await.unwrap_err());
    assert_eq!(e.fault(), NodeFault::NotDurable, "each that is connected may be one: {e}");
    drop(backup);
    connected(2);
    let guard = all("c").acquire().await.unwrap();
    assert_eq!((guard.durability().replicas, trio.have("c")), (2, 2));
}
