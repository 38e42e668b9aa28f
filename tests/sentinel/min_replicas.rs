//! The min-replicas check on real servers: the node checks that its master refuses writes without
//! enough good replicas. It repeats the check while connected and after each failover. If the
//! setting is missing, the error names it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use palisade::Advice;
use palisade::error::{NodeError, NodeFault};
use palisade::node::spi::{Env, SystemEnv};
use palisade::node::spi::{NodeSignal, Reply};
use palisade::node::{MinReplicas, NodeEvent, RedisNode, SentinelNode, spi::LockNode};
use tokio::sync::broadcast;

use crate::node::{MAX_TTL, PATIENCE, acquire, call};
use crate::support::group::{Groups, cli};
use crate::support::ops;
use crate::support::server::Server;
use crate::support::wait::until as eventually;

const LAG: Duration = Duration::from_secs(1);

/// Sends acquires of new names to the node until `holds` returns true for a reply.
async fn until(
    node: &dyn LockNode,
    what: &str,
    mut holds: impl FnMut(&Result<Reply, NodeError>) -> bool,
) -> Result<Reply, NodeError> {
    crate::node::until(node, what, |replies| holds(&replies.items[0])).await.items.remove(0)
}

async fn ask(node: &dyn LockNode, name: &str) -> Result<Reply, NodeError> {
    call(node, acquire(name), Duration::from_secs(1)).await.items.remove(0)
}

fn granted(got: &Result<Reply, NodeError>) -> bool {
    matches!(got, Ok(Reply::Granted { .. }))
}

fn missing(got: &Result<Reply, NodeError>) -> bool {
    got.as_ref().is_err_and(|e| e.fault() == NodeFault::MinReplicasMissing)
}

/// Returns `min-replicas-to-write` and `min-replicas-max-lag` of the server.
fn guard_of(addr: &str) -> (String, String) {
    let get = |name: &str| {
        let got = cli(addr, &["CONFIG", "GET", name]);
        got.lines().nth(1).unwrap_or_default().to_owned()
    };
    (get("min-replicas-to-write"), get("min-replicas-max-lag"))
}

fn is(k: &str, lag: &str) -> (String, String) {
    (k.to_owned(), lag.to_owned())
}

fn set(addr: &str, k: &str, lag: &str) {
    let words = ["CONFIG", "SET", "min-replicas-to-write", k, "min-replicas-max-lag", lag];
    assert_eq!(cli(addr, &words), "OK");
}

fn received(events: &mut broadcast::Receiver<NodeSignal>) -> Vec<NodeEvent> {
    let signals = std::iter::from_fn(|| events.try_recv().ok());
    let events = signals.filter_map(|signal| match signal {
        NodeSignal::Event(event) => Some(event),
        _ => None,
    });
    events.collect()
}

