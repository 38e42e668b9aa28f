//! The errors that an operator gets for a wrong setting: the fault, its place, and the setting to
//! change. Each test uses real servers and a lock. The manual has the table of the errors
//! (`troubleshooting`).

use std::time::Duration;

use palisade::node::{
    MinReplicas, RedisNode, RedisNodeBuilder, SentinelNode, SentinelNodeBuilder, spi::LockNode,
};
use palisade::{Advice, Redlock};

use crate::support::proxy::{Proxy, overwrite};
use crate::support::server::{Server, free_port};

/// Longest time for an event that must happen. The test does not check the speed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Tries to acquire a lock, which fails. Returns the text of the error, and its advice.
async fn sentence(node: impl LockNode) -> (String, Advice) {
    let ttl = Duration::from_secs(20);
    let redlock = Redlock::builder().node(node).ttl(ttl).node_deadline(PATIENCE).build().unwrap();
    let e = redlock
        .mutex("m")
        .build()
        .unwrap()
        .try_acquire()
        .await
        .expect_err("nothing can be said of the lock");
    println!("{e}");
    (e.to_string(), e.advice())
}

#[track_caller]
fn says((text, advice): &(String, Advice), words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} in {text:?}");
    }
    assert!(!text.contains('\n'), "one line: {text:?}");
    assert_eq!(*advice, Advice::Misconfigured, "{text:?}");
}

fn lone(server: &Server) -> RedisNodeBuilder {
    RedisNode::builder(server.url()).trust_fresh(true)
}

/// Starts a Sentinel that reports this master. The test does not use the failovers of this
/// Sentinel.
fn watched(master: &str, port: u16) -> Server {
    let sentinel = Server::start_program("redis-sentinel", &["sentinel.conf"]);
    let port = port.to_string();
    assert_eq!(sentinel.cli(&["sentinel", "monitor", "orders", master, &port, "1"]), "OK");
    sentinel
}

fn group(sentinel: &Server) -> SentinelNodeBuilder {
    let node = SentinelNode::builder("orders", [sentinel.addr()]);
    node.min_replicas_check(MinReplicas::Off).trust_fresh(true).sentinel_deadline(PATIENCE)
}

#[tokio::test]
async fn a_wrong_password_at_a_data_server() {
    let server = Server::start(&["--requirepass", "right"]);
    let change = "set this node's `username` and `password`";
    let at = format!("at {}: ", server.addr());
    let words = ["user name or password refused", &at, "WRONGPASS", change];
    says(&sentence(lone(&server).password("wrong").build().unwrap()).await, &words);
    let words = ["user name or password refused", &at, "NOAUTH", change];
    says(&sentence(lone(&server).build().unwrap()).await, &words);
    // For a group, the error contains the server's address in addition to the name of the group.
    let sentinel = watched("127.0.0.1", server.port());
    let words = ["orders: user name or password refused", &at, "WRONGPASS", change];
    says(&sentence(group(&sentinel).password("wrong").build().unwrap()).await, &words);
}

#[tokio::test]
async fn a_wrong_password_at_a_sentinel() {
    let server = Server::start(&[]);
    let sentinel = watched("127.0.0.1", server.port());
    assert_eq!(sentinel.cli(&["acl", "setuser", "app", "on", ">right", "+@all"]), "OK");
    let node = || group(&sentinel).sentinel_username("app");
    let change = "set `sentinel_username` and `sentinel_password`";
    let at = format!("the Sentinels: {}: credentials refused: WRONGPASS", sentinel.addr());
    let words = ["user name or password refused", &at, change];
    says(&sentence(node().sentinel_password("wrong").build().unwrap()).await, &words);
    // The node does not use the password of the data servers at a Sentinel.
    assert_eq!(sentinel.cli(&["acl", "setuser", "default", "off"]), "OK");
    let at = format!("the Sentinels: {}: credentials refused: NOAUTH", sentinel.addr());
    let words = ["user name or password refused", &at, change];
    let node = group(&sentinel).username("app").password("right").build().unwrap();
    says(&sentence(node).await, &words);
}

#[tokio::test]
async fn a_user_at_a_sentinel_that_may_not_ask() {
    let server = Server::start(&[]);
    let sentinel = watched("127.0.0.1", server.port());
    let user = ["acl", "setuser", "app", "on", ">pw", "-@all", "+hello", "+ping"];
    assert_eq!(sentinel.cli(&user), "OK");
    let node = group(&sentinel).sentinel_username("app").sentinel_password("pw");
    let got = sentence(node.build().unwrap()).await;
    let at = format!("{}: not permitted: NOPERM", sentinel.addr());
    says(&got, &["the ACL user lacks a permission", &at, "users-sentinel.acl"]);
}

#[tokio::test]
async fn a_user_without_info_or_evalsha() {
    let server = Server::start(&[]);
    let at = format!("at {}: ", server.addr());
    for (less, command) in [("-info", "+info"), ("-evalsha", "+evalsha"), ("-script", "+script")] {
        let user = ["acl", "setuser", "app", "reset", "on", ">pw", "~*", "&*", "+@all", less];
        assert_eq!(server.cli(&user), "OK");
        // The right to load the script is needed only where it is missing.
        assert_eq!(server.cli(&["script", "flush"]), "OK");
        let got = sentence(lone(&server).username("app").password("pw").build().unwrap()).await;
        let allow = format!("allow this user {command}");
        let words = ["the ACL user lacks a permission", &at, "NOPERM", &allow, "users-data.acl"];
        says(&got, &words);
    }
    let user = ["acl", "setuser", "app", "reset", "on", ">pw", "~mine:*", "&*", "+@all"];
    assert_eq!(server.cli(&user), "OK");
    let got = sentence(lone(&server).username("app").password("pw").build().unwrap()).await;
    says(&got, &["the ACL user lacks a permission", &at, "allow this user the keys"]);
}

