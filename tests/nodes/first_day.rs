//! Errors of a server that grants nothing yet. If the server was never initialised, the error
//! reports this and names the next step. If the server was restarted, with or without its data, the
//! error names the restart instead.

use std::time::Duration;

use palisade::error::{Began, NodeOutcome};
use palisade::node::NodeEvent;
use palisade::{AcquireError, RedisNode, Redlock};
use palisade_ops::Deployment;
use tokio::time::timeout;

use crate::support::server::Server;

/// Long enough for several attempts to connect, and much shorter than a quarantine.
const HASTE: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(6);

/// Returns the error of an acquire with a short timeout, and the origin of the server's data as an
/// event reports it: `Known` (a new server), `Empty` (no client has seen earlier data) or `Lost`.
async fn refusal(server: &Server) -> (String, Began) {
    let node = RedisNode::builder(server.url()).build().unwrap();
    let redlock = Redlock::builder().node(node).ttl(TTL).build().unwrap();
    let mut events = redlock.events();
    let hasty = redlock.mutex("first").acquire_timeout(HASTE).build().unwrap();
    let refused = hasty.acquire().await.expect_err("a server of unknown past grants nothing");
    let AcquireError::NoQuorum(why) = &refused else { panic!("{refused}") };
    let [(_, NodeOutcome::Quarantined { began: reported, .. })] = why.nodes[..] else {
        panic!("{why}")
    };
    let begun = async {
        loop {
            let event = events.next().await.expect("the handle lives").event;
            if let NodeEvent::QuarantineBegun { began, .. } = event {
                return began;
            }
        }
    };
    let heard = timeout(10 * TTL, begun).await.expect("operators hear of it");
    // A client that knew the data may have said meanwhile that they are lost.
    assert!(reported == heard || reported == Began::Lost, "{reported:?} {heard:?}");
    (refused.to_string(), heard)
}

#[tokio::test]
async fn a_new_server_is_distinguished_from_one_that_was_restarted() {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (text, began) = refusal(&server).await;
    assert_eq!(began, Began::Empty);
    let command = format!("`palisade init --new --node {}`", server.url());
    for words in ["never initialised: new, or emptied", "grants begin in", &command] {
        assert!(text.contains(words), "{words:?} in {text}");
    }
    assert!(text.contains("an `acquire_timeout` of"), "{text}");

    // The server restarts, and still no operator has initialised it (`palisade init`).
    server.restart();
    assert_eq!(refusal(&server).await.1, Began::Empty);

    let done = palisade_ops::init(&Deployment::new().node(server.url()), "").await.unwrap();
    assert!(done.is_done(), "{done}");
    server.restart();
    let (text, began) = refusal(&server).await;
    assert_eq!(began, Began::Known, "its data are there: {text}");
    assert!(text.contains("after a restart or failover; grants begin in"), "{text}");
    assert!(!text.contains("palisade init"), "{text}");

    // The server restarts without its data. A client that has never seen this server cannot
    // distinguish it from a new server.
    server.restart_empty();
    assert_eq!(refusal(&server).await.1, Began::Empty);
}

#[tokio::test]
async fn a_program_that_saw_its_data_says_that_they_are_lost() {
    let mut server = Server::start(&[]);
    let done = palisade_ops::init(&Deployment::new().node(server.url()), "").await.unwrap();
    assert!(done.is_done(), "{done}");
    let node = RedisNode::builder(server.url()).build().unwrap();
    let redlock = Redlock::builder().node(node).ttl(TTL).build().unwrap();
    let mutex = redlock.mutex("first").acquire_timeout(10 * TTL).build().unwrap();
    assert!(mutex.acquire().await.unwrap().release().await.is_ok());
    let mut events = redlock.events();

    server.restart_empty();
    // This handle has never seen the server, and is the first one to connect after the restart,
    // unless the idle handle from before it was.
    assert_ne!(refusal(&server).await.1, Began::Known);
    let lost = async {
        loop {
            // The handle `redlock` from before the restart connects again and asks for the lock.
            // The server is in quarantine (it may have lost data) and does not grant the lock yet.
            let hasty = redlock.mutex("first").acquire_timeout(HASTE);
            drop(hasty.build().unwrap().acquire().await);
            while let Some(event) = events.try_next().map(|named| named.event) {
                if let NodeEvent::QuarantineBegun { began, .. } = event {
                    return began;
                }
            }
        }
    };
    assert_eq!(timeout(10 * TTL, lost).await.expect("it is said"), Began::Lost);
    let (text, began) = refusal(&server).await;
    assert_eq!(began, Began::Lost, "all are told");
    assert!(text.contains("its data are lost") && !text.contains("palisade init"), "{text}");
}