fn group(groups: &Groups) -> SentinelNode {
    let node = SentinelNode::builder(groups.name(0), groups.sentinels(0));
    node.min_replicas(1, LAG).build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_switched_off_while_connected_ends_the_vote_until_it_is_mended() {
    let groups = Groups::up(1);
    let node = group(&groups);
    let mut events = node.events();
    until(&node, "guarded", granted).await.unwrap();
    let master = groups.servers(0)[0].clone();
    set(&master, "0", "1");
    let e = until(&node, "noticed", missing).await.unwrap_err();
    let (text, command) = (e.to_string(), "CONFIG SET min-replicas-to-write 1");
    assert!(text.contains("the min-replicas check is off") && text.contains(command), "{text}");
    assert_eq!((e.is_ambiguous(), e.advice()), (false, Advice::Misconfigured));
    assert_eq!(node.status().last_error, Some(e));
    set(&master, "1", "1");
    until(&node, "mended", granted).await.unwrap();
    let reported = received(&mut events);
    let absent = reported.iter().position(
        |e| matches!(e, NodeEvent::MinReplicasMissing { why, .. } if why.contains("check is off")),
    );
    let restored = reported.iter().position(|e| *e == NodeEvent::MinReplicasRestored);
    assert!(absent.is_some() && absent < restored, "{reported:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_only_the_master_has_ends_with_the_failover() {
    let groups = Groups::up_with(1, 3_000, 0, &[]);
    let old = groups.servers(0)[0].clone();
    set(&old, "1", "1");
    let node = group(&groups);
    until(&node, "guarded", granted).await.unwrap();
    groups.break_("failover", 0, &[]);
    eventually("the switch", || node.status().master.is_some_and(|m| m != old)).await;
    let e = until(&node, "after the failover", missing).await.unwrap_err();
    assert!(e.to_string().contains("replicas too"), "{e}");
    // The new master uses the settings in its own file, in which the lag is 0, so it does not check
    // its replicas.
    assert_eq!(guard_of(&node.status().master.unwrap()), is("1", "0"));
}

/// A replica's longest permitted lag must be at least 2 s shorter than down-after, the time after
/// which a Sentinel replaces a silent master. Two Sentinels have such a down-after. The third
/// Sentinel has a shorter one. Any of the three can begin a failover, so the shortest counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shortest_down_after_of_any_sentinel_counts() {
    let groups = Groups::up(1);
    let (name, hasty) = (groups.name(0), groups.sentinels(0)[2].clone());
    let node = group(&groups);
    until(&node, "kept", granted).await.unwrap();
    let set = ["SENTINEL", "SET", &*name, "down-after-milliseconds", "2000"];
    assert_eq!(cli(&hasty, &set), "OK");
    let e = until(&node, "broken", missing).await.unwrap_err();
    assert!(e.to_string().contains("more than down-after-milliseconds (2000)"), "{e}");
    let mend = ["SENTINEL", "SET", &*name, "down-after-milliseconds", "3000"];
    assert_eq!(cli(&hasty, &mend), "OK");
    until(&node, "kept again", granted).await.unwrap();
}

/// Starts a master and a replica, without a Sentinel. Waits until the replica follows the master.
fn pair() -> (Server, Server) {
    let master = Server::start(&["--repl-diskless-sync-delay", "0"]);
    let port = master.port().to_string();
    let replica = Server::start(&["--replicaof", "127.0.0.1", &port]);
    let begun = Instant::now();
    while !master.cli(&["info", "replication"]).contains("state=online") {
        assert!(begun.elapsed() < PATIENCE, "the replica does not follow");
        std::thread::sleep(Duration::from_millis(50));
    }
    (master, replica)
}

#[tokio::test]
async fn a_lone_servers_guard_is_looked_at_only_when_asked_for() {
    let (master, _replica) = pair();
    let node = || RedisNode::builder(master.url()).trust_fresh(true);
    until(&node().build().unwrap(), "off by default", granted).await.unwrap();
    let lax = node().min_replicas(1, LAG).min_replicas_check(MinReplicas::Warn).build().unwrap();
    let mut events = lax.events();
    until(&lax, "warned", granted).await.unwrap();
    let reported = received(&mut events);
    assert!(
        matches!(&reported[..], [NodeEvent::MinReplicasMissing { .. }, NodeEvent::Up]),
        "{reported:?}"
    );
    // A node that is built with explicit numbers requires the min-replicas settings on the server,
    // and grants nothing without them.
    let strict = node().min_replicas(1, LAG).build().unwrap();
    let e = ask(&strict, "k").await.unwrap_err();
    assert_eq!(e.fault(), NodeFault::MinReplicasMissing, "{e}");
    set(&master.addr(), "1", "1");
    until(&strict, "set by hand", granted).await.unwrap();
    set(&master.addr(), "0", "1");
    let e = until(&strict, "noticed", missing).await.unwrap_err();
    assert!(e.to_string().contains("CONFIG SET min-replicas-to-write 1"), "{e}");
    set(&master.addr(), "1", "1");
    until(&strict, "mended", granted).await.unwrap();
    for (k, lag) in [(0, LAG), (1, Duration::ZERO), (1, Duration::from_millis(1_500))] {
        let e = node().min_replicas(k, lag).build().unwrap_err();
        assert_eq!(e.field(), "min_replicas", "{e}");
    }
}

/// Redis counts its good replicas once a second. So, right after the end of a freeze, a master
/// executes the waiting requests by an old count, although no replica follows it any more. The node
/// must refuse these grants by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_thaws_does_not_grant_by_an_old_count_of_replicas() {
    let (master, replica) = pair();
    set(&master.addr(), "1", "1");
    let node = RedisNode::builder(master.url()).trust_fresh(true).min_replicas(1, LAG);
    let node = node.build().unwrap();
    for round in 0..3 {
        until(&node, &format!("followed {round}"), granted).await.unwrap();
        replica.freeze();
        master.freeze();
        let name = format!("buffered {round}");
        let op = ops::acquire(&name, ops::owner(), Duration::from_secs(60));
        // The batch has no deadline on the server's clock. With one, the server would refuse the
        // batch for being late, and not for the missing replica.
        let batch = ops::batch(MAX_TTL, vec![op]);
        let thaw = async {
            tokio::time::sleep(Duration::from_secs(4)).await;
            master.resume();
        };
        let call = node.call(batch, SystemEnv.now() + Duration::from_secs(20));
        let (replies, ()) = tokio::join!(call, thaw);
        let e = replies.items[0].as_ref().expect_err("nobody follows it");
        assert_eq!(e.fault(), NodeFault::NoReplicas, "{e}");
        assert_eq!(master.cli(&["exists", &name]), "0");
        replica.resume();
    }
}

