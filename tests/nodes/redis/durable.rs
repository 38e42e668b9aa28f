//! A server that was declared `durable`, with each write on disk before it answers: killed and
//! started again with all its data, with older ones, and with none (quarantine 23 in docs/design).

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use palisade::error::NodeOutcome;
use palisade::internal::lineage::{Handover, Marker};
use palisade::node::NodeEvents;
use palisade::{Health, Idempotency, Outcome, Redlock, TryAcquire};
use palisade_ops::Deployment;
use tokio::time::sleep;

use super::lineage::{evict, up};
use super::*;
use crate::support::marker::marker;
use crate::support::proxy::Proxy;
use crate::support::wait::until;

const ALWAYS: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
/// No test waits for the end of such a quarantine.
const MAX_TTL: Duration = Duration::from_secs(3_600);
/// Only what hangs exceeds it, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

async fn marked() -> Server {
    let server = Server::start(&ALWAYS);
    init(&server).await;
    server
}

/// Again as long as the machine is too busy for it.
pub(super) async fn init(server: &Server) {
    let begun = Instant::now();
    loop {
        let done = palisade_ops::init(&Deployment::new().node(server.url()), "").await.unwrap();
        if done.is_done() {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{done}");
    }
}

fn handle(address: &str, ttl: Duration, durable: bool) -> Redlock {
    let node = RedisNode::builder(format!("redis://{address}")).durable(durable).build().unwrap();
    let builder = Redlock::builder().node(node).ttl(ttl).max_ttl(MAX_TTL);
    let builder = builder.clock_error(Duration::from_millis(50));
    builder.node_deadline(ttl / 4).build().unwrap()
}

/// Repeats the question as long as the node gives no answer.
async fn health(redlock: &Redlock) -> Health {
    let end = Instant::now() + PATIENCE;
    loop {
        let health = redlock.health().await;
        if matches!(
            health.nodes[0].outcome,
            NodeOutcome::Granted | NodeOutcome::Held(_) | NodeOutcome::Quarantined { .. }
        ) {
            return health;
        }
        assert!(Instant::now() < end, "{health}");
        sleep(Duration::from_millis(20)).await;
    }
}

fn keys(redlock: &Redlock) -> Idempotency {
    redlock.idempotency("orders").at_most_once().build().unwrap()
}

async fn order(keys: &Idempotency, key: &str) -> Outcome<u32> {
    keys.key(key).run(|_| async { Ok::<_, String>(1) }).await.unwrap()
}

fn seen(events: &mut NodeEvents) -> Vec<NodeEvent> {
    std::iter::from_fn(|| events.try_next().map(|named| named.event)).collect()
}

fn begins(event: &NodeEvent) -> bool {
    matches!(event, NodeEvent::QuarantineBegun { .. } | NodeEvent::HistoryChanged { .. })
}

#[tokio::test]
async fn a_killed_server_that_was_declared_durable_goes_on_and_another_one_does_not() {
    for durable in [true, false] {
        let mut server = marked().await;
        let redlock = handle(&server.addr(), TTL, durable);
        let rival = handle(&server.addr(), TTL, durable);
        let held = redlock.mutex("held").build().unwrap().acquire().await.unwrap();
        assert!(order(&keys(&redlock), "before").await.is_executed());
        let (mut events, before) = (redlock.events(), marker(&server));
        server.restart();
        let (ours, theirs) = (health(&redlock).await, health(&rival).await);
        assert_eq!((ours.is_ready(), theirs.is_ready()), (durable, durable), "{ours}; {theirs}");
        let events = seen(&mut events);
        assert_eq!(events.iter().any(begins), !durable, "{events:?}");
        assert_eq!(events.contains(&NodeEvent::Renamed), durable, "{events:?}");
        assert!(!events.contains(&NodeEvent::DurableRefuted), "{events:?}");
        let got = rival.mutex("held").build().unwrap().try_acquire().await;
        assert!(matches!(got, Ok(TryAcquire::Taken(_)) if durable) || got.is_err(), "{got:?}");
        assert!(held.is_valid());
        assert!(matches!(order(&keys(&rival), "before").await, Outcome::Replayed(1)));
        if durable {
            drop(rival.mutex("free").build().unwrap().acquire().await.unwrap());
            assert!(order(&keys(&rival), "after").await.is_executed(), "no key is forgotten");
            let now = marker(&server);
            let same = |m: &Marker| (m.history, m.generation, m.since, m.floor, m.losses);
            assert_eq!(same(&now), same(&before));
            assert_ne!(now.process.run, before.process.run);
            // Its leases may have been given by another clock.
            assert!(matches!(now.handover, Some(Handover::Settling(till)) if till > now.written));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_held_twice_on_a_durable_server_that_is_killed_again_and_again() {
    let mut server = marked().await;
    let ttl = Duration::from_secs(2);
    let (inside, times, ended) =
        (Arc::<AtomicU32>::default(), Arc::<AtomicU32>::default(), Arc::<AtomicBool>::default());
    let users: Vec<_> = (0..4)
        .map(|_| {
            let redlock = handle(&server.addr(), ttl, true);
            let (inside, times, ended) = (inside.clone(), times.clone(), ended.clone());
            tokio::spawn(async move {
                let mutex = redlock.mutex("one").build().unwrap();
                while !ended.load(SeqCst) {
                    let Ok(TryAcquire::Acquired(held)) = mutex.try_acquire().await else {
                        sleep(Duration::from_millis(2)).await;
                        continue;
                    };
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two holders");
                    sleep(Duration::from_millis(3)).await;
                    inside.fetch_sub(1, SeqCst);
                    times.fetch_add(1, SeqCst);
                    let _ = held.release().await;
                }
                redlock.metrics()[0].quarantines
            })
        })
        .collect();
    for _ in 0..4 {
        let before = times.load(SeqCst);
        until("they work", || times.load(SeqCst) > before + 20).await;
        server.restart();
    }
    let before = times.load(SeqCst);
    until("they work after the last time", || times.load(SeqCst) > before + 20).await;
    ended.store(true, SeqCst);
    for user in users {
        assert_eq!(user.await.unwrap(), 0, "quarantines");
    }
}

/// In place of a backup by hand.
fn copied(server: &Server, from: &str, to: &str) {
    let at = server.dir();
    let _ = fs::remove_dir_all(at.join(to));
    let copy = Command::new("cp").arg("-a").args([at.join(from), at.join(to)]).status();
    assert!(copy.expect("cp").success());
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Back {
    Empty,
    Older,
    /// Put in place of the others in the same process.
    Swapped,
}

/// A program that ran notices it: then all is as without the declaration, and it is said aloud.
#[tokio::test]
async fn a_declaration_that_the_data_refute_is_not_trusted_and_said_aloud() {
    for back in [Back::Empty, Back::Older, Back::Swapped] {
        let mut server = marked().await;
        let redlock = handle(&server.addr(), TTL, true);
        drop(redlock.mutex("before").build().unwrap().acquire().await.unwrap());
        copied(&server, "appendonlydir", "backup");
        for key in ["palisade:generation", "palisade:note"] {
            assert_eq!(server.cli(&["copy", key, key, "db", "1"]), "1");
        }
        let held = redlock.mutex("held").build().unwrap().acquire().await.unwrap();
        let mut events = redlock.events();
        match back {
            Back::Empty => server.restart_empty(),
            Back::Older => {
                server.kill();
                copied(&server, "backup", "appendonlydir");
                server.again();
            }
            Back::Swapped => assert_eq!(server.cli(&["swapdb", "0", "1"]), "OK"),
        }
        let after = health(&redlock).await;
        assert!(!after.is_ready() && after.nodes[0].durable_refuted, "{back:?}: {after}");
        assert!(after.to_string().contains("declared `durable`, but"), "{after}");
        let events = seen(&mut events);
        assert!(events.contains(&NodeEvent::DurableRefuted), "{back:?}: {events:?}");
        assert!(events.iter().any(begins), "{back:?}: {events:?}");
        let other = handle(&server.addr(), TTL, true);
        let refused = other.mutex("held").build().unwrap().try_acquire().await;
        assert!(refused.is_err(), "{back:?}: {refused:?}");
        assert!(held.is_valid());
    }
}

/// The declaration says nothing of whose data these are, nor of what the server deletes itself.
#[tokio::test]
async fn a_declaration_hides_neither_anothers_data_nor_evicted_keys() {
    let (ours, theirs) = (marked().await, marked().await);
    let proxy = Proxy::to(&ours.addr());
    let redlock = handle(&proxy.addr(), TTL, true);
    assert!(health(&redlock).await.is_ready());
    let kept = || theirs.cli(&["mget", "palisade:generation", "palisade:note"]);
    let before = kept();
    proxy.lead_to(&theirs.addr());
    ours.cli(&["client", "kill", "type", "normal"]);
    let begun = Instant::now();
    let foreign = loop {
        let health = redlock.health().await;
        if let NodeOutcome::Failed(why) = &health.nodes[0].outcome
            && why.fault() == NodeFault::ForeignData
        {
            break health;
        }
        assert!(begun.elapsed() < PATIENCE && !health.is_ready(), "{health}");
        sleep(Duration::from_millis(20)).await;
    };
    assert!(!foreign.nodes[0].durable_refuted, "{foreign}");
    assert_eq!(kept(), before, "nothing was written");

    let node = RedisNode::builder(ours.url()).durable(true).build().unwrap();
    assert!(up(&node).await.losses.is_empty());
    evict(&ours).await;
    let evicted = batch(&node, LONG, Vec::new(), PATIENCE).await.facts.expect("it is connected");
    assert_eq!(evicted.losses.last().map(|loss| loss.from), Some(0), "{evicted:?}");
    assert!(evicted.new_history && !evicted.refuted, "{evicted:?}");
    let ops = vec![acquire("k", owner())];
    assert_quarantined(batch(&node, LONG, ops, PATIENCE).await.items.remove(0));
}
