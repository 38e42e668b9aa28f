//! Locks that are granted under load before a failover. At the durability level `AllReplicas` all
//! of these locks survive the failover. At the level `Primary` some locks are lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use palisade::Moment;
use palisade::node::spi::{Env as _, SystemEnv};
use palisade::node::{MinReplicas, SentinelNode};

use super::*;

use crate::support::group::{Groups, cli};

/// Lease of the locks. It is so long that no lock ends before the test looks for the lock.
const HELD: Duration = Duration::from_secs(29);

/// Returns a handle on one group. The min-replicas check is off: it would refuse grants while
/// replicas are missing, for example during the failover.
fn redlock(groups: &Groups, group: usize) -> Redlock {
    let node = SentinelNode::builder(groups.name(group), groups.sentinels(group));
    let node = node.min_replicas_check(MinReplicas::Off).trust_fresh(true).build().unwrap();
    let node_deadline = Duration::from_secs(4);
    Redlock::builder().node(node).ttl(HELD).node_deadline(node_deadline).build().unwrap()
}

/// Returns the address of the group's master, as the first Sentinel reports it.
fn master(groups: &Groups, group: usize) -> String {
    let name = groups.name(group);
    let text = cli(&groups.sentinels(group)[0], &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &name]);
    text.lines().collect::<Vec<_>>().join(":")
}

/// Granted locks by name. Each has the end of its holder's validity.
type Granted = BTreeMap<String, Moment>;

/// Runs eight callers. Each acquires one lock after the other, with names of its own.
async fn load(redlock: Redlock, level: Durability, stop: Arc<AtomicBool>) -> Granted {
    let caller = |caller: usize| {
        let (redlock, stop) = (redlock.clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut granted = Granted::new();
            for turn in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let name = format!("{caller}-{turn}");
                let mutex =
                    redlock.mutex(&name).auto_renew(false).durability(level).build().unwrap();
                match mutex.try_acquire().await {
                    Ok(TryAcquire::Acquired(guard)) => {
                        granted.insert(name, guard.valid_until());
                        // The lock is neither released nor renewed, and its holder still relies on
                        // it.
                        std::mem::forget(guard);
                    }
                    // Attempts are refused while the masters change, and while the new master is in
                    // quarantine (the time after a failover in which it grants nothing).
                    _ => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
            granted
        })
    };
    let callers: Vec<_> = (0..8).map(caller).collect();
    let mut all = Granted::new();
    for caller in callers {
        all.append(&mut caller.await.unwrap());
    }
    all
}

