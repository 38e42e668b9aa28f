//! The script's text goes only to a server that lacks it, and a new connection learns in one round
//! trip all that it needs to know.

use super::*;
use crate::support::proxy::Proxy;

/// What a client sends with the text, and nowhere else.
const TEXT: &str = "\r\nLOAD\r\n";
/// A command with the text is longer, all else that a connection sends is shorter.
const SHORT_OF_TEXT: usize = 20_000;

fn behind(server: &Server) -> (Proxy, RedisNode) {
    let proxy = Proxy::to(&server.addr());
    let node = RedisNode::builder(format!("redis://{}", proxy.addr())).trust_fresh(true);
    (proxy, node.connect_timeout(Duration::from_secs(5)).build().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_text_goes_only_to_a_server_that_lacks_it() {
    let server = Server::start(&[]);
    let (proxy, node) = behind(&server);
    fence(one(&node, LONG, acquire("a", owner())).await);
    assert_eq!(proxy.requests().count(TEXT), 1);
    assert!(proxy.requests().bytes() > SHORT_OF_TEXT);
    for name in ["b", "c"] {
        let (proxy, node) = behind(&server);
        fence(one(&node, LONG, acquire(name, owner())).await);
        let requests = proxy.requests();
        assert_eq!(requests.count(TEXT), 0);
        assert!(requests.bytes() < SHORT_OF_TEXT, "{} bytes", requests.bytes());
    }
}

/// Each acquire writes the lock, its fence and the note. A request that ran twice would write more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_forgets_the_script_gets_it_again_and_executes_once() {
    let server = Server::start(&[]);
    let (proxy, node) = behind(&server);
    fence(one(&node, LONG, acquire("first", owner())).await);
    let mut writes = Vec::new();
    for (name, flushes) in [("plain", false), ("flushed", true), ("again", true)] {
        if flushes {
            server.cli(&["script", "flush"]);
        }
        let (texts, before, owner) = (proxy.requests().count(TEXT), server.calls("set"), owner());
        fence(one(&node, LONG, acquire(name, owner)).await);
        writes.push(server.calls("set") - before);
        assert_eq!(proxy.requests().count(TEXT) - texts, usize::from(flushes), "{name}");
        assert_eq!(one(&node, LONG, release(name, owner)).await, Ok(Reply::Done));
    }
    assert_eq!(writes, [3, 3, 3]);
}

/// The proxy holds all answers back until the client has asked for the server's data, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_connection_asks_for_everything_at_once() {
    let server = Server::start(&[]);
    fence(one(&fresh(&server), LONG, acquire("first", owner())).await);
    // Without its marker the server is new, and the connection has one to write.
    for (name, is_known) in [("known", true), ("new", false)] {
        if !is_known {
            server.cli(&["del", "palisade:generation"]);
        }
        let (proxy, node) = behind(&server);
        let requests = proxy.requests();
        let asked = requests.clone();
        proxy.edit(move |_| {
            while asked.count("EVALSHA") == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        fence(one(&node, LONG, acquire(name, owner())).await);
        // The look, the marker if one is due, and the acquire.
        let scripts = if is_known { 2 } else { 3 };
        assert_eq!(requests.count("EVALSHA"), scripts, "{name}");
        assert_eq!(requests.count("HELLO"), 1, "on the first try");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_load_the_script_works_where_it_is() {
    let server = Server::start(&[]);
    let user = ["acl", "setuser", "joe", "on", ">pw", "~*", "&*", "+@all", "-script"];
    assert_eq!(server.cli(&user), "OK");
    let joe = || {
        let node = RedisNode::builder(server.url()).username("joe").password("pw");
        node.trust_fresh(true).build().unwrap()
    };
    let at = server.addr();
    let refused = |reply: Result<Reply, NodeError>| {
        let e = reply.expect_err("the script is not there");
        assert_eq!((e.fault(), e.is_ambiguous()), (NodeFault::NoPermission, false), "{e}");
        for words in ["NOPERM", "allow this user +script", &at] {
            assert!(e.to_string().contains(words), "{words} in {e}");
        }
    };
    refused(one(&joe(), LONG, acquire("k", owner())).await);
    fence(one(&fresh(&server), LONG, acquire("first", owner())).await);
    let node = joe();
    fence(one(&node, LONG, acquire("there", owner())).await);
    server.cli(&["script", "flush"]);
    refused(one(&node, LONG, acquire("gone", owner())).await);
    assert_eq!(server.cli(&["exists", "gone"]), "0");
    fence(one(&fresh(&server), LONG, acquire("second", owner())).await);
    let end = Instant::now() + Duration::from_secs(60);
    // After a refusal the node pauses before it connects again.
    loop {
        match one(&node, LONG, acquire("back", owner())).await {
            Err(e) if e.fault() == NodeFault::NoPermission && Instant::now() < end => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            reply => {
                fence(reply);
                break;
            }
        }
    }
}
