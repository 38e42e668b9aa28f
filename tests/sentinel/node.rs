//! `SentinelNode` on real Sentinel groups: the servers that it finds, the servers that it refuses,
//! and old masters to which it must not write again after a failover.

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::error::{NodeError, NodeFault};
use palisade::node::spi::{Env as _, Op, Replies, Reply, SystemEnv};
use palisade::node::{MinReplicas, SentinelNode, SentinelNodeBuilder, spi::LockNode};

use crate::support::group::{Groups, cli, scripts_run};
use crate::support::ops;
use crate::support::server::free_port;
use crate::support::wait::until as eventually;

pub(crate) const MAX_TTL: Duration = Duration::from_secs(1);
/// Time limit for an event that must happen. It is long, because the tests do not measure speed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

fn node(groups: &Groups) -> SentinelNode {
    builder(groups).build().unwrap()
}

fn builder(groups: &Groups) -> SentinelNodeBuilder {
    SentinelNode::builder(groups.name(0), groups.sentinels(0))
}

pub(crate) fn acquire(name: &str) -> Op {
    ops::acquire(name, ops::owner(), Duration::from_millis(500))
}

pub(crate) async fn call(node: &dyn LockNode, op: Op, within: Duration) -> Replies {
    let deadline = SystemEnv.now() + within;
    let batch = ops::batch(MAX_TTL, vec![op]);
    // The node must reply by its own deadline. The timeout is one second longer, so it fires only
    // if the node hangs.
    let answer = tokio::time::timeout(within + Duration::from_secs(1), node.call(batch, deadline));
    answer.await.expect("the node answers by its deadline")
}

