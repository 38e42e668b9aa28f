//! Masters that die, freeze or are replaced, and what the names of other masters do meanwhile.

use std::time::Duration;

use palisade::error::{AcquireError, NodeFault, NodeOutcome};
use palisade::node::{ClusterNode, MemoryNode};
use palisade::{Redlock, TryAcquire};
use tokio::time::{Instant, sleep};

use crate::moves::{
    LONG, Load, NODE_TIMEOUT, PATIENCE, QUARANTINE, TTL, WINDOW, fault, name_at, node, redlock,
    redlock_for, try_acquire, until_granted,
};
use crate::support::cluster::Cluster;

/// Fails the first master over, and checks that its holder keeps the lock, that nobody else gets it
/// until the quarantine is over, and that names of other masters are granted all the time.
async fn fails_over(how: impl FnOnce(&mut Cluster)) {
    let mut cluster = Cluster::start(3, 1, NODE_TIMEOUT);
    let (client, other) = (redlock_for(&cluster, LONG), redlock_for(&cluster, LONG));
    let name = name_at(&cluster, 0, "n");
    let elsewhere: Vec<String> = (1..3).map(|n| name_at(&cluster, n, "load")).collect();
    for name in elsewhere.iter().chain([&name]) {
        until_granted(&client, name).await;
    }
    let held = try_acquire(&client, &name).await.unwrap().acquired().expect("it is free");
    let load = Load::start(&client, elsewhere);
    how(&mut cluster);
    let begun = Instant::now();
    while begun.elapsed() < LONG + WINDOW + 2 * NODE_TIMEOUT {
        assert!(held.is_valid(), "the holder renews at the new master: {:?}", begun.elapsed());
        let got = try_acquire(&other, &name).await;
        assert!(!matches!(got, Ok(TryAcquire::Acquired(_))), "two holders");
        sleep(Duration::from_millis(50)).await;
    }
    held.release().await.unwrap();
    let (waited, last) = until_granted(&other, &name).await;
    assert!(waited < LONG, "{waited:?}: {last:?}");
    let (done, failed) = load.end().await;
    assert!(done > 50 && failed == 0, "{done} and {failed} of other masters");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_failover_of_a_shard() {
    fails_over(|cluster| {
        assert_eq!(cluster.servers[3].cli(&["cluster", "failover"]), "OK");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_failover_of_a_shard() {
    fails_over(|cluster| {
        assert_eq!(cluster.servers[3].cli(&["cluster", "failover", "force"]), "OK");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_takeover_of_a_shard() {
    fails_over(|cluster| {
        assert_eq!(cluster.servers[3].cli(&["cluster", "failover", "takeover"]), "OK");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_killed() {
    fails_over(|cluster| cluster.servers[0].kill()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_frozen_and_thawed() {
    let cluster = Cluster::start(3, 1, NODE_TIMEOUT);
    let (client, other) = (redlock(&cluster), redlock(&cluster));
    let name = name_at(&cluster, 0, "n");
    until_granted(&client, &name).await;
    until_granted(&other, &name).await;
    cluster.servers[0].freeze();
    let (waited, last) = until_granted(&client, &name).await;
    assert!(waited + TTL > QUARANTINE, "{waited:?}: {last:?}");
    let held = try_acquire(&client, &name).await.unwrap().acquired().expect("it is free");
    cluster.servers[0].resume();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        assert!(held.is_valid(), "its master is the new one");
        let got = try_acquire(&other, &name).await;
        assert!(!matches!(got, Ok(TryAcquire::Acquired(_))), "two holders");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_shard_fails_only_its_names_and_says_which() {
    let mut cluster = Cluster::start(3, 0, NODE_TIMEOUT);
    let client = redlock(&cluster);
    let names: Vec<String> = (0..3).map(|n| name_at(&cluster, n, "n")).collect();
    for name in &names {
        until_granted(&client, name).await;
    }
    let dead = cluster.servers[0].addr();
    cluster.servers[0].kill();
    let load = Load::start(&client, names[1..].to_vec());
    let begun = Instant::now();
    let refused = loop {
        let refused = try_acquire(&client, &names[0]).await.unwrap_err();
        if fault(&refused) == Some(NodeFault::Unreachable) {
            break refused.to_string();
        }
        assert!(begun.elapsed() < PATIENCE, "{refused}");
        sleep(Duration::from_millis(50)).await;
    };
    assert!(refused.contains(&dead), "{refused}");
    let health = client.health().await;
    let troubles = health.nodes[0].troubles.clone().expect("a shard is dead");
    assert!(troubles.contains("slots 0-5460") && troubles.contains(&dead), "{troubles}");
    sleep(Duration::from_secs(3)).await;
    let (done, failed) = load.end().await;
    assert!(done > 50 && failed == 0, "{done} and {failed} of living masters");
    // It comes back with an empty memory.
    cluster.servers[0].again();
    let (waited, last) = until_granted(&client, &names[0]).await;
    assert!(waited + Duration::from_secs(1) > QUARANTINE, "{waited:?}: {last:?}");
    assert_eq!(client.health().await.nodes[0].troubles, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_of_one_cluster_are_one_vote() {
    let cluster = Cluster::start(3, 0, NODE_TIMEOUT);
    let twice = |n: usize| {
        let node = ClusterNode::builder([&cluster.addresses()[n]]).trust_fresh(true);
        node.build().unwrap()
    };
    let memory = MemoryNode::new();
    let client = Redlock::builder().ttl(TTL).max_ttl(TTL).node(twice(0)).node(twice(1));
    let client = client.node(memory.clone()).build().unwrap();
    let (_, _) = until_granted(&client, "n").await;
    // With the third one away, no majority is left.
    let alone = Redlock::builder().ttl(TTL).max_ttl(TTL).node(twice(0)).node(twice(1));
    let alone = alone.node(ClusterNode::new(["127.0.0.1:1"]).unwrap()).build().unwrap();
    let same = |outcome: &NodeOutcome| match outcome {
        NodeOutcome::Failed(e) => e.fault() == NodeFault::SameServer,
        _ => false,
    };
    let begun = Instant::now();
    loop {
        let refused = try_acquire(&alone, "n").await.unwrap_err();
        let AcquireError::NoQuorum(no) = &refused else { panic!("{refused}") };
        if no.nodes.iter().any(|(_, outcome)| same(outcome)) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_in_several_slots_and_odd_names_are_refused_with_a_sentence() {
    let cluster = Cluster::start(3, 0, NODE_TIMEOUT);
    let client = redlock(&cluster);
    let names = [name_at(&cluster, 0, "a"), name_at(&cluster, 1, "b")];
    let multi = client.multi(&names).build().unwrap();
    let refused = multi.try_acquire().await.map(drop).unwrap_err().to_string();
    assert!(refused.contains("common part in braces"), "{refused}");
    let together = client.multi(["{order-7}:stock", "{order-7}:invoice"]).build().unwrap();
    assert!(matches!(together.try_acquire().await, Ok(TryAcquire::Acquired(_))));
    let refused = try_acquire(&client, "a}b").await.map(drop).unwrap_err().to_string();
    assert!(refused.contains("use another name"), "{refused}");
    for odd in ["a{b", "{a}b", "ä", "a b"] {
        until_granted(&client, odd).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_classic_client_of_the_cluster_is_excluded_by_the_same_key() {
    let cluster = Cluster::start(3, 0, NODE_TIMEOUT);
    let client = redlock(&cluster);
    let name = name_at(&cluster, 1, "n");
    until_granted(&client, &name).await;
    let set = ["set", &name, "0123456789abcdef012345", "nx", "px", "60000"];
    assert_eq!(cluster.servers[1].cli(&set), "OK");
    assert!(matches!(try_acquire(&client, &name).await, Ok(TryAcquire::Taken(_))));
    assert_eq!(cluster.servers[1].cli(&["del", &name]), "1");
    let held = try_acquire(&client, &name).await.unwrap().acquired().expect("it is free");
    assert_eq!(cluster.servers[1].cli(&set), "");
    held.release().await.unwrap();
    assert_eq!(cluster.servers[1].cli(&set), "OK");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_one_master_is_refused() {
    let cluster = Cluster::start(1, 0, NODE_TIMEOUT);
    let client = Redlock::builder().ttl(TTL).max_ttl(TTL).node(node(&cluster)).build().unwrap();
    let refused = try_acquire(&client, "n").await.unwrap_err().to_string();
    assert!(refused.contains("use three masters"), "{refused}");
}

/// All slots are marked at once, so names of every slot are granted without a quarantine.
#[tokio::test(flavor = "multi_thread")]
async fn init_marks_all_slots_of_a_cluster() {
    let cluster = Cluster::start(3, 1, NODE_TIMEOUT);
    let url = format!("cluster://{}", cluster.addresses()[0]);
    let deployment = || {
        let deployment = palisade_ops::Deployment::new().node(url.clone());
        deployment.timeout(Duration::from_secs(20))
    };
    let done = palisade_ops::init(&deployment(), "").await.unwrap();
    assert_eq!(done.exit_code(), 0, "{done}");
    assert!(done.to_string().contains("16384 slots"), "{done}");
    let doctor = palisade_ops::doctor::Doctor::new(deployment());
    let examine = || doctor.examine();
    let report = examine().await.unwrap().to_string();
    assert!(!report.contains("have no marker"), "{report}");
    let client = Redlock::from_urls(&url).unwrap();
    for n in 0..20 {
        let name = format!("n-{n}");
        let begun = Instant::now();
        let got = try_acquire(&client, &name).await;
        assert!(matches!(got, Ok(TryAcquire::Acquired(_))), "{got:?}");
        assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    }
    // A slot has keys, and its marker is gone.
    let again = palisade_ops::init(&deployment(), "").await.unwrap();
    assert!(again.is_done() && again.to_string().contains("already"), "{again}");
    // No program uses this slot.
    let used: Vec<u16> = (0..20).map(|n| cluster.slot(&format!("n-{n}"))).collect();
    let slot = (0..100).find(|slot| !used.contains(slot)).expect("there are more slots");
    let master = &cluster.servers[cluster.owner(slot)];
    let slot = slot.to_string();
    let keys = master.cli(&["cluster", "getkeysinslot", &slot, "10"]);
    let marker = keys.lines().find(|key| key.starts_with("palisade:generation")).unwrap();
    assert_eq!(master.cli(&["del", marker]), "1");
    let report = examine().await.unwrap().to_string();
    assert!(report.contains("1 slots have no marker"), "{report}");
    let refused = palisade_ops::init(&deployment(), "").await.unwrap();
    assert_eq!(refused.exit_code(), 2, "{refused}");
    assert!(!refused.to_string().contains("--lost-everything"), "{refused}");
    let lost = palisade_ops::init_lost(&deployment()).await.unwrap();
    assert_eq!(lost.exit_code(), 0, "{lost}");
    cluster.begin_move(7, 0, 1);
    let report = examine().await.unwrap();
    assert_eq!(report.exit_code(false), 2, "{report}");
    let open = format!("{} has slots that are being moved", cluster.servers[0].addr());
    assert!(report.to_string().contains(&open), "{report}");
}
