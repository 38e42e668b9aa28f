//! The Sentinels are asked for the replicas of a new master while it is asked for its facts, and
//! once for each connection.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::Redlock;
use palisade::node::{MinReplicas, SentinelNode};

use crate::support::fake::{NAME, View, sentinel};
use crate::support::proxy::Proxy;
use crate::support::server::Server;

/// The master answers nothing before each Sentinel was asked for its replicas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_replicas_are_asked_for_beside_the_login() {
    let master = Server::start(&[]);
    let proxy = Proxy::to(&master.addr());
    let view = Arc::new(Mutex::new(View { master: proxy.addr(), ..View::default() }));
    let sentinels = Arc::new(['a', 'b', 'c'].map(|id| sentinel(id, &view)));
    let asked = Arc::clone(&sentinels);
    proxy.edit(move |_| {
        while asked.iter().any(|sentinel| sentinel.received("SENTINEL REPLICAS") == 0) {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let all = sentinels.iter().map(|sentinel| sentinel.at.clone());
    let node = SentinelNode::builder(NAME, all).min_replicas_check(MinReplicas::Off);
    let node = node.trust_fresh(true).sentinel_deadline(Duration::from_secs(5)).build().unwrap();
    let minute = Duration::from_secs(60);
    let redlock = Redlock::builder().node(node).ttl(minute).max_ttl(minute);
    let redlock = redlock.node_deadline(Duration::from_secs(10)).build().unwrap();
    let mutex = redlock.mutex("k").acquire_timeout(minute).build().unwrap();
    let guard = mutex.acquire().await.expect("neither waits for the other");
    assert!(guard.release().await.is_ok());
    let counts = sentinels.each_ref().map(|sentinel| sentinel.received("SENTINEL REPLICAS"));
    assert_eq!(counts, [1; 3], "one connection was made");
}
