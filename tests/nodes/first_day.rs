//! What is said of a server that grants nothing yet: a new or emptied one is called that, with the
//! way on, and one that was restarted with its data is not.

use std::time::Duration;

use palisade::error::NodeOutcome;
use palisade::node::NodeEvent;
use palisade::{AcquireError, RedisNode, Redlock};
use tokio::time::timeout;

use crate::support::server::Server;

const TTL: Duration = Duration::from_secs(2);

/// What a user without patience reads, and what operators see.
async fn refusal(server: &Server) -> (String, bool, bool) {
    let node = RedisNode::builder(server.url()).build().unwrap();
    let redlock = Redlock::builder().node(node).ttl(TTL).build().unwrap();
    let mut events = redlock.events();
    let hasty = redlock.mutex("first").acquire_timeout(Duration::from_millis(50)).build().unwrap();
    let refused = hasty.acquire().await.expect_err("a server of unknown past grants nothing");
    let AcquireError::NoQuorum(why) = &refused else { panic!("{refused}") };
    let [(_, NodeOutcome::Quarantined { began_empty: reported, .. })] = why.nodes[..] else {
        panic!("{why}")
    };
    let begun = async {
        loop {
            let event = events.recv().await.expect("the handle lives").1;
            if let NodeEvent::QuarantineBegun { began_empty, .. } = event {
                return began_empty;
            }
        }
    };
    let heard = timeout(10 * TTL, begun).await.expect("operators hear of it");
    (refused.to_string(), reported, heard)
}

#[tokio::test]
async fn a_new_server_is_distinguished_from_one_that_was_restarted() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (text, reported, heard) = refusal(&server).await;
    assert!(reported && heard);
    for words in ["no palisade data here: new, or emptied", "grants begin in", "`palisade init`"] {
        assert!(text.contains(words), "{words:?} in {text}");
    }
    assert!(text.contains("an `acquire_timeout` of"), "{text}");

    server.restart();
    let (text, reported, heard) = refusal(&server).await;
    assert!(!reported && !heard, "its data are there: {text}");
    assert!(text.contains("after a restart or failover; grants begin in"), "{text}");
    assert!(!text.contains("palisade init"), "{text}");

    // Emptied, it is as good as new: the two cannot be distinguished.
    server.restart_empty();
    assert!(refusal(&server).await.1);
}
