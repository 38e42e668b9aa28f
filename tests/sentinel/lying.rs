//! One of three Sentinels sends false information, sends invalid replies, or does not reply. Each
//! time, the node follows the other two Sentinels at once.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use palisade::node::{MinReplicas, SentinelNode};
use palisade::{LockGuard, Redlock};

use crate::support::fake::{Fake, NAME, View, map, ok, sentinel};
use crate::support::server::{Server, free_port};

/// Ways in which the third Sentinel misbehaves.
#[derive(Clone, Debug)]
enum Lie {
    /// Names this server as master, with an epoch (number of the configuration) that grows with
    /// each request.
    Master(String),
    /// Sends replies that are invalid for a Sentinel.
    Nonsense,
    /// Accepts requests and does not reply.
    Silence,
    /// Names the right master. Also names many Sentinels that do not exist.
    Crowd(String),
}

fn liar(lie: Lie) -> Fake {
    let asked = AtomicU64::new(0);
    Fake::start(move |words| match (words, &lie) {
        (["SENTINEL", "MYID"] | ["HELLO" | "SUBSCRIBE", ..], _) => {
            View::default().answer('f', words)
        }
        (["SENTINEL", ..], Lie::Silence) => Vec::new(),
        (["SENTINEL", ..], Lie::Nonsense) => map(&[("ip", "…"), ("ip", "%0")]),
        (_, Lie::Master(at)) => {
            let epoch = 1_000 + asked.fetch_add(1, SeqCst);
            View { master: at.clone(), epoch, ..View::default() }.answer('f', words)
        }
        (_, Lie::Crowd(at)) => {
            let others = (1..=12).map(|port| format!("127.0.0.1:{port}")).collect();
            let (master, others_known) = (at.clone(), Some(1_000));
            View { master, others, others_known, ..View::default() }.answer('f', words)
        }
        _ => ok(),
    })
}

/// Starts a real Sentinel for this master.
fn honest(master: &Server) -> Server {
    let sentinel = Server::start_program("redis-sentinel", &["sentinel.conf"]);
    let port = master.port().to_string();
    assert_eq!(sentinel.cli(&["sentinel", "monitor", NAME, "127.0.0.1", &port, "2"]), "OK");
    sentinel
}

