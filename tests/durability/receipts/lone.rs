//! A lone server: restarts, and users that may not ask for the role.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use palisade::{Fate, RedisNode, Redlock};

use super::{TTL, fate, until, verdict};

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
    let reported = verdict(&guard).await.expect("still held");
    // No replica, no history that goes on: nothing can be shown.
    assert_eq!(reported.fate, Fate::Unknown);
    until("it is put back", || server.cli(&["exists", "k"]) == "1").await;
    until("the answer is there", || fate(&guard) == Fate::Standing).await;
    assert!(guard.is_valid());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_without_renewal_learns_its_fate_and_is_not_renewed() {
    let mut server = Server::start(&[]);
    let redlock = handle(RedisNode::builder(server.url()).trust_fresh(true).build().unwrap());
    let guard = redlock.mutex("k").auto_renew(false).build().unwrap().acquire().await.unwrap();
    let deadline = guard.valid_until();
    server.restart_empty();
    assert_eq!(verdict(&guard).await.expect("still held").fate, Fate::Unknown);
    assert_eq!(server.cli(&["exists", "k"]), "0");
    assert_eq!((guard.valid_until(), guard.is_valid()), (deadline, true));
    // Its holder puts it back when it likes.
    assert!(guard.extend().await.unwrap() > deadline);
    assert_eq!(fate(&guard), Fate::Standing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_the_role_command_has_locks_and_no_offsets() {
    let server = Server::start(&[]);
    server.cli(&["acl", "setuser", "joe", "on", ">pw", "~*", "&*", "+@all", "-role"]);
    let node = RedisNode::builder(server.url()).username("joe").password("pw").trust_fresh(true);
    let redlock = handle(node.build().unwrap());
    let guard = redlock.mutex("k").build().unwrap().acquire().await.unwrap();
    let [receipt] = &guard.receipts()[..] else { panic!("one node, one receipt") };
    assert_eq!((receipt.fate, receipt.offset), (Fate::Standing, None));
    guard.extend().await.unwrap();
    // Asked once per connection, not with each write.
    let refused = server.cli(&["info", "errorstats"]);
    assert!(refused.contains("errorstat_NOPERM:count=1"), "{refused}");
    assert!(guard.release().await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_gone_is_asked_for_now_and_then_and_by_a_dropped_handle_never() {
    let mut server = Server::start(&[]);
    let redlock = handle(RedisNode::builder(server.url()).trust_fresh(true).build().unwrap());
    let guard = redlock.mutex("k").build().unwrap().acquire().await.unwrap();
    server.kill();
    // In its place one that takes connections and says nothing.
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
    // 20 ms, doubled up to one second, and drawn from the upper half.
    assert!((2..=20).contains(&before), "{before} tries in 3 s");
    assert!(guard.is_valid());
    drop(guard);
    drop(redlock);
    // One that is under way may end, and a release is owed once more.
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