/// Tries to acquire locks with new names until `holds` returns true for the replies.
pub(crate) async fn until(
    node: &dyn LockNode,
    what: &str,
    mut holds: impl FnMut(&Replies) -> bool,
) -> Replies {
    let begun = Instant::now();
    let mut i = 0;
    loop {
        i += 1;
        let replies = call(node, acquire(&format!("{what}:{i}")), Duration::from_secs(1)).await;
        if holds(&replies) {
            return replies;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: last {replies:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn granted(replies: &Replies) -> bool {
    matches!(replies.items[0], Ok(Reply::Granted { .. }))
}

fn fault(replies: &Replies) -> &NodeError {
    replies.items[0].as_ref().expect_err("a fault")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finds_the_master_and_tells_about_it() {
    let groups = Groups::up(1);
    // The settings name one Sentinel. The node discovers the other two.
    let node = SentinelNode::new(groups.name(0), [groups.sentinels(0).remove(1)]).unwrap();
    until(&node, "first grant", granted).await;
    let status = node.status();
    assert_eq!(status.master, Some(groups.servers(0)[0].clone()));
    assert_eq!(status.epoch, Some(0));
    // Two Sentinels are enough for the first grant. So the node may reach the third Sentinel only
    // later.
    let known = || (node.status().sentinels_known, node.status().sentinels_reachable);
    eventually("all Sentinels to be reached", || known() == (3, 3)).await;
    let info = cli(&groups.servers(0)[0], &["INFO"]);
    assert!(info.contains(&format!("run_id:{}", status.run_id.unwrap())));
    assert!(info.contains(&format!("master_replid:{}", status.replication_id.unwrap())));
    assert_eq!(status.failover_window, Some(Duration::from_secs(3)));
    assert_eq!(status.min_replicas.unwrap().min_replicas, Some(1));
    assert_eq!(status.last_error, None);
    assert_eq!(node.name(), Arc::from(groups.name(0)));

    // The settings map the master's address to another address. The node must use the other
    // address.
    let master = groups.servers(0)[0].clone();
    let outside = master.replace("127.0.0.1", "localhost");
    let mapped = |to: String| builder(&groups).map_address([(master.clone(), to)]).build().unwrap();
    let reached = mapped(outside.clone());
    until(&reached, "mapped", granted).await;
    assert_eq!(reached.status().master, Some(outside));
    // The settings map the master's address to an address without a server. The error must name
    // this setting.
    let nowhere = mapped(format!("127.0.0.1:{}", free_port()));
    let replies = call(&nowhere, acquire("nowhere"), Duration::from_secs(5)).await;
    let error = fault(&replies);
    assert_eq!(error.fault(), NodeFault::Unreachable);
    assert!(error.to_string().contains("say which by `map_address`"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_is_replaced_and_the_new_one_grants_only_after_quarantine() {
    let groups = Groups::up(1);
    let node = node(&groups);
    until(&node, "before", granted).await;
    groups.break_("kill", 0, &[]);
    let killed = Instant::now();
    // The first reply of the new master is not a grant: it is in quarantine, and grants nothing
    // yet.
    let first = until(&node, "after", |r| r.items[0].is_ok()).await;
    println!("kill (down-after 3 s) → first answer of the new master: {:?}", killed.elapsed());
    assert!(matches!(first.items[0], Ok(Reply::Quarantined { .. })), "{first:?}");
    let facts = first.facts.unwrap();
    assert!(facts.quarantine_len >= MAX_TTL + Duration::from_secs(3), "{facts:?}");
    assert_ne!(node.status().master, Some(groups.servers(0)[0].clone()));
    // A vote of the Sentinels without a majority is repeated under the next epoch.
    assert!(node.status().epoch >= Some(1), "{:?}", node.status());
    let grant = until(&node, "quarantine over", granted).await.facts.unwrap();
    // Compare by the clock of the server. The first reply contained the remaining quarantine, in
    // which the server grants nothing. So at least this time must pass between the reply and the
    // grant.
    let waited = Duration::from_micros(grant.node_micros - facts.node_micros);
    assert!(waited + Duration::from_millis(1) >= facts.quarantine, "{waited:?}, {facts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_manual_failover_no_call_goes_to_the_old_master() {
    let groups = Groups::up(1);
    let node = node(&groups);
    until(&node, "before", granted).await;
    let old = groups.servers(0)[0].clone();
    groups.break_("failover", 0, &[]);
    let ordered = Instant::now();
    eventually("the switch to be seen", || node.status().master.is_some_and(|m| m != old)).await;
    println!("SENTINEL FAILOVER → switch seen: {:?}", ordered.elapsed());
    cli(&old, &["CONFIG", "RESETSTAT"]);
    until(&node, "after", |r| r.items[0].is_ok()).await;
    println!("SENTINEL FAILOVER → first answer of the new master: {:?}", ordered.elapsed());
    for i in 0..20 {
        call(&node, acquire(&format!("more:{i}")), Duration::from_millis(500)).await;
    }
    assert_eq!(scripts_run(&old), 0, "scripts at the old master after the switch was seen");
    assert!(scripts_run(&node.status().master.unwrap()) >= 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_misconfiguration_has_its_own_fault_and_sentence() {
    let groups = Groups::up(1);
    let (name, sentinels, servers) = (groups.name(0), groups.sentinels(0), groups.servers(0));
    let group = || SentinelNode::builder(&*name, sentinels.clone());
    let unknown = format!("monitors no master \"no-such-group\", but \"{name}\"");
    let dead: Vec<_> = (0..2).map(|_| format!("127.0.0.1:{}", free_port())).collect();
    let cases = [
        (
            group().sentinel_username("nobody").sentinel_password("wr0ng").build().unwrap(),
            NodeFault::Auth,
            "check the credentials",
        ),
        (
            group().username("nobody").password("wr0ng").build().unwrap(),
            NodeFault::Auth,
            "check the credentials",
        ),
        (
            SentinelNode::new("no-such-group", sentinels.clone()).unwrap(),
            NodeFault::UnknownMaster,
            &*unknown,
        ),
        (
            SentinelNode::new(&*name, [servers[0].clone()]).unwrap(),
            NodeFault::NotSentinel,
            "check host and port",
        ),
        (
            SentinelNode::new(&*name, dead.clone()).unwrap(),
            NodeFault::NoSentinel,
            "no Sentinel reachable",
        ),
        (
            group().min_replicas(2, Duration::from_secs(1)).build().unwrap(),
            NodeFault::MinReplicasMissing,
            "CONFIG SET min-replicas-to-write 2 min-replicas-max-lag 1",
        ),
    ];
    for (node, expected, sentence) in cases {
        let replies = call(&node, acquire("k"), Duration::from_secs(1)).await;
        let error = fault(&replies);
        assert_eq!(error.fault(), expected, "{error}");
        assert!(!error.is_ambiguous(), "{error}");
        let text = error.to_string();
        assert!(text.contains(sentence) && !text.contains("wr0ng"), "{text}");
        assert_eq!(node.status().last_error.map(|e| e.fault()), Some(expected), "{text}");
    }
    for server in &servers {
        let written = cli(server, &["EXISTS", "k", "{k}:fence", "palisade:note"]);
        assert_eq!(written, "0", "nothing may be written on {server}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_of_sentinels_names_no_master() {
    let groups = Groups::up(1);
    groups.break_("freeze", 0, &["--server", "sa2"]);
    groups.break_("freeze", 0, &["--server", "sa3"]);
    let node = node(&groups);
    let replies = call(&node, acquire("k"), Duration::from_secs(2)).await;
    let error = fault(&replies);
    assert_eq!(error.fault(), NodeFault::NoAgreement, "{error}");
    assert!(error.to_string().contains("2 must name one master"), "{error}");
    groups.break_("resume", 0, &[]);
    until(&node, "majority again", granted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_first_sentinel_does_not_stop_a_cold_start() {
    let groups = Groups::up(1);
    groups.break_("freeze", 0, &["--server", "sa1"]);
    let node = node(&groups);
    let replies = call(&node, acquire("k"), Duration::from_secs(2)).await;
    assert!(granted(&replies), "{replies:?}");
    assert_eq!((node.status().sentinels_known, node.status().sentinels_reachable), (3, 2));
    // The node repeats its requests to the frozen Sentinel. This must not cause more requests to
    // the other Sentinels.
    let other = &groups.sentinels(0)[1];
    let asked = || {
        let stats = cli(other, &["INFO", "stats"]);
        let line = stats.lines().find_map(|l| l.strip_prefix("total_commands_processed:"));
        line.and_then(|n| n.trim().parse::<u64>().ok()).expect("INFO stats of a Sentinel")
    };
    let before = asked();
    tokio::time::sleep(Duration::from_secs(4)).await;
    // In 4 s the node sends four polls of four requests, and the Sentinels send their own
    // commands. All together are far fewer than a hundred.
    let after = asked();
    assert!(after - before < 100, "{} commands in 4 s", after - before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_minimal_acl_is_enough_and_polling_follows_a_failover() {
    let groups = Groups::up(1);
    let profile = "on >pw -@all +auth +client|getname +client|id +client|setname +command +hello \
                   +ping +role +sentinel|get-master-addr-by-name +sentinel|master +sentinel|myid \
                   +sentinel|replicas +sentinel|sentinels";
    for sentinel in groups.sentinels(0) {
        let mut words = vec!["ACL", "SETUSER", "app"];
        words.extend(profile.split_whitespace());
        assert_eq!(cli(&sentinel, &words), "OK");
        let refused = cli(&sentinel, &["--user", "app", "--pass", "pw", "SUBSCRIBE", "+sdown"]);
        assert!(refused.contains("NOPERM"), "{refused}");
    }
    let node = builder(&groups).sentinel_username("app").sentinel_password("pw").build().unwrap();
    until(&node, "before", granted).await;
    groups.break_("failover", 0, &[]);
    let old = groups.servers(0)[0].clone();
    until(&node, "after", |r| r.items[0].is_ok() && node.status().master.is_some_and(|m| m != old))
        .await;
    assert_eq!(node.status().epoch, Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_guard_votes_only_where_that_was_asked_for() {
    let groups = Groups::up_with(1, 3_000, 0, &[]);
    let strict = node(&groups);
    let replies = call(&strict, acquire("k"), Duration::from_secs(1)).await;
    let text = fault(&replies).to_string();
    assert_eq!(fault(&replies).fault(), NodeFault::MinReplicasMissing, "{text}");
    assert!(text.contains("CONFIG SET min-replicas-to-write 1 min-replicas-max-lag 2"), "{text}");
    assert_eq!(strict.status().last_error.as_ref(), Some(fault(&replies)));
    for policy in [MinReplicas::Warn, MinReplicas::Off] {
        let lax = builder(&groups).min_replicas_check(policy).build().unwrap();
        until(&lax, "without guard", granted).await;
        assert_eq!(lax.status().failover_window, Some(Duration::from_secs(15)));
    }
    // The error names a command that corrects the setting. Run this command on all servers.
    for server in groups.servers(0) {
        let mend = ["CONFIG", "SET", "min-replicas-to-write", "1", "min-replicas-max-lag", "1"];
        assert_eq!(cli(&server, &mend), "OK");
    }
    until(&strict, "mended", granted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_is_lost_ends_the_vote() {
    let groups = Groups::up(1);
    let node = node(&groups);
    until(&node, "guarded", granted).await;
    let master = groups.servers(0)[0].clone();
    assert_eq!(cli(&master, &["CONFIG", "SET", "min-replicas-to-write", "0"]), "OK");
    let missing = |r: &Replies| {
        r.items[0].as_ref().is_err_and(|e| e.fault() == NodeFault::MinReplicasMissing)
    };
    until(&node, "noticed", missing).await;
    assert_eq!(cli(&master, &["CONFIG", "SET", "min-replicas-to-write", "1"]), "OK");
    until(&node, "mended", granted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_end_with_the_node() {
    let groups = Groups::up(1);
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = alive();
    let node = node(&groups);
    until(&node, "grant", granted).await;
    assert!(alive() > before);
    drop(node);
    eventually("all tasks to end", || alive() <= before).await;
    // The connections of the dropped node to the Sentinels and to the servers close, too.
    for addr in groups.sentinels(0).iter().chain(&groups.servers(0)) {
        eventually("the connections to close", || {
            !cli(addr, &["CLIENT", "LIST"]).contains("resp=3")
        })
        .await;
    }
}