async fn grant(redlock: &Redlock, name: &str) -> LockGuard {
    let wait = redlock.mutex(name).acquire_timeout(Duration::from_secs(10)).build().unwrap();
    wait.acquire().await.unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_sentinels_prevents_nothing() {
    let (master, foreign) = (Server::start(&[]), Server::start(&[]));
    let sentinels = [honest(&master), honest(&master)];
    let lies = [
        Lie::Master(foreign.addr()),
        Lie::Master(master.addr()),
        Lie::Nonsense,
        Lie::Silence,
        Lie::Crowd(master.addr()),
    ];
    let trials = lies.into_iter().map(|lie| {
        let liar = liar(lie.clone());
        let all = [liar.at.clone(), sentinels[0].addr(), sentinels[1].addr()];
        let node =
            SentinelNode::builder(NAME, all).min_replicas_check(MinReplicas::Off).trust_fresh(true);
        // Only a silent Sentinel exceeds two seconds, even on a busy machine.
        let (window, deadline) = (Duration::from_secs(15), Duration::from_secs(2));
        let node = node.failover_window(window).sentinel_deadline(deadline);
        let node = node.poll_every(Duration::from_millis(200)).build();
        let node = Arc::new(node.expect("addresses and a range"));
        let (expected, what) = (master.addr(), format!("{lie:?}"));
        async move {
            let redlock = Redlock::builder().node_arc(node.clone()).build().expect("a handle");
            let held = grant(&redlock, &format!("{what} held")).await;
            let begun = Instant::now();
            // If the node accepted the false information, its status would show this with some
            // delay. So the test checks the status over several polls.
            while begun.elapsed() < Duration::from_secs(3) {
                drop(grant(&redlock, &what).await);
                let status = node.status();
                assert_eq!(status.master.as_deref(), Some(&*expected), "{what}: {status:?}");
                assert_eq!(status.epoch, Some(0), "{what}: {status:?}");
                assert_eq!(status.last_error, None, "{what}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            held.release().await.unwrap_or_else(|e| panic!("{what}: {e}"));
            drop(liar);
        }
    });
    futures_util::future::join_all(trials).await;
    assert_eq!(foreign.cli(&["DBSIZE"]), "0", "nothing was ever asked of a foreign master");
}

/// The word of the others is too old long before the silent Sentinel's deadline ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_sentinel_with_a_long_deadline_interrupts_no_grants() {
    let master = Server::start(&[]);
    let view = Arc::new(Mutex::new(View { master: master.addr(), ..View::default() }));
    let (first, second, silent) = (sentinel('a', &view), sentinel('b', &view), liar(Lie::Silence));
    let all = [silent.at.clone(), first.at.clone(), second.at.clone()];
    let (deadline, window) = (Duration::from_secs(60), Duration::from_secs(3));
    let node = SentinelNode::builder(NAME, all).min_replicas_check(MinReplicas::Off);
    let node = node.failover_window(window).sentinel_deadline(deadline).trust_fresh(true);
    let redlock = Redlock::builder().node(node.build().unwrap()).build().unwrap();
    let begun = Instant::now();
    while first.received("SENTINEL MASTER") < 8 {
        drop(grant(&redlock, "k").await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(begun.elapsed() < deadline, "a round waits for the silent Sentinel");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_in_tilt_are_named_in_the_health_while_the_master_is_well() {
    let master = Server::start(&[]);
    let replicas = vec!["127.0.0.1:1".to_owned()];
    let view = View { master: master.addr(), replicas, ..View::default() };
    let (first, last) = (Arc::new(Mutex::new(view.clone())), Arc::new(Mutex::new(view.clone())));
    let tilted = Arc::new(Mutex::new(View { in_tilt: true, ..view }));
    let sentinels = [('a', &first), ('b', &tilted), ('c', &last)].map(|(id, v)| sentinel(id, v));
    let all = sentinels.iter().map(|s| s.at.clone());
    let node = SentinelNode::builder(NAME, all).min_replicas_check(MinReplicas::Off);
    let node = node.trust_fresh(true).poll_every(Duration::from_millis(100)).build().unwrap();
    let redlock = Redlock::builder().node(node).ttl(Duration::from_secs(60));
    let redlock = redlock.node_deadline(Duration::from_secs(5)).build().unwrap();
    let health = redlock.health().await;
    assert!(health.is_ready() && health.nodes[0].no_failover.is_none(), "{health}");
    // Two of three: too few are left to begin a failover.
    first.lock().unwrap().in_tilt = true;
    let begun = Instant::now();
    loop {
        let health = redlock.health().await;
        assert!(health.is_ready(), "{health}");
        if health.to_string().contains("nobody can fail it over: most of its Sentinels are in tilt")
        {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{health}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Two of three Sentinels are enough to know that none of them promotes a replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_are_down_or_of_priority_0_can_replace_no_master() {
    const WORDS: &str = "may promote none of its replicas";
    let master = Server::start(&[]);
    let fit = ("slave", "100");
    for (one, two, is_told) in [
        (("slave,s_down,disconnected", "100"), ("slave", "0"), true),
        (("slave", "0"), fit, false),
        (("slave,s_down", "100"), fit, false),
    ] {
        let sentinels = [('a', one), ('b', two)].map(|(id, are)| {
            let replicas = vec!["127.0.0.1:1".to_owned()];
            let view = View { master: master.addr(), replicas, ..View::default() };
            sentinel(id, &Arc::new(Mutex::new(View { replicas_are: Some(are), ..view })))
        });
        let silent = format!("127.0.0.1:{}", free_port());
        let all = sentinels.iter().map(|s| s.at.clone()).chain([silent]);
        let node = SentinelNode::builder(NAME, all).min_replicas_check(MinReplicas::Off);
        let node = node.trust_fresh(true).build().unwrap();
        let redlock = Redlock::builder().node(node).ttl(Duration::from_secs(60));
        let redlock = redlock.node_deadline(Duration::from_secs(5)).build().unwrap();
        let begun = Instant::now();
        loop {
            let are_asked = sentinels.iter().all(|s| s.received("SENTINEL REPLICAS") > 0);
            let health = redlock.health().await;
            let says = health.to_string().contains(WORDS);
            assert!(health.is_ready() && (is_told || !says), "{health}");
            if are_asked && says == is_told {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{health}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_no_sentinel_can_replace_is_named_in_the_health() {
    let nobody = format!("127.0.0.1:{}", free_port());
    for (replicas, can) in [(Vec::new(), false), (vec!["127.0.0.1:1".to_owned()], true)] {
        let view =
            Arc::new(Mutex::new(View { master: nobody.clone(), replicas, ..View::default() }));
        let sentinels = ['a', 'b', 'c'].map(|id| sentinel(id, &view));
        let node = SentinelNode::new(NAME, sentinels.iter().map(|s| s.at.clone())).unwrap();
        let redlock = Redlock::builder().node(node).build().unwrap();
        let health = redlock.health().await.to_string();
        assert_eq!(health.contains("the Sentinels know no replica of it"), !can, "{health}");
        assert_eq!(health.contains("map_address"), can, "{health}");
    }
}
