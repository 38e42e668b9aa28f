//! Renewal after a failover or restart, with a single server that is restarted or killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use palisade::{Failover, RedisNode, Redlock};

use super::{TTL, verdict};
use crate::support::group::scripts_run;
use crate::support::server::Server;

fn handle(node: RedisNode) -> Redlock {
    Redlock::builder().node(node).ttl(TTL).max_ttl(TTL).build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_without_data_a_lock_is_put_back_at_once() {
    let mut server = Server::start(&[]);
    let redlock = handle(RedisNode::builder(server.url()).trust_fresh(true).build().unwrap());
    let guard = redlock.mutex("k").build().unwrap().acquire().await.unwrap();
    server.restart_empty();
    assert_eq!(verdict(&guard).await, Failover::Kept);
    assert_eq!(server.cli(&["exists", "k"]), "1");
    assert!(guard.is_valid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_renewal_after_a_restart_names_the_quarantine_that_the_connection_learned() {
    let mut fewest = u64::MAX;
    for _ in 0..5 {
        let mut server = Server::start(&[]);
        let redlock = handle(RedisNode::builder(server.url()).trust_fresh(true).build().unwrap());
        let guard = redlock.mutex("k").build().unwrap().acquire().await.unwrap();
        server.restart_empty();
        assert_eq!(verdict(&guard).await, Failover::Kept);
        fewest = fewest.min(scripts_run(&server.addr()));
        // Four requests are expected: at the new connection one finds no script, one reads the
        // server's marker and one writes it, and one renews the lock. An idle client sends a
        // further request every two seconds, so a slow round may count more. Then the test tries
        // again.
        if fewest == 4 {
            return;
        }
    }
    panic!(
        "{fewest} requests: beside the three for script and marker when the connection was opened, \
         and the renewal, one asked what the connection knew, or a renewal was refused first"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_without_renewal_is_open_until_its_holder_extends_it() {
    let mut server = Server::start(&[]);
    let redlock = handle(RedisNode::builder(server.url()).trust_fresh(true).build().unwrap());
    let guard = redlock.mutex("k").auto_renew(false).build().unwrap().acquire().await.unwrap();
    let deadline = guard.valid_until();
    server.restart_empty();
    assert_eq!(verdict(&guard).await, Failover::Open);
    assert_eq!(server.cli(&["exists", "k"]), "0");
    assert_eq!((guard.valid_until(), guard.is_valid()), (deadline, true));
    assert!(guard.extend().await.unwrap() > deadline);
    assert_eq!(verdict(&guard).await, Failover::Kept);
    assert_eq!(server.cli(&["exists", "k"]), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_gone_is_asked_for_now_and_then_and_by_a_dropped_handle_never() {
    let mut server = Server::start(&[]);
    let redlock = handle(RedisNode::builder(server.url()).trust_fresh(true).build().unwrap());
    let guard = redlock.mutex("k").build().unwrap().acquire().await.unwrap();
    server.kill();
    // A listener takes the place of the killed server on its port. It accepts connections and sends
    // nothing.
    let place = tokio::net::TcpListener::bind(server.addr()).await.unwrap();
    let tries = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&tries);
    let counter = tokio::spawn(async move {
        while place.accept().await.is_ok() {
            counting.fetch_add(1, Ordering::SeqCst);
        }
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = tries.load(Ordering::SeqCst);
    // The delay between two connection attempts begins at 20 ms and doubles up to one second. The
    // real delay is random, but at least half of this value.
    assert!((2..=20).contains(&before), "{before} tries in 3 s");
    assert!(guard.is_valid());
    drop(guard);
    drop(redlock);
    // One connection attempt may still be running, and the release that was not confirmed is tried
    // once more. After that, there are no more attempts.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let last = tries.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(tries.load(Ordering::SeqCst), last, "somebody still tries");
    counter.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_handle_leaves_no_connection_behind() {
    let mut server = Server::start(&[]);
    let redlock = handle(RedisNode::builder(server.url()).trust_fresh(true).build().unwrap());
    redlock.mutex("k").build().unwrap().acquire().await.unwrap().release().await.unwrap();
    drop(redlock);
    server.restart();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let clients = server.cli(&["client", "list"]);
    assert_eq!(clients.lines().count(), 1, "only the one that asks: {clients}");
}