#[tokio::test]
async fn a_server_that_may_delete_locks_to_make_room() {
    let full = ["--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"];
    let server = Server::start(&full);
    let at = format!("at {}: ", server.addr());
    let words = [
        "server deletes keys when its memory is full",
        "maxmemory is 104857600 bytes and the policy volatile-lru",
        "`CONFIG SET maxmemory-policy noeviction`",
        "`allow_eviction(true)`",
    ];
    says(&sentence(lone(&server).build().unwrap()).await, &[&words[..], &[&at]].concat());
    let sentinel = watched("127.0.0.1", server.port());
    says(
        &sentence(group(&sentinel).build().unwrap()).await,
        &[&words[..], &["orders: ", &at]].concat(),
    );
    for node in [
        Box::new(lone(&server).allow_eviction(true).build().unwrap()) as Box<dyn LockNode>,
        Box::new(group(&sentinel).allow_eviction(true).build().unwrap()),
    ] {
        let ttl = Duration::from_secs(20);
        let redlock = Redlock::builder().node_arc(node.into()).ttl(ttl).node_deadline(PATIENCE);
        let guard =
            redlock.build().unwrap().mutex("m").build().unwrap().acquire().await.expect("accepted");
        assert!(guard.release().await.is_ok());
    }
    // The command in the error corrects the setting.
    assert_eq!(server.cli(&["config", "set", "maxmemory-policy", "noeviction"]), "OK");
    let redlock = Redlock::builder().node(lone(&server).build().unwrap()).build().unwrap();
    drop(redlock.mutex("n").build().unwrap().acquire().await.expect("it votes"));
}

/// A server deletes keys only if it has both a memory limit and a policy. One of the two alone
/// deletes no keys.
#[tokio::test]
async fn a_server_that_refuses_writes_when_it_is_full_votes() {
    for args in [["--maxmemory", "100mb"], ["--maxmemory-policy", "allkeys-lru"]] {
        let server = Server::start(&args);
        let redlock = Redlock::builder().node(lone(&server).build().unwrap()).build().unwrap();
        drop(redlock.mutex("m").build().unwrap().acquire().await.expect("it votes"));
    }
}

#[tokio::test]
async fn a_server_that_is_too_old() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(&server.addr());
    proxy.edit(overwrite("redis_version:", "6.2.06"));
    let node = RedisNode::builder(format!("redis://{}", proxy.addr()));
    let at = format!("at {}: ", proxy.addr());
    let words = ["server kind or version is not supported", &at, "at least 6.2.7 is needed"];
    says(&sentence(node.build().unwrap()).await, &words);
}

/// The client cannot reach the address that a Sentinel announces, as behind NAT. A connection to
/// this address is refused, or gets no answer.
#[tokio::test]
async fn a_sentinel_that_announces_an_address_that_cannot_be_reached() {
    for (host, port) in [("127.0.0.1", free_port()), ("192.0.2.1", 6_379)] {
        let sentinel = watched(host, port);
        let (text, advice) = sentence(group(&sentinel).build().unwrap()).await;
        for words in [
            "orders: cannot connect",
            &format!("at {host}:{port}: "),
            "the Sentinels know no replica of it",
            "start this server again",
            "REPLICAOF NO ONE",
        ] {
            assert!(text.contains(words), "{words:?} in {text:?}");
        }
        // The error's cause may end by itself, because a server that is restarting causes the same
        // error.
        assert!(matches!(advice, Advice::RetryAfter(_)), "{text:?}");
    }
}

#[tokio::test]
async fn no_server_at_the_address_of_a_lone_server() {
    let at = format!("127.0.0.1:{}", free_port());
    let (text, _) = sentence(RedisNode::new(format!("redis://{at}")).unwrap()).await;
    let place = format!("at {at}: ");
    for words in ["cannot connect; check address, network and that the server runs", &place] {
        assert!(text.contains(words), "{words:?} in {text:?}");
    }
    assert!(!text.contains("Sentinel"), "{text:?}");
}

/// The manual has a line for every error of these tests.
#[test]
fn the_manual_has_a_line_for_each() {
    let path = [env!("CARGO_MANIFEST_DIR"), "src/manual/troubleshooting.md"].join("/");
    let manual = std::fs::read_to_string(path).expect("the manual");
    for words in [
        "user name or password refused",
        "set this node's `username` and `password`",
        "set `sentinel_username` and `sentinel_password`",
        "the ACL user lacks a permission",
        "allow this user +info",
        "allow this user +evalsha",
        "the server's certificate is for another name",
        "the Sentinels name this address",
        "the min-replicas check is off",
        "because too few replicas are good (NOREPLICAS)",
        "this user may not read min-replicas-max-lag",
        "server deletes keys when its memory is full",
        "at least 6.2.7 is needed",
    ] {
        assert!(manual.contains(words), "{words:?} is missing");
    }
}