/// For Redis, a replica is good if its lag is at most the longest permitted lag. The node must
/// accept a replica with exactly this lag, too.
#[tokio::test]
async fn a_replica_that_acknowledged_as_long_ago_as_is_allowed_is_good() {
    let (master, _replica) = pair();
    set(&master.addr(), "1", "1");
    let node = RedisNode::builder(master.url()).trust_fresh(true).min_replicas(1, LAG);
    let node = node.build().unwrap();
    let at_limit = || {
        let info = master.cli(&["info", "replication"]);
        info.lines().any(|line| line.trim_end().ends_with(",lag=1"))
    };
    let (begun, mut seen) = (Instant::now(), 0);
    for n in 0.. {
        assert!(begun.elapsed() < PATIENCE, "the lag was 1 s around {seen} requests only");
        if seen == 3 {
            break;
        }
        // The lag was 1 s both before and after the request, and half a second apart at most. So
        // the lag was 1 s during the request.
        let before = Instant::now();
        let was = at_limit();
        let got = ask(&node, &format!("{n}")).await;
        if was && at_limit() && before.elapsed() < Duration::from_millis(500) {
            // Redis counts its good replicas once a second. This number may be old, so Redis itself
            // may refuse the request. But the node's own check must not refuse it.
            let ours = |e: &NodeError| e.to_string().contains("acknowledged within");
            assert!(!got.as_ref().is_err_and(ours), "{got:?}");
            seen += u32::from(granted(&got));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_server_that_no_longer_lets_itself_be_judged_does_not_vote() {
    let (master, _replica) = pair();
    set(&master.addr(), "1", "1");
    let user = ["acl", "setuser", "app", "on", ">pw", "~*", "&*", "+@all"];
    assert_eq!(master.cli(&user), "OK");
    let node = RedisNode::builder(master.url()).username("app").password("pw").trust_fresh(true);
    let node = node.min_replicas(1, LAG).build().unwrap();
    until(&node, "judged", granted).await.unwrap();
    assert_eq!(master.cli(&["acl", "setuser", "app", "-info"]), "OK");
    let closed = |got: &Result<Reply, NodeError>| {
        got.as_ref().is_err_and(|e| e.fault() == NodeFault::NoPermission && !e.is_ambiguous())
    };
    until(&node, "shut out", closed).await.unwrap_err();
    assert_eq!(master.cli(&["acl", "setuser", "app", "+info"]), "OK");
    until(&node, "let in", granted).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_replicas_a_master_votes_noreplicas_and_nothing_runs() {
    let groups = Groups::up_with(1, 30_000, 1, &[]);
    let node: Arc<dyn LockNode> = Arc::new(group(&groups));
    until(&*node, "with replicas", granted).await.unwrap();
    groups.break_("freeze", 0, &["--server", "a2"]);
    groups.break_("freeze", 0, &["--server", "a3"]);
    let master = groups.servers(0)[0].clone();
    let refused = |got: &Result<Reply, NodeError>| {
        got.as_ref().is_err_and(|e| e.fault() == NodeFault::NoReplicas)
    };
    let e = until(&*node, "alone", refused).await.unwrap_err();
    assert!(!e.is_ambiguous(), "{e}");
    assert!(matches!(e.advice(), Advice::RetryAfter(_)), "{e}");
    assert!(e.to_string().contains("because too few replicas are good (NOREPLICAS)"), "{e}");
    assert!(ask(&*node, "refused").await.is_err());
    assert_eq!(cli(&master, &["EXISTS", "refused"]), "0");
    // A user of locks gets the error of the node. The metrics count this error by its kind.
    let redlock = palisade::Redlock::builder().node_arc(Arc::clone(&node)).build().unwrap();
    let e = redlock.mutex("m").build().unwrap().try_acquire().await.expect_err("no quorum");
    assert!(e.to_string().contains("(NOREPLICAS)"), "{e}");
    let counted = || redlock.metrics()[0].faults.contains_key(&NodeFault::NoReplicas);
    eventually("it to be counted", counted).await;
    groups.break_("resume", 0, &[]);
    until(&*node, "with replicas again", granted).await.unwrap();
}
