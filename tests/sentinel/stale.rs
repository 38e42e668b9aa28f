//! A Sentinel that heard of no failover names the same master as the others again, once the first
//! master was replaced and promoted anew. Its word is of the time before, and so is its epoch.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade::error::NodeFault;
use palisade::node::spi::Reply;
use palisade::node::{MinReplicas, SentinelNode};

use super::node::{acquire, call, until};
use crate::support::fake::{NAME, View, sentinel};
use crate::support::marker::marker;
use crate::support::server::Server;

fn node(sentinels: [String; 3]) -> SentinelNode {
    let node = SentinelNode::builder(NAME, sentinels).min_replicas_check(MinReplicas::Off);
    let node = node.trust_fresh(true).sentinel_deadline(Duration::from_secs(10));
    node.poll_every(Duration::from_millis(100)).build().unwrap()
}

/// The third Sentinel, which knows better, does not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_sentinel_and_the_leader_are_no_majority_for_a_master_that_returned() {
    let master = Server::start(&[]);
    let view = || Arc::new(Mutex::new(View { master: master.addr(), epoch: 1, ..View::default() }));
    let views = [view(), view(), view()];
    let (leader, stale) = (sentinel('a', &views[0]), sentinel('b', &views[1]));
    let third = sentinel('c', &views[2]);
    let all = [leader.at.clone(), stale.at.clone(), third.at.clone()];
    let is_granted = |item: &Reply| matches!(item, Reply::Granted { .. });
    until(&node(all.clone()), "before", |r| r.items[0].as_ref().is_ok_and(is_granted)).await;
    let before = marker(&master);
    assert_eq!(before.epoch, 1);

    // Another server is promoted in epoch 2, and this one, unchanged, in epoch 3.
    drop(third);
    views[0].lock().unwrap().epoch = 3;
    let new = node(all);
    let replies = call(&new, acquire("returned"), Duration::from_secs(30)).await;
    let error = replies.items[0].as_ref().expect_err("nobody knows the epoch");
    assert_eq!(error.fault(), NodeFault::NoAgreement, "{error}");
    let text = error.to_string();
    for words in ["2 must name one master in one epoch", "in epoch 1", "in epoch 3"] {
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(marker(&master), before, "nothing was asked of the server");

    views[1].lock().unwrap().epoch = 3;
    let heard = until(&new, "heard", |r| r.items[0].is_ok()).await;
    assert!(matches!(heard.items[0], Ok(Reply::Quarantined { .. })), "{heard:?}");
    let after = marker(&master);
    assert!(after.epoch == 3 && after.history != before.history, "{after:?}");
}
