//! Which operations refuse a server that has deleted keys because its memory was full, although it
//! deletes none any more.

use palisade::{RedisNode, Redlock};
use palisade_ops::{HandedOver, Handover, init, init_lost};

use super::handover::{fresh, on_group};
use super::support::group::cli;
use super::support::marker;
use super::support::wait::until;
use super::*;

fn evicted(at: &str) -> bool {
    !cli(at, &["INFO", "stats"]).contains("evicted_keys:0")
}

/// Has the server at `at` delete a key that expires, and then sets it back.
async fn evict(at: &str) {
    let set = |name, value| assert_eq!(cli(at, &["CONFIG", "SET", name, value]), "OK");
    set("maxmemory-policy", "volatile-ttl");
    set("maxmemory", "1");
    until("a key is evicted", || {
        cli(at, &["SET", "more", "x"]);
        evicted(at)
    })
    .await;
    set("maxmemory", "0");
    set("maxmemory-policy", "noeviction");
}

/// The marker may be one of the keys.
#[tokio::test]
async fn a_server_without_a_marker_that_has_deleted_keys_is_not_new() {
    let mut server = Server::start(&[]);
    server.cli(&["SET", "cache", "x", "PX", "600000"]);
    evict(&server.addr()).await;
    let refused = init(&lone(&server), "").await.unwrap();
    assert_eq!(refused.exit_code(), 2, "{refused}");
    assert!(refused.to_string().contains("lost its data: it has deleted keys"), "{refused}");
    assert_eq!(server.cli(&["EXISTS", "palisade:generation"]), "0");
    server.restart_empty();
    let done = init(&lone(&server), "").await.unwrap();
    assert!(done.is_done(), "{done}");
}

/// A program that allows it has left what was deleted to others, or nobody has looked yet.
#[tokio::test]
async fn a_server_that_has_deleted_keys_since_programs_use_it_is_not_new() {
    let brief = Duration::from_secs(1);
    for is_left in [false, true] {
        let server = Server::start(&[]);
        let node = RedisNode::builder(server.url()).allow_eviction(is_left).build().unwrap();
        let redlock = Redlock::builder().node(node).ttl(brief).max_ttl(brief).build().unwrap();
        let used = async |name: &str| {
            let mutex = redlock.mutex(name).acquire_timeout(SOON).build().unwrap();
            // No request is left under way.
            drop(mutex.acquire().await.unwrap().release().await);
        };
        used("first").await;
        if is_left {
            evict(&server.addr()).await;
            let count = marker::marker(&server).evicted;
            while marker::marker(&server).evicted == count {
                used("then").await;
            }
        } else {
            drop(redlock);
            evict(&server.addr()).await;
        }
        let kept = || server.cli(&["GET", "palisade:generation"]);
        let before = kept();
        let refused = init(&lone(&server), "").await.unwrap();
        assert_eq!(refused.exit_code(), 2, "{is_left}: {refused}");
        let why = "lost its data: it has deleted keys";
        assert!(refused.to_string().contains(why), "{is_left}: {refused}");
        if !is_left {
            assert_eq!(kept(), before, "nothing was changed");
        }
        let done = init_lost(&lone(&server)).await.unwrap();
        assert!(done.is_done(), "{is_left}: {done}");
    }
}

/// A promotion sets no counter back, so the new master would begin with the loss of everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_has_deleted_keys_keeps_a_handover_from_beginning() {
    let groups = Groups::up_with(1, 5_000, 2, &[]);
    let redlock = on_group(&groups);
    drop(fresh(&redlock, "before").await);
    let servers = groups.servers(0);
    assert_eq!(cli(&servers[0], &["SET", "cache", "x", "PX", "600000"]), "OK");
    until("the replica has a key that expires", || cli(&servers[1], &["EXISTS", "cache"]) == "1")
        .await;
    let set = |value| cli(&servers[1], &["CONFIG", "SET", "replica-ignore-maxmemory", value]);
    assert_eq!(set("no"), "OK");
    evict(&servers[1]).await;
    assert_eq!(set("yes"), "OK");
    let done = Handover::new(group(&groups)).group(|_| ()).await.unwrap();
    let HandedOver::Refused(why) = &done else { panic!("{done}") };
    assert!(why.contains(&format!("{} has deleted", servers[1])), "{why}");
    assert!(why.contains("delete its data files and start it"), "{why}");
    drop(fresh(&redlock, "still open").await);
}
