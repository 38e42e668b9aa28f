//! The server executes requests in the order in which they were sent, even if they waited for a new
//! connection.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use palisade::Redlock;
use tokio::time::{sleep, timeout};

use super::*;
use crate::support::marker::marker;

use crate::support::proxy::Proxy;

/// Returns a server, a proxy before it, a switch, and a handle. While the switch is on, the proxy
/// delays each reply by `wait`.
fn behind_a_proxy(wait: Duration) -> (Server, Proxy, Arc<AtomicBool>, Redlock) {
    let server = Server::start(&[]);
    let proxy = Proxy::to(&server.addr());
    let slow = Arc::new(AtomicBool::new(false));
    let is_slow = Arc::clone(&slow);
    proxy.edit(move |_| {
        if is_slow.load(SeqCst) {
            std::thread::sleep(wait);
        }
    });
    let node = RedisNode::builder(format!("redis://{}", proxy.addr())).trust_fresh(true);
    let builder = Redlock::builder().node(node.build().unwrap()).ttl(TTL).max_ttl(TTL);
    let redlock = builder.node_deadline(Duration::from_secs(2)).build().unwrap();
    (server, proxy, slow, redlock)
}

/// A connection breaks while no request is in progress. The next acquire waits for the new
/// connection, and is dropped meanwhile. Its release waits for the connection, too. If the release
/// arrived before the acquire, the lock would remain for its whole ttl without a holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_does_not_overtake_its_acquire_on_the_way_to_a_new_connection() {
    let (server, _proxy, slow, redlock) = behind_a_proxy(Duration::from_millis(30));
    let mut waited = 0;
    for round in 0..24 {
        slow.store(false, SeqCst);
        let warm = redlock.mutex("warm").build().unwrap().acquire().await.unwrap();
        assert!(warm.release().await.is_ok());
        slow.store(true, SeqCst);
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        sleep(Duration::from_millis(30)).await;
        let name = format!("k{round}");
        let brief = Duration::from_millis(3);
        let got = timeout(brief, redlock.mutex(&*name).build().unwrap().try_acquire()).await;
        // On a slow machine the new connection may be made before `redis-cli` has ended.
        waited += usize::from(got.is_err());
        drop(got);
        // On the new connection, this acquire and its release follow the dropped acquire and its
        // release.
        let after = redlock.mutex("after").build().unwrap().acquire().await.unwrap();
        assert!(after.release().await.is_ok());
        let begun = Instant::now();
        while server.cli(&["EXISTS", &name]) != "0" {
            assert!(begun.elapsed() < TTL / 3, "round {round}: nobody's lock is left");
            sleep(Duration::from_millis(20)).await;
        }
    }
    assert!(waited > 0, "no acquire waited for its connection");
}

/// A request for a lock with a short ttl has a short deadline. A reply that is late for this
/// request must not close the connection, because other callers use it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_impatient_request_does_not_cost_others_their_connection() {
    let (_server, _proxy, slow, redlock) = behind_a_proxy(Duration::from_millis(40));
    let held = redlock.mutex("held").build().unwrap().acquire().await.unwrap();
    let mut events = redlock.events();
    slow.store(true, SeqCst);
    let short =
        redlock.mutex("short").ttl(Duration::from_millis(15)).auto_renew(false).build().unwrap();
    short.try_acquire().await.expect_err("the answer is later than the lock is long");
    assert!(held.extend().await.is_ok(), "within the node's deadline");
    sleep(Duration::from_millis(200)).await;
    while let Some(event) = events.try_next().map(|named| named.event) {
        assert!(!matches!(event, NodeEvent::Down), "the connection was given up");
    }
}

/// The node writes the marker (the key that records the data history) as soon as it reconnects to a
/// restarted server, before any caller sends a request. So the quarantine, the time without grants,
/// begins at the reconnect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_is_marked_without_any_request() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let node = RedisNode::builder(server.url()).trust_fresh(true).build().unwrap();
    let redlock = Redlock::builder().node(node).ttl(TTL).max_ttl(TTL).build().unwrap();
    assert!(
        redlock.mutex("evening").build().unwrap().acquire().await.unwrap().release().await.is_ok()
    );
    server.restart();
    let marked = || {
        let info = server.cli(&["info", "replication"]);
        let history = info.lines().find_map(|l| l.strip_prefix("master_replid:")).unwrap();
        marker(&server).replid.to_string() == history.trim()
    };
    let begun = std::time::Instant::now();
    while !marked() {
        assert!(begun.elapsed() < Duration::from_secs(120), "nobody has marked it");
        sleep(Duration::from_millis(50)).await;
    }
}

/// This program closes the connection, because a reply exceeds a limit. The error must name this
/// limit as the cause, and must not blame the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_a_limit_ended_is_not_blamed_on_the_server() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(&server.addr());
    let node = RedisNode::builder(format!("redis://{}", proxy.addr())).trust_fresh(true);
    let redlock = Redlock::builder().node(node.build().unwrap()).build().unwrap();
    let mutex = redlock.mutex("m").build().unwrap();
    mutex.acquire().await.unwrap().release().await.unwrap();
    // The proxy sends the head of a list that is longer than any valid reply.
    proxy.edit(|bytes| drop(bytes.splice(0..0, *b"*100000\r\n")));
    let e = mutex.try_acquire().await.unwrap_err().to_string();
    assert!(e.contains("so this program ended the connection"), "{e}");
    assert!(!e.contains("server broke"), "{e}");
    proxy.honest();
    let begun = std::time::Instant::now();
    while mutex.try_acquire().await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(120), "the server is not asked again");
        sleep(Duration::from_millis(50)).await;
    }
}
