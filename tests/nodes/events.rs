//! Events and metrics of a handle's nodes, on real servers and groups. Each beginning and end of a
//! quarantine (the time after a loss of data in which a node grants nothing) is reported with its
//! cause. A disagreement about settings is reported, too.

use std::time::{Duration, Instant};

use palisade::error::NodeFault;
use palisade::node::{HistoryCause, NodeEvent, NodeEvents, RedisNode, SentinelNode, spi::LockNode};
use palisade::{Durability, MemoryNode, Redlock};
use tracing_subscriber::filter::LevelFilter;

use crate::support::group::Groups;
use crate::support::logs::Log;
use crate::support::server::Server;

/// Time limit for an event that must happen. It is long, because the tests do not measure speed.
const PATIENCE: Duration = Duration::from_secs(120);
const SECOND: Duration = Duration::from_secs(1);

fn redlock(node: impl LockNode, max_ttl: Duration) -> Redlock {
    let redlock = Redlock::builder().node(node).ttl(max_ttl).max_ttl(max_ttl);
    redlock.build().expect("settings that fit together")
}

fn lone(server: &Server) -> RedisNode {
    RedisNode::builder(server.url()).trust_fresh(true).build().unwrap()
}

/// Collects events until `last` returns true for one of them. Leaves out events about connections.
/// Acquires and releases the lock `name` again and again meanwhile, because a node reports events
/// only about its replies.
async fn until(
    redlock: &Redlock,
    events: &mut NodeEvents,
    name: &str,
    last: impl Fn(&NodeEvent) -> bool,
) -> Vec<NodeEvent> {
    let (begun, mut seen) = (Instant::now(), Vec::new());
    loop {
        if let Ok(guard) = redlock.mutex(name).build().unwrap().try_acquire().await {
            drop(guard);
        }
        while let Some(event) = events.try_next().map(|named| named.event) {
            if matches!(event, NodeEvent::Up | NodeEvent::Down) {
                continue;
            }
            let end = last(&event);
            seen.push(event);
            if end {
                return seen;
            }
        }
        assert!(begun.elapsed() < PATIENCE, "still waiting; after {seen:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn cause(event: &NodeEvent) -> Option<HistoryCause> {
    match event {
        NodeEvent::HistoryChanged { cause, .. } => Some(*cause),
        _ => None,
    }
}

#[tokio::test]
async fn a_loss_of_data_and_a_restart_are_reported_from_beginning_to_end() {
    let keeps = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut server = Server::start(&keeps);
    // The first handle trusts the fresh server, so the server's data history begins without a
    // quarantine (a time without grants). The second handle does not trust fresh servers.
    let first = redlock(lone(&server), 2 * SECOND);
    first.mutex("warm").build().unwrap().acquire().await.unwrap().release().await.unwrap();
    let redlock = redlock(RedisNode::new(server.url()).unwrap(), 2 * SECOND);
    let mut events = redlock.events();
    let held = redlock.mutex("held").build().unwrap().acquire().await.unwrap();
    assert_eq!(server.cli(&["flushall"]), "OK");
    let seen = until(&redlock, &mut events, "other", |e| *e == NodeEvent::QuarantineEnded).await;
    let at =
        |what: &dyn Fn(&NodeEvent) -> bool| seen.iter().position(what).expect("it was reported");
    let lost = at(&|e| cause(e) == Some(HistoryCause::DataLost));
    let begun = at(
        &|e| matches!(e, NodeEvent::QuarantineBegun { remaining, .. } if *remaining <= 2 * SECOND),
    );
    let back = at(&|e| matches!(e, NodeEvent::Reasserted { leases: 1, .. }));
    assert!(lost < begun && begun < back, "{seen:?}");
    assert_eq!(seen.last(), Some(&NodeEvent::QuarantineEnded));
    assert!(held.is_valid(), "the holder outlived it all");
    let m = &redlock.metrics()[0];
    assert_eq!((m.quarantines, m.reassertions, m.switches), (1, 1, 0), "{m:?}");
    assert!(m.grants >= 1 && m.refusals >= 1 && m.batches >= 3 && m.ops >= m.batches, "{m:?}");

    server.restart();
    let seen = until(&redlock, &mut events, "third", |e| *e == NodeEvent::QuarantineEnded).await;
    let causes: Vec<_> = seen.iter().filter_map(cause).collect();
    assert_eq!(causes, [HistoryCause::Restart], "{seen:?}");
    let m = &redlock.metrics()[0];
    assert_eq!((m.quarantines, m.switches), (2, 0), "{m:?}");
    assert!(m.histories >= 3, "{m:?}");
    drop(held);
}

#[tokio::test]
async fn a_first_start_is_told_once_and_is_no_warning() {
    let log = Log::of_this_thread(LevelFilter::INFO);
    let node = MemoryNode::builder().quarantined().build();
    let first = redlock(node.clone(), SECOND);
    let mut events = first.events();
    let seen = until(&first, &mut events, "a", |e| *e == NodeEvent::QuarantineEnded).await;
    let causes: Vec<_> = seen.iter().filter_map(cause).collect();
    assert_eq!(causes, [HistoryCause::FirstUse], "{seen:?}");
    let told = log.lines(&["event=\"history_changed\""]);
    let [line] = &told[..] else { panic!("{}", log.text()) };
    assert!(line.contains(" INFO ") && line.contains("cause=\"first use\""), "{line}");

    let second = redlock(node, SECOND);
    let mut events = second.events();
    drop(second.mutex("a").build().unwrap().acquire().await.unwrap());
    let more: Vec<_> = std::iter::from_fn(|| events.try_next()).collect();
    assert!(more.iter().all(|named| cause(&named.event).is_none()), "{more:?}");
}

#[tokio::test]
async fn disagreeing_clients_are_both_informed() {
    let server = Server::start(&[]);
    let shorter = redlock(lone(&server), 5 * SECOND);
    let mut to_shorter = shorter.events();
    shorter.mutex("a").build().unwrap().acquire().await.unwrap().release().await.unwrap();
    let longer = redlock(lone(&server), 20 * SECOND);
    let mut to_longer = longer.events();
    longer.mutex("a").build().unwrap().acquire().await.unwrap().release().await.unwrap();
    let differ = |e: &NodeEvent| matches!(e, NodeEvent::SettingsDisagree { .. });
    let seen = until(&longer, &mut to_longer, "b", differ).await;
    let Some(NodeEvent::SettingsDisagree { ours, node, .. }) = seen.last() else { panic!() };
    assert_eq!((*ours, *node), (20 * SECOND, 20 * SECOND), "raised");
    let seen = until(&shorter, &mut to_shorter, "c", differ).await;
    let Some(NodeEvent::SettingsDisagree { ours, node, .. }) = seen.last() else { panic!() };
    assert_eq!((*ours, *node), (5 * SECOND, 20 * SECOND), "the longest counts");
    // The event `SettingsDisagree` is sent once, not with every batch.
    for i in 0..5 {
        drop(shorter.mutex(format!("d{i}")).build().unwrap().acquire().await.unwrap());
    }
    let more: Vec<_> = std::iter::from_fn(|| to_shorter.try_next()).collect();
    assert!(!more.iter().any(|named| differ(&named.event)), "{more:?}");
    // A client with the same `max_ttl` as the node gets no such event.
    let same = redlock(lone(&server), 20 * SECOND);
    let mut to_same = same.events();
    drop(same.mutex("e").build().unwrap().acquire().await.unwrap());
    let seen: Vec<_> = std::iter::from_fn(|| to_same.try_next()).collect();
    assert!(!seen.iter().any(|named| differ(&named.event)), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_a_promotion_and_a_switch() {
    let groups = Groups::up(1);
    let node = SentinelNode::new(groups.name(0), groups.sentinels(0)).unwrap();
    let redlock = redlock(node, SECOND);
    let mut events = redlock.events();
    let mutex = redlock.mutex("warm").durability(Durability::AllReplicas).build().unwrap();
    mutex.acquire().await.unwrap().release().await.unwrap();
    let m = &redlock.metrics()[0];
    assert!(m.barriers >= 1, "{m:?}");
    groups.break_("failover", 0, &[]);
    let seen = until(&redlock, &mut events, "m", |e| *e == NodeEvent::QuarantineEnded).await;
    let causes: Vec<_> = seen.iter().filter_map(cause).collect();
    assert_eq!(causes, [HistoryCause::Promotion], "{seen:?}");
    let m = &redlock.metrics()[0];
    assert_eq!((m.switches, m.quarantines), (1, 1), "{m:?}");
    // One replica is frozen, so a lock that must reach all replicas is refused. The metrics count
    // the failed barrier (the wait for replicas), but not as a fault of the min-replicas setting.
    let groups = Groups::up_with(1, 30_000, 1, &[]);
    let node = SentinelNode::new(groups.name(0), groups.sentinels(0)).unwrap();
    let redlock = self::redlock(node, SECOND);
    groups.break_("freeze", 0, &["--server", "a3"]);
    let mutex = redlock.mutex("warm").durability(Durability::AllReplicas).build().unwrap();
    // The first attempts may end before there is a connection.
    for _ in 0..20 {
        assert!(mutex.try_acquire().await.is_err());
        if redlock.metrics()[0].barriers_failed > 0 {
            break;
        }
    }
    let m = &redlock.metrics()[0];
    assert!(m.barriers_failed >= 1, "{m:?}");
    assert!(!m.faults.contains_key(&NodeFault::MinReplicasMissing), "{m:?}");
}

#[tokio::test]
async fn clients_with_another_clock_error_are_both_informed() {
    let log = Log::of_this_thread(LevelFilter::INFO);
    let server = Server::start(&[]);
    let with = |error: u32| {
        let redlock = Redlock::builder().node(lone(&server)).ttl(20 * SECOND).max_ttl(20 * SECOND);
        redlock.clock_error(error * SECOND).build().expect("settings that fit together")
    };
    let (smaller, larger) = (with(2), with(5));
    let (mut to_smaller, mut to_larger) = (smaller.events(), larger.events());
    smaller.mutex("a").build().unwrap().acquire().await.unwrap().release().await.unwrap();
    let differ = |e: &NodeEvent| matches!(e, NodeEvent::SettingsDisagree { .. });
    let errors = |seen: Vec<NodeEvent>| match seen.last() {
        Some(NodeEvent::SettingsDisagree { our_clock_error, node_clock_error, .. }) => {
            (our_clock_error.as_secs(), node_clock_error.as_secs())
        }
        _ => panic!("{seen:?}"),
    };
    let seen = until(&larger, &mut to_larger, "b", differ).await;
    assert_eq!(errors(seen), (5, 5), "raised");
    let seen = until(&smaller, &mut to_smaller, "c", differ).await;
    assert_eq!(errors(seen), (2, 5), "the largest counts");
    let lower = format!(
        "`palisade settings --lower --max-ttl 20s --clock-error 2s --node {}`",
        server.url()
    );
    let told = log.lines(&[&lower, "our_clock_error_ms=2000 node_clock_error_ms=5000"]);
    assert_eq!(told.len(), 1, "{}", log.text());
}
