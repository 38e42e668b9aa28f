//! The library, the operators' functions and the program refuse the same servers, and say the same.

use std::time::Instant;

use palisade::error::NodeOutcome;
use palisade::{RedisNode, Redlock};
use palisade_ops::{HandedOver, Handover, Init, init};

use super::support::fake::{Fake, View, bulk};
use super::*;

/// Asserts that the sentence is part of what `ask` returns. Asks again for a while, because a slow
/// server may not answer in time.
async fn says(sentence: &str, ask: impl AsyncFn() -> String) {
    let begun = Instant::now();
    loop {
        let said = ask().await;
        if said.contains(sentence) {
            return;
        }
        assert!(begun.elapsed() < SOON, "{sentence:?} is not in {said}");
    }
}

const VERBS: [&[&str]; 5] =
    [&["init", "--new"], &["handover"], &["lock", "a", "-n"], &["inspect-node"], &["doctor"]];

/// Asserts that the sentence is part of what each says about the server at `url`.
async fn all_say(sentence: &str, url: &str, verbs: &[&[&str]]) {
    let node = RedisNode::new(url).unwrap();
    let redlock = Redlock::builder().node(node).build().unwrap();
    says(sentence, async || {
        let health = redlock.health().await;
        assert!(matches!(health.nodes[0].outcome, NodeOutcome::Failed(_)), "{health}");
        health.to_string()
    })
    .await;
    let deployment = Deployment::new().node(url);
    says(sentence, async || {
        let marked = init(&deployment, "").await.unwrap();
        assert!(!marked.is_done(), "{marked}");
        marked.to_string()
    })
    .await;
    says(sentence, async || {
        let restart = async { Err("it was closed".to_owned()) };
        let kept = Handover::new(deployment.clone()).lone(restart, |_| ()).await.unwrap();
        assert!(matches!(kept, HandedOver::Refused(_) | HandedOver::Unreachable(_)), "{kept}");
        assert!(!kept.to_string().contains("it was closed"), "{kept}");
        kept.to_string()
    })
    .await;
    for &verb in verbs {
        let tail: &[&str] = match verb[0] {
            "lock" | "handover" => &["--", "true"],
            "doctor" => &["--no-trial"],
            _ => &[],
        };
        says(sentence, async || {
            let out = palisade(&[verb, &["--node", url], tail].concat());
            assert_ne!(out.status.code(), Some(0), "{verb:?}: {}", words(&out));
            format!("{verb:?}: {}", unwrapped(&out))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_refuse_what_one_refuses_with_the_same_sentence() {
    let cluster = Server::start(&["--cluster-enabled", "yes"]);
    all_say("Redis Cluster cannot be a node; use standalone servers", &cluster.url(), &VERBS).await;

    let five = Fake::start(|words| match words {
        ["HELLO", ..] => {
            b"-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n".to_vec()
        }
        _ => b"+OK\r\n".to_vec(),
    });
    let sentence = "it does not know HELLO; at least 6.2.7 is needed";
    all_say(sentence, &format!("redis://{}", five.at), &VERBS).await;

    let old = Fake::start(|words| match words {
        ["INFO", ..] => bulk("redis_version:6.0.16\r\nredis_mode:standalone\r\n"),
        words => View::default().answer('a', words),
    });
    let sentence = "server version \"6.0.16\"; at least 6.2.7 is needed";
    all_say(sentence, &format!("redis://{}", old.at), &VERBS).await;

    let closed = Server::start(&[]);
    assert_eq!(closed.cli(&["ACL", "SETUSER", "default", "-info"]), "OK");
    all_say("; allow this user +info (least rights: ", &closed.url(), &VERBS[..4]).await;
    let marked = init(&lone(&closed), "").await.unwrap();
    assert!(matches!(&marked.nodes[0].1, Init::Refused(_)), "{marked}");

    // The library sends EVALSHA, the operators' functions EVAL. What reads only sends neither.
    let no_scripts = Server::start(super::handover::DURABLE);
    assert_eq!(no_scripts.cli(&["ACL", "SETUSER", "default", "-eval", "-evalsha"]), "OK");
    all_say("; allow this user +eval", &no_scripts.url(), &VERBS[..3]).await;
    let marked = init(&lone(&no_scripts), "").await.unwrap().to_string();
    assert!(marked.contains("+eval (least rights: "), "{marked}");
}

/// All clients go by the largest E, also where the command names a smaller one.
#[tokio::test]
async fn a_handover_leaves_time_for_the_clock_error_that_clients_share() {
    let server = Server::start(super::handover::DURABLE);
    assert!(init(&lone(&server), "").await.unwrap().is_done());
    let (ttl, error) = (Duration::from_secs(30), Duration::from_secs(10));
    let node = RedisNode::new(server.url()).unwrap();
    let redlock = Redlock::builder().node(node).ttl(ttl).clock_error(error).build().unwrap();
    drop(super::handover::fresh(&redlock, "before").await);
    let closing = |span| Handover::new(lone(&server)).closed_for(Duration::from_secs(span));
    let restart = || async { Err("it was closed".to_owned()) };
    let done = closing(22).lone(restart(), |_| ()).await.unwrap();
    let HandedOver::Refused(why) = &done else { panic!("{done}") };
    assert!(why.contains("clock_error of 10s") && why.contains("more than 22s"), "{why}");
    let done = closing(23).lone(restart(), |_| ()).await.unwrap();
    assert!(done.to_string().contains("it was closed"), "{done}");
    drop(super::handover::fresh(&redlock, "open again").await);
}
