//! Losses in the marker (quarantine 13).

use std::time::Duration;

use palisade::node::RedisNode;
use palisade::node::spi::{Batch, Began, Env as _, LockNode as _, SystemEnv};

use super::{LONG, facts};
use crate::support::server::Server;

#[tokio::test]
async fn a_loss_ends_with_the_longest_window_of_those_who_ask_in_the_quarantine() {
    let server = Server::start(&[]);
    let with = |window: u64| {
        let window = Duration::from_secs(window);
        RedisNode::builder(server.url()).failover_window(window).build().unwrap()
    };
    let ends = async |window: u64, known_since: Option<u64>| {
        let batch = Batch { terms: LONG, not_after: None, known_since, ops: Vec::new() };
        let deadline = SystemEnv.now() + Duration::from_secs(5);
        let facts = with(window).call(batch, deadline).await.facts.unwrap();
        let loss = facts.losses.last().copied().expect("a loss");
        (loss.to - facts.since, facts.began, facts.since * 1_000)
    };
    let (first, began, since) = ends(3, None).await;
    assert_eq!((first, began), (3_000, Began::Empty));
    assert_eq!(ends(9, None).await.0, 9_000);
    assert_eq!(ends(0, None).await.0, 9_000);
    // A client that saw only these data proves no others, and one that saw others does, for any L.
    for window in [0, 3, 20] {
        assert_eq!(ends(window, Some(since)).await.1, Began::Empty, "{window}");
    }
    assert_eq!(ends(0, Some(since - 1_000)).await.1, Began::Lost);
    // In the quarantine alone: the last one asked for 20 s.
    assert_eq!(ends(0, None).await.0, 20_000);
}

#[tokio::test]
async fn a_loss_of_everything_is_merged_with_no_other() {
    let server = Server::start(&[]);
    let node = RedisNode::builder(server.url()).failover_window(Duration::from_secs(3));
    let node = node.build().unwrap();
    let first = facts(&node, LONG).await.losses[0];
    let mut last = first;
    for round in 1..12 {
        // As a server with these data and another history.
        let marker = server.cli(&["get", "palisade:generation"]);
        let other = format!("{:040x}{}", round, &marker.trim()[40..]);
        server.cli(&["set", "palisade:generation", &other]);
        let known_since = Some(first.to * 1_000);
        let batch = Batch { terms: LONG, not_after: None, known_since, ops: Vec::new() };
        let deadline = SystemEnv.now() + Duration::from_secs(5);
        let now = node.call(batch, deadline).await.facts.unwrap();
        assert_eq!((now.losses[0], now.began), (first, Began::Empty), "{round}");
        assert_eq!(now.losses.len(), 8.min(round + 1));
        let latest = now.losses.last().copied().unwrap();
        assert!(latest.from > 0 && latest.to >= last.to, "{latest:?} after {last:?}");
        last = latest;
    }
}