/// Returns the locks that are missing on the server although their holders still rely on them.
fn lost(at: &str, granted: &Granted) -> Vec<String> {
    let names: Vec<&str> = granted.keys().map(String::as_str).collect();
    let mut lost = Vec::new();
    for names in names.chunks(500) {
        let mut ask = vec!["--json", "MGET"];
        ask.extend(names);
        let found: Vec<Option<String>> = serde_json::from_str(&cli(at, &ask)).unwrap();
        assert_eq!(found.len(), names.len());
        let now = SystemEnv.now();
        let gone = names
            .iter()
            .zip(found)
            .filter(|(name, found)| found.is_none() && now < granted[**name]);
        lost.extend(gone.map(|(name, _)| (*name).to_owned()));
    }
    lost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_switch_by_hand_under_load_loses_no_lock_that_all_replicas_have() {
    let groups = Arc::new(Groups::up_with(2, 3_000, 0, &[]));
    let stop = Arc::new(AtomicBool::new(false));
    let levels = [Durability::AllReplicas, Durability::Primary];
    let loads: Vec<_> = levels
        .iter()
        .enumerate()
        .map(|(group, level)| {
            tokio::spawn(load(redlock(&groups, group), *level, Arc::clone(&stop)))
        })
        .collect();
    let before = [master(&groups, 0), master(&groups, 1)];
    tokio::time::sleep(Duration::from_secs(2)).await;
    let switch = Arc::clone(&groups);
    let after = tokio::task::spawn_blocking(move || {
        for group in 0..2 {
            switch.break_("failover", group, &[]);
        }
        [0, 1].map(|group| {
            until("another master is named", || master(&switch, group) != before[group]);
            master(&switch, group)
        })
    });
    let after = after.await.unwrap();
    stop.store(true, Ordering::Relaxed);
    for (load, (level, at)) in loads.into_iter().zip(levels.iter().zip(after)) {
        let granted = load.await.unwrap();
        let lost = lost(&at, &granted);
        println!("{level}: {} granted, {} lost", granted.len(), lost.len());
        assert!(granted.len() > 50, "hardly any load: {}", granted.len());
        if *level == Durability::AllReplicas {
            assert_eq!(lost, Vec::<String>::new());
        } else {
            // This group is the control: some locks must be lost at `Primary`. Otherwise the load
            // is too weak to show that no lock is lost at `AllReplicas`.
            assert!(!lost.is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn all_replicas_are_those_that_the_sentinels_know() {
    let groups = Groups::up_with(1, 3_000, 0, &[]);
    let redlock = redlock(&groups, 0);
    let servers = groups.servers(0);
    let attempt = async |name: &str, level| {
        redlock.mutex(name).durability(level).build().unwrap().try_acquire().await
    };
    let all = redlock.mutex("a").durability(Durability::AllReplicas).build().unwrap();
    let guard = all.acquire().await.unwrap();
    assert_eq!(guard.durability().replicas, 2);
    for server in &servers[1..] {
        assert_eq!(cli(server, &["EXISTS", "a"]), "1");
    }

    // The first replica confirms, but cannot be promoted. The second replica can be promoted, but
    // is frozen and lacks the lock. `WAIT` returns only the number of replicas that confirm, so the
    // node must not rely on it alone.
    assert_eq!(cli(&servers[1], &["CONFIG", "SET", "replica-priority", "0"]), "OK");
    groups.break_("freeze", 0, &["--server", "a3"]);
    let e = word(attempt("b", Durability::AllReplicas).await.unwrap_err());
    assert_eq!(e.fault(), NodeFault::NotDurable);
    assert!(e.detail().contains("1 of 2 replicas have it"), "{e}");
    let one = attempt("c", Durability::Replicas(1)).await.unwrap().acquired().unwrap();
    assert_eq!(one.durability().replicas, 1);
    assert_eq!(cli(&servers[1], &["EXISTS", "c"]), "1");

    // The Sentinels still list the killed replica, and it may be promoted when it runs again. So
    // the node must wait for the confirmation of this replica, too.
    groups.break_("kill", 0, &["--server", "a3"]);
    until("it is gone", || {
        cli(&servers[0], &["INFO", "replication"]).contains("connected_slaves:1")
    });
    let e = word(attempt("d", Durability::AllReplicas).await.unwrap_err());
    assert_eq!(e.fault(), NodeFault::NotDurable);
    assert!(e.detail().contains("only 1 connected"), "{e}");
    until("rolled back", || cli(&servers[0], &["EXISTS", "b", "d"]) == "0");

    // If the user may not read the number of replicas, the node cannot wait for all replicas. The
    // error names the missing permission.
    for sentinel in groups.sentinels(0) {
        let text = ["ACL", "SETUSER", "default", "-sentinel|master"];
        assert_eq!(cli(&sentinel, &text), "OK");
    }
    let blind = self::redlock(&groups, 0);
    let all = blind.mutex("e").durability(Durability::AllReplicas).build().unwrap();
    let error = all.try_acquire().await.unwrap_err();
    assert_eq!(error.advice(), Advice::Misconfigured);
    let e = word(error);
    assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::NoPermission, true));
    assert!(e.detail().contains("sentinel|master"), "{e}");
    until("rolled back", || cli(&servers[0], &["EXISTS", "e"]) == "0");
    let one = blind.mutex("f").durability(Durability::Replicas(1)).await.unwrap();
    assert_eq!(one.durability().replicas, 1);
}

/// The stranger is a server that replicates the master, but that no Sentinel has discovered yet. So
/// its confirmation must not replace that of a known replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_stranger_does_not_confirm_in_place_of_a_known_replica() {
    let groups = Groups::up_with(1, 3_000, 0, &[]);
    let redlock = redlock(&groups, 0);
    let servers = groups.servers(0);
    let all = |name: &str| redlock.mutex(name).durability(Durability::AllReplicas).build().unwrap();
    assert_eq!(all("a").acquire().await.unwrap().durability().replicas, 2);
    groups.break_("kill", 0, &["--server", "a3"]);
    let info = || cli(&servers[0], &["INFO", "replication"]);
    until("it is gone", || info().contains("connected_slaves:1"));
    let (_, port) = servers[0].rsplit_once(':').unwrap();
    let _stranger = Server::start(&["--replicaof", "127.0.0.1", port]);
    until("the stranger follows", || info().matches("state=online").count() == 2);
    let e = word(all("b").try_acquire().await.unwrap_err());
    assert_eq!(e.fault(), NodeFault::NotDurable);
    assert!(e.detail().contains(&format!("not attached: {}", servers[2])), "{e}");
    until("rolled back", || cli(&servers[0], &["EXISTS", "b"]) == "0");
    let one = redlock.mutex("c").durability(Durability::Replicas(1)).await.unwrap();
    assert!(one.durability().replicas >= 1, "who asks for any gets any");
}
