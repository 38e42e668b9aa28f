//! Tests of a consumer that is late: its entry was delivered to another consumer, or again to
//! itself, was acknowledged, or lost its consumer's name. It changes nothing of that entry.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use palisade::Failed;
use palisade::idempotency::Context;
use palisade_consumer::{ConsumerReport, Rules};
use palisade_streams::{Consumer, Message, Publisher};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tracing_subscriber::filter::LevelFilter;

use crate::logs::Log;
use crate::server::Server;
use crate::{LEASE, add, ask, drained, frozen, orders, stream};

type Answer = fn() -> Result<(), Failed>;

const ANSWERS: [(&str, Answer); 5] = [
    ("refused for good", || Err(Failed::permanent("no such customer"))),
    ("the last allowed failure", || Err(Failed::no_effect("the bank is closed"))),
    ("a failure, with a time", || Err(Failed::retry("closed").after(Duration::from_secs(9)))),
    ("unknown", || Err(Failed::unknown("no answer"))),
    ("a result", || Ok(())),
];

fn pending(server: &Server) -> Vec<String> {
    let pending = ask(server, &["XPENDING", "orders", "billing", "-", "+", "1"]);
    // The third line is the idle time.
    pending.lines().enumerate().filter(|(n, _)| *n != 2).map(|(_, line)| line.to_owned()).collect()
}

async fn late(
    answer: Answer,
    rest: Duration,
    steal: impl Fn(&Server, &str, &str),
) -> (Server, ConsumerReport) {
    let (server, of) = (Server::start(&[]), orders());
    add(&server, &["order-1"]).await;
    let (started, begun) = oneshot::channel();
    let (let_go, gone) = oneshot::channel();
    let once = Arc::new(Mutex::new(Some((started, gone))));
    let handler = move |_: Context, _: Arc<Message>| {
        let once = Arc::clone(&once);
        async move {
            let taken = once.lock().unwrap().take();
            let (started, gone) = taken.ok_or_else(|| Failed::no_effect("again"))?;
            let _ = started.send(());
            let _ = gone.await;
            answer()
        }
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let rules = Rules::default().max_failures(1).concurrency(1);
    let consumer = Consumer::builder(stream(&server), of).rules(rules).build().unwrap();
    let run = consumer.run(handler, async move {
        let _ = stopped.await;
    });
    let steal = async {
        begun.await.unwrap();
        let before = pending(&server);
        steal(&server, &before[0], &before[1]);
        sleep(rest).await;
        let_go.send(()).unwrap();
        sleep(Duration::from_millis(300)).await;
        stop.send(()).unwrap();
    };
    let (ended, ()) = tokio::join!(timeout(Duration::from_secs(30), run), steal);
    (server, ended.expect("it ends").unwrap())
}

#[tokio::test]
async fn what_another_consumer_has_stays_with_it() {
    for (what, answer) in ANSWERS {
        let (server, ended) = late(answer, Duration::ZERO, |server, id, _| {
            ask(server, &["XCLAIM", "orders", "billing", "other", "0", id]);
        })
        .await;
        assert_eq!((ended.unsettled, ended.delivered), (1, 1), "{what}: {ended:?}");
        assert_eq!(pending(&server)[1..], ["other", "2"], "{what}");
        assert_eq!(ask(&server, &["XLEN", "{orders}:dead"]), "0", "{what}");
    }
}

/// A paused consumer may get its own entry again, before its first delivery of it ends.
#[tokio::test]
async fn what_the_same_consumer_got_again_stays_with_its_newer_delivery() {
    for (what, answer) in ANSWERS {
        let (server, ended) = late(answer, Duration::ZERO, |server, id, me| {
            ask(server, &["XCLAIM", "orders", "billing", me, "0", id]);
        })
        .await;
        assert_eq!((ended.unsettled, ended.delivered), (1, 1), "{what}: {ended:?}");
        assert_eq!(pending(&server)[2..], ["2"], "{what}");
        assert_eq!(ask(&server, &["XLEN", "{orders}:dead"]), "0", "{what}");
    }
}

#[tokio::test]
async fn what_another_consumer_has_acknowledged_does_not_come_again() {
    for (what, answer) in ANSWERS {
        let (server, ended) = late(answer, Duration::ZERO, |server, id, _| {
            ask(server, &["XCLAIM", "orders", "billing", "other", "0", id]);
            ask(server, &["XACK", "orders", "billing", id]);
        })
        .await;
        assert_eq!((ended.unsettled, ended.delivered), (1, 1), "{what}: {ended:?}");
        let left = ask(&server, &["XPENDING", "orders", "billing"]);
        assert!(left.starts_with('0'), "{what}: {left}");
        assert_eq!(ask(&server, &["XLEN", "{orders}:dead"]), "0", "{what}");
    }
}

#[tokio::test]
async fn a_heartbeat_that_finds_its_entry_gone_is_a_warning() {
    let log = Log::of_this_thread(LevelFilter::WARN);
    let (_server, _) = late(
        || Ok(()),
        2 * LEASE,
        |server, _, me| {
            ask(server, &["XGROUP", "DELCONSUMER", "orders", "billing", me]);
        },
    )
    .await;
    let lines = log.lines(&["does not have any more", "DELCONSUMER"]);
    assert_eq!(lines.len(), 1, "once for a delivery: {}", log.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_consumer_changes_nothing_of_what_was_taken_over() {
    let server = Server::start(&[]);
    let from = stream(&server);
    let publisher = Publisher::new(&server.url(), "orders");
    let read = AtomicUsize::new(0);
    frozen::overtaken(
        async move |of| Consumer::builder(from.clone(), of),
        async |key| {
            read.fetch_add(1, SeqCst);
            publisher.publish(key, SystemTime::now(), b"10 GBP").await.unwrap();
        },
        async || drained(&server, read.load(SeqCst)).await,
        async || ask(&server, &["XLEN", "{orders}:dead"]).parse().unwrap(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_kills_its_process_is_put_aside() {
    let server = Server::start(&[]);
    let from = stream(&server);
    let publisher = Publisher::new(&server.url(), "orders");
    frozen::kills_its_process(
        async move |of| Consumer::builder(from.clone(), of),
        async |key| publisher.publish(key, SystemTime::now(), b"10 GBP").await.unwrap(),
        async || drained(&server, 2).await,
    )
    .await;
    let letter = ask(&server, &["XRANGE", "{orders}:dead", "-", "+"]);
    for part in ["key\npoisoned", "reason\nexhausted", "3 attempts began and left no result"] {
        assert!(letter.contains(part), "{part} is not in {letter}");
    }
}
