//! Tests of entries with forgotten keys: the nodes have lost data, so it is unknown if there was an
//! attempt for such a key. In one test the entries are held until an operator decides, and then run
//! once. In the other test a first decision makes the entries dead letters. After a second decision
//! the entries are moved back into the stream and run once.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use palisade::idempotency::{Context, Decision};
use palisade::{Failed, MemoryNode, Redlock};
use palisade_consumer::Rules;
use palisade_ops::{Audit, incidents};
use palisade_streams::{Consumer, Message, Publisher, redrive};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::held::Held;
use crate::server::Server;
use crate::wait::until;
use crate::{ask, drained, stream};

#[tokio::test]
async fn forgotten_messages_are_held_and_run_once_after_a_decision() {
    let (server, held) = (Server::start(&[]), Held::new().await);
    let publisher = Publisher::new(&server.url(), "orders");
    let publish = async |key: &str, made: SystemTime| {
        publisher.publish(key, made, b"10 GBP").await.unwrap();
    };
    let consumer = Consumer::builder(stream(&server), held.of.clone());
    let ended = held.consume(consumer, publish, drained(&server, 25)).await;
    assert_eq!((ended.acked, ended.parked), (25, 0), "{ended:?}");
}

#[tokio::test]
async fn entries_are_held_parked_by_a_decision_and_run_once_after_a_redrive() {
    const OLD: usize = 100;
    let (server, node) = (Server::start(&[]), MemoryNode::new());
    let lease = Duration::from_secs(2);
    let redlock = Redlock::builder().node(node.clone()).ttl(lease).max_ttl(lease);
    let redlock = redlock.clock_error(lease / 40).build().unwrap();
    let of = redlock.idempotency("orders").at_most_once().build().unwrap();
    assert!(of.key("first").run(|_| async { Ok::<_, Failed>(()) }).await.unwrap().is_executed());
    let publisher = Publisher::new(&server.url(), "orders");
    let hour_ago = SystemTime::now() - Duration::from_secs(3_600);
    for n in 0..OLD {
        publisher.publish(&format!("old-{n}"), hour_ago, b"10 GBP").await.unwrap();
    }
    node.restart_empty();
    while !of.health().await.is_ready() {
        sleep(lease / 20).await;
    }
    let booked = Arc::new(Mutex::new(Vec::new()));
    let books = Arc::clone(&booked);
    let book = move |cx: Context, _: Arc<Message>| {
        books.lock().unwrap().push(cx.key().to_owned());
        async { Ok::<_, Failed>(()) }
    };
    let consumer = Consumer::builder(stream(&server), of.clone());
    let consumer = consumer.rules(Rules::default().concurrency(128)).build().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let dead = || ask(&server, &["XLEN", "{orders}:dead"]);
    let operate = async {
        until("all are held", || of.metrics().held == OLD as u64).await;
        assert_eq!(dead(), "0", "none is dead while it is undecided");
        let audit = Audit::new("alice", "looked at the ledger").unwrap();
        let seen = incidents(&of).await.incidents;
        seen[0].decide(&of, Decision::Park, false, &audit).await.unwrap();
        until("they are dead letters", || dead() == OLD.to_string()).await;
        // Dead letters with another reason and incomplete dead letters must not be moved.
        let other = ["key", "x", "body", "y", "reason", "refused", "detail", "no", "id", "1-1"];
        ask(&server, &[&["XADD", "{orders}:dead", "*"][..], &other].concat());
        let left =
            ["key", "x", "reason", "forgotten", "detail", "no", "id", "1-1", "left_out", "y"];
        ask(&server, &[&["XADD", "{orders}:dead", "*"][..], &left].concat());
        seen[0].decide(&of, Decision::Run, true, &audit).await.unwrap();
        // The consumer caches an operator's decision for some seconds. Wait until the consumer uses
        // the new decision.
        sleep(Duration::from_secs(6)).await;
        let url = server.url();
        let moves = || redrive(&url, "orders");
        // A redrive can stop at any moment and loses no entry.
        for n in 0..20 {
            let _ = timeout(Duration::from_micros(200 * n), moves()).await;
        }
        let last = moves().await.unwrap();
        assert_eq!(last.incomplete, 1);
        assert_eq!(moves().await.unwrap().moved, 0);
        assert_eq!(dead(), "2");
        until("all are booked", || booked.lock().unwrap().len() >= OLD).await;
        stop.send(()).unwrap();
    };
    let run = consumer.run(book, async move { stopped.await.unwrap() });
    let (ended, ()) = tokio::join!(run, operate);
    assert_eq!(ended.unwrap().parked, OLD as u64);
    let mut keys = booked.lock().unwrap().clone();
    keys.sort();
    keys.dedup();
    assert_eq!((keys.len(), booked.lock().unwrap().len()), (OLD, OLD), "none twice");
}
