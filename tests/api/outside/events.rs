//! After an event of a Sentinel, the client of the group (`SentinelNode`) asks all Sentinels for
//! the master. Events of one Sentinel cause this at most once a second.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use palisade::Redlock;
use palisade::node::{MinReplicas, SentinelNode};

use crate::support::fake::{Fake, NAME, View, sentinel};
use crate::support::server::Server;

struct Scene {
    sentinels: [Fake; 3],
    view: Arc<Mutex<View>>,
    node: Arc<SentinelNode>,
    redlock: Redlock,
}

async fn scene(master: &Server) -> Scene {
    let view = Arc::new(Mutex::new(View { master: master.addr(), ..View::default() }));
    let sentinels = ['a', 'b', 'c'].map(|id| sentinel(id, &view));
    let node = SentinelNode::builder(NAME, sentinels.iter().map(|s| s.at.clone()));
    let node = node.min_replicas_check(MinReplicas::Off).trust_fresh(true);
    let node = node.poll_every(Duration::from_secs(60)).trust_unconfirmed_master(true).build();
    let node = Arc::new(node.expect("addresses and a range"));
    let redlock = Redlock::builder().node_arc(node.clone()).build().expect("a handle");
    drop(redlock.mutex("first").build().unwrap().acquire().await.expect("a grant"));
    // Wait until the node has ended the requests to the Sentinels that follow the first connection,
    // because the test counts only later requests.
    tokio::time::sleep(Duration::from_millis(500)).await;
    Scene { sentinels, view, node, redlock }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_noisy_sentinel_is_one_question_a_second() {
    let server = Server::start(&[]);
    let scene = scene(&server).await;
    scene.sentinels[2].flood(Duration::from_millis(10));
    let before = scene.sentinels[0].received("SENTINEL MASTER");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let rounds = scene.sentinels[0].received("SENTINEL MASTER") - before;
    assert!((1..=7).contains(&rounds), "{rounds} questions in five seconds");
    drop(scene.redlock.mutex("still").build().unwrap().acquire().await.expect("a grant"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_noticed_through_the_noise_of_another_sentinel() {
    let (old, new) = (Server::start(&[]), Server::start(&[]));
    let scene = scene(&old).await;
    scene.sentinels[2].flood(Duration::from_millis(10));
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    {
        let mut view = scene.view.lock().unwrap();
        (view.master, view.epoch) = (new.addr(), 1);
    }
    let begun = Instant::now();
    let (host, port) = ("127.0.0.1", new.port());
    scene.sentinels[0].tell("+switch-master", &format!("{NAME} {host} 1 {host} {port}"));
    while scene.node.status().master.as_deref() != Some(&*new.addr()) {
        // The next poll is a minute later.
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", scene.node.status());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_master_that_a_round_has_named_is_not_asked_for_again() {
    let (old, new) = (Server::start(&[]), Server::start(&[]));
    let scene = scene(&old).await;
    let rounds = || scene.sentinels.each_ref().map(|s| s.received("SENTINEL MASTER"));
    let before = rounds();
    {
        let mut view = scene.view.lock().unwrap();
        (view.master, view.epoch) = (new.addr(), 1);
    }
    let (host, port) = ("127.0.0.1", new.port());
    scene.sentinels[0].tell("+switch-master", &format!("{NAME} {host} 1 {host} {port}"));
    let begun = Instant::now();
    // The node writes its marker when it connects, even if no caller has asked for a lock. So the
    // marker on the server shows that the node has connected.
    while new.cli(&["exists", "palisade:generation"]) != "1" {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", scene.node.status());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let after = rounds();
    let rounds = [0, 1, 2].map(|i| after[i] - before[i]);
    assert_eq!(rounds, [1; 3], "one round decides and connects");
}
