//! A server's marker (the key with its data history) lists losses: the times in which its data may
//! have lost writes. These tests cover the time that a loss spans, and the losses that are merged
//! (rule quarantine 13 in docs/design).

use std::time::Duration;

use palisade::internal::lineage::{Losses, ReplicationId};
use palisade::node::spi::{Batch, Began, Env as _, LockNode as _, Remembered, SystemEnv};
use palisade::node::{Loss, RedisNode};

use super::{LONG, facts};
use crate::support::marker::rewrite;
use crate::support::server::Server;

/// The name of other data.
fn another(number: usize) -> ReplicationId {
    ReplicationId::parse(&format!("{number:040x}")).unwrap()
}

#[tokio::test]
async fn a_loss_ends_with_the_longest_window_of_those_who_ask_in_the_quarantine() {
    let server = Server::start(&[]);
    let with = |window: u64| {
        let window = Duration::from_secs(window);
        RedisNode::builder(server.url()).failover_window(window).build().unwrap()
    };
    let ends = async |window: u64, known_since: Option<u64>| {
        let remembers = Remembered { known_since, ..Remembered::default() };
        let batch = Batch { terms: LONG, not_after: None, remembers, ops: Vec::new() };
        let deadline = SystemEnv.now() + Duration::from_secs(5);
        let facts = with(window).call(batch, deadline).await.facts.unwrap();
        let loss = facts.losses.last().copied().expect("a loss");
        assert_eq!(loss.began, facts.since, "its name");
        (loss.to - facts.since, facts.began, facts.since * 1_000)
    };
    let (first, began, since) = ends(3, None).await;
    assert_eq!((first, began), (3_000, Began::Empty));
    assert_eq!(ends(9, None).await.0, 9_000);
    assert_eq!(ends(0, None).await.0, 9_000);
    // `known_since` is the time since which a client has known the server's data. If it is the
    // start of these data, the client does not prove that data were lost. If it is earlier, the
    // client proves that older data were lost. The client's failover window (time in which a
    // replaced master may still grant) makes no difference.
    for window in [0, 3, 20] {
        assert_eq!(ends(window, Some(since)).await.1, Began::Empty, "{window}");
    }
    assert_eq!(ends(0, Some(since - 1_000)).await.1, Began::Lost);
    // The end of a loss of data is later than the beginning of the new data history, by the longest
    // failover window (time in which a replaced master may still grant) of the clients. The clients
    // above had up to 20 s, so the loss ends 20 s after the beginning.
    assert_eq!(ends(0, None).await.0, 20_000);
}

#[tokio::test]
async fn a_loss_of_everything_is_merged_with_no_other() {
    let server = Server::start(&[]);
    let with = |window: u64| {
        let window = Duration::from_secs(window);
        RedisNode::builder(server.url()).failover_window(window).build().unwrap()
    };
    let first = facts(&with(12), LONG).await.losses[0];
    let mut last = first;
    for round in 1..12 {
        // Write the same marker (the key with the data history) with the id of another history. The
        // server then looks as if it had lost data once more.
        rewrite(&server, |m| (m.replid, m.process.run) = (another(round), 7));
        // `known_since` tells the server that this client knows it only since its present data
        // began. So the request does not prove that earlier data were lost, whatever failover
        // window (time for which a replaced server may still write) the client has.
        let node = with([0, 3, 20][round % 3]);
        let known_since = Some(first.began * 1_000);
        let remembers = Remembered { known_since, ..Remembered::default() };
        let batch = Batch { terms: LONG, not_after: None, remembers, ops: Vec::new() };
        let deadline = SystemEnv.now() + Duration::from_secs(5);
        let now = node.call(batch, deadline).await.facts.unwrap();
        assert_eq!((now.losses[0], now.began), (first, Began::Empty), "{round}");
        assert_eq!(now.losses.len(), 8.min(round + 1));
        let latest = now.losses.last().copied().unwrap();
        assert!(latest.from > 0 && latest.began >= last.began, "{latest:?} after {last:?}");
        last = latest;
    }
}

#[tokio::test]
async fn of_nine_losses_those_become_one_that_are_the_shortest_for_their_age() {
    let server = Server::start(&[]);
    let node = RedisNode::builder(server.url()).build().unwrap();
    let now = facts(&node, LONG).await.node_micros / 1_000;
    let lost = async |all: &[Loss]| {
        // Store a marker with the losses `all` and the name of other data.
        rewrite(&server, |m| {
            (m.replid, m.process.run) = (another(7), 7);
            m.losses = all.iter().copied().fold(Losses::default(), Losses::and);
        });
        facts(&node, LONG).await.losses.to_vec()
    };
    let ago = |minutes: u64| {
        let began = now - minutes * 60_000;
        Loss { from: began - 1_000, began, to: began }
    };
    // These eight losses are one hour apart, and the new data history adds a ninth. The list of
    // losses in the server's marker key has room for eight, so the server merges the two oldest
    // losses.
    let all: Vec<_> = (1..9).rev().map(|hours| ago(60 * hours)).collect();
    let nine = lost(&all).await;
    assert_eq!(nine[..7], [&[Loss { from: all[0].from, ..all[1] }], &all[2..]].concat());
    // The last three losses are minutes apart, and the earlier losses are weeks apart. The server
    // does not merge recent losses, but two old ones that are close together for their age.
    let weeks = (2..7).rev().map(|weeks| ago(weeks * 7 * 24 * 60));
    let all: Vec<_> = weeks.chain([ago(12), ago(6), ago(1)]).collect();
    let nine = lost(&all).await;
    assert_eq!(nine[..7], [&[Loss { from: all[0].from, ..all[1] }], &all[2..]].concat());
    // Two old losses are a minute apart, and the other losses are hours apart. So the server merges
    // these two.
    let all: Vec<_> = [900, 800, 700, 601, 600, 500, 400, 300].map(ago).into();
    let nine = lost(&all).await;
    let both = Loss { from: all[3].from, ..all[4] };
    assert_eq!(nine[..7], [&all[..3], &[both], &all[5..]].concat());
    // The first loss has no known start: all writes before its end may be lost. So the server does
    // not merge it with another loss.
    let all = [&[Loss { from: 0, ..all[0] }], &all[1..3], &[both], &all[5..], &[ago(200)]].concat();
    assert_eq!(lost(&all).await[..2], [all[0], Loss { from: all[1].from, ..all[2] }]);
}
