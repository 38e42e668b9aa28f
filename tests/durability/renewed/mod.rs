//! Renewal directly after a failover. Without a call, and before its next renewal is due, a guard
//! reports if its lock is kept, open (not decided yet) or lost. If the new master lacks the lock,
//! the lock is stored there again, or is lost.

mod lone;
mod memory;

use std::time::Duration;

use palisade::node::MinReplicas;
use palisade::node::SentinelNodeBuilder;
use palisade::node::spi::{Env, SystemEnv};
use palisade::{Failover, LockGuard, Redlock, SentinelNode, TryAcquire};

use crate::support::group::{Groups, cli, scripts_run};
use crate::support::wait::until;

/// Longest time for an event that must happen. The test does not check the speed.
const PATIENCE: Duration = Duration::from_secs(120);
/// Lease of the locks. A regular renewal comes after a quarter of the lease, so it does not come
/// during a test. Each renewal in a test is caused by a failover.
const TTL: Duration = Duration::from_secs(600);

fn node(groups: &Groups) -> SentinelNodeBuilder {
    SentinelNode::builder(groups.name(0), groups.sentinels(0))
}

/// Returns a handle on one group, with this failover window (time in which a replaced master may
/// still grant). The min-replicas check is off, so that the master grants locks without its
/// replicas.
fn handle(node: SentinelNodeBuilder, window: Duration) -> Redlock {
    let node = node.min_replicas_check(MinReplicas::Off).failover_window(window).build().unwrap();
    Redlock::builder().node(node).ttl(TTL).max_ttl(TTL).build().unwrap()
}

async fn verdict(guard: &LockGuard) -> Failover {
    let verdict = tokio::time::timeout(PATIENCE, guard.failover()).await;
    verdict.expect("a verdict comes without a call")
}

/// Stops the replication from the master, so that the replicas lack later writes. All servers still
/// run.
async fn stop_replication(groups: &Groups) {
    let servers = groups.servers(0);
    for replica in &servers[1..] {
        assert_eq!(cli(replica, &["CONFIG", "SET", "masterauth", "nobody"]), "OK");
    }
    cli(&servers[0], &["CLIENT", "KILL", "TYPE", "replica"]);
    let cut = || cli(&servers[0], &["INFO", "replication"]).contains("connected_slaves:0");
    until("replication stops", cut).await;
}

/// Returns the server, other than the first one, that reports itself as master.
fn new_master(groups: &Groups) -> String {
    let role = |addr: &String| cli(addr, &["INFO", "replication"]).contains("role:master");
    groups.servers(0)[1..].iter().find(|addr| role(addr)).expect("a replica was promoted").clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_survived_a_failover_is_renewed_at_once() {
    let groups = Groups::up_with(1, 2_000, 0, &[]);
    let redlock = handle(node(&groups), Duration::from_secs(3));
    let guard = redlock.mutex("kept").build().unwrap().acquire().await.unwrap();
    let deadline = guard.valid_until();
    let there = |server: &String| cli(server, &["EXISTS", "kept"]) == "1";
    until("replicas have it", || groups.servers(0).iter().all(there)).await;
    groups.break_("failover", 0, &[]);

    assert_eq!(verdict(&guard).await, Failover::Kept);
    assert!(guard.is_valid() && guard.valid_until() > deadline);
    assert!(guard.release().await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_failover_lost_is_put_back_before_the_next_renewal() {
    let groups = Groups::up_with(1, 1_000, 0, &[]);
    let redlock = handle(node(&groups), Duration::from_secs(3));
    // This call makes the node connect before replication stops.
    redlock.mutex("other").build().unwrap().acquire().await.unwrap().release().await.unwrap();
    stop_replication(&groups).await;
    let guard = redlock.mutex("lost").build().unwrap().acquire().await.unwrap();
    let (token, deadline) = (guard.fencing_token(), guard.valid_until());
    groups.break_("kill", 0, &[]);

    // The renewer stores the lock on the new master at once. Without the failover, the next renewal
    // would be minutes away.
    assert_eq!(verdict(&guard).await, Failover::Kept);
    assert_eq!(guard.fencing_token(), token);
    assert!(guard.is_valid() && guard.valid_until() > deadline);
    let master = new_master(&groups);
    assert_eq!(cli(&master, &["EXISTS", "lost"]), "1");
    assert_eq!(cli(&master, &["GET", "{lost}:fence"]), token.get().to_string());
    // Two for the marker and one to put back, and looks at a server that is not yet the master.
    let requests = scripts_run(&master);
    assert!(requests <= 12, "{requests}");
    // No other handle gets the lock from the new master.
    let rival = handle(node(&groups), Duration::from_secs(3));
    let got = rival.mutex("lost").build().unwrap().try_acquire().await;
    assert!(got.ok().and_then(TryAcquire::acquired).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_not_be_put_back_is_given_up_at_once() {
    let groups = Groups::up_with(1, 1_000, 0, &[]);
    // The failover window, the time in which a replaced master may still grant, is twice the ttl.
    // So the old master may still grant after its copy of the lock has ended, and the lock cannot
    // be kept.
    let redlock = handle(node(&groups), 2 * TTL);
    redlock.mutex("other").build().unwrap().acquire().await.unwrap().release().await.unwrap();
    stop_replication(&groups).await;
    let guard = redlock.mutex("gone").build().unwrap().acquire().await.unwrap();
    let deadline = guard.valid_until();
    groups.break_("kill", 0, &[]);

    assert_eq!(verdict(&guard).await, Failover::Lost);
    assert!(!guard.is_valid());
    let left = deadline.since(SystemEnv.now());
    assert!(left > TTL / 2, "it waited for its deadline: {left:?} left");
    assert_eq!(verdict(&guard).await, Failover::Lost, "it stays lost");
    // The lock is lost, because the new master does not have it. (The old master still has it.)
    assert_eq!(cli(&new_master(&groups), &["EXISTS", "gone"]), "0");
}
