//! Tests of the RabbitMQ consumers' guarantees, on a real RabbitMQ. The tests of `broker-demo` kill
//! processes at each crash point, that is, after each step of the handling of a message.

#[path = "../../../tests/support/books.rs"]
#[allow(dead_code, reason = "shared with tests that use all of it")]
mod books;
#[path = "../../../tests/support/frozen.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod frozen;
#[path = "../../../tests/support/held.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod held;
mod server;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

use books::{HANG, LEASE, Ledger, handle, judge, repeatable, run};
use futures_util::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicNackOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use palisade::idempotency::Context;
use palisade::{Failed, MemoryNode, Redlock};
use palisade_consumer::headers::{DETAIL, ORIGIN, REASON};
use palisade_consumer::{ConsumerBuilder, ConsumerReport, Rules};
use palisade_lapin::{Consumer, Message, Publisher, dead_letters, retry_queue};
use server::Queue;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

type Builder = ConsumerBuilder<palisade_lapin::Queue>;

fn builder(uri: &str, queue: &Queue, redlock: &Redlock) -> Builder {
    let from = palisade_lapin::Queue::new(uri, &queue.name);
    Consumer::builder(from, repeatable(redlock))
}

async fn publish(queue: &Queue, orders: impl Iterator<Item = (String, &str)>) {
    let publisher = Publisher::new(&queue.uri, &queue.name);
    for (key, body) in orders {
        publisher.publish(&key, SystemTime::now(), body.as_bytes()).await.unwrap();
    }
}

/// Returns the number of messages in all queues except the dead letters. The result is correct only
/// while no consumer runs.
async fn left(queue: &Queue) -> u32 {
    let mut left = queue.ready(&queue.name).await;
    for n in 0..13 {
        left += queue.ready(&retry_queue(&queue.name, 250 << n)).await;
    }
    left
}

/// Consumes until no message is left.
async fn rest(queue: &Queue, redlock: &Redlock, ledger: &Ledger) -> ConsumerReport {
    let stop = async {
        // A message that the consumer holds is not ready at the broker. So the queues must stay
        // empty for a while.
        let mut quiet = 0;
        while quiet < 10 {
            quiet = if left(queue).await == 0 { quiet + 1 } else { 0 };
            sleep(Duration::from_millis(100)).await;
        }
    };
    run(builder(&queue.uri, queue, redlock), ledger, Duration::ZERO, stop).await
}

#[tokio::test]
async fn duplicates_have_one_effect_and_all_are_acknowledged() {
    let (queue, node) = (Queue::new("duplicates").await, MemoryNode::new());
    let ledger = Ledger::default();
    publish(&queue, (0..100).map(|n| (format!("order-{}", n % 25), "10 GBP"))).await;
    let (one, other) = (handle(&node), handle(&node));
    let a = rest(&queue, &one, &ledger);
    let b = rest(&queue, &other, &ledger);
    let (a, b) = tokio::join!(a, b);
    assert_eq!((ledger.effects(), left(&queue).await), (vec![1; 25], 0));
    assert_eq!((a.unsettled + b.unsettled, a.parked + b.parked), (0, 0), "{a:?} {b:?}");
    assert_eq!(a.acked + b.acked, 100, "{a:?} {b:?}");
}

#[tokio::test]
async fn a_message_at_work_elsewhere_waits_in_a_queue_of_its_delay() {
    let (queue, node) = (Queue::new("elsewhere").await, MemoryNode::new());
    let redlock = handle(&node);
    publish(&queue, std::iter::once(("order-1".to_owned(), "10 GBP"))).await;
    let (claimed, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let elsewhere = {
        let (of, claimed, go_on) = (repeatable(&redlock), claimed.clone(), go_on.clone());
        tokio::spawn(async move {
            let call = of.key("order-1").fingerprint_bytes(b"10 GBP");
            let work = async |_: Context| {
                claimed.notify_one();
                go_on.notified().await;
                Ok::<_, Failed>(())
            };
            call.run(work).await.unwrap()
        })
    };
    claimed.notified().await;
    let judge = async {
        // The call `elsewhere` has claimed the key, and at most 2 s of its lease are left. So the
        // consumer puts the message only into the delay queues for 250 ms to 2 s.
        let waits = async || {
            let mut waits = 0;
            for n in 0..4 {
                waits += queue.ready(&retry_queue(&queue.name, 250 << n)).await;
            }
            waits
        };
        while waits().await == 0 {
            sleep(Duration::from_millis(20)).await;
        }
        go_on.notify_one();
        let _ = elsewhere.await.unwrap();
        while waits().await > 0 || queue.ready(&queue.name).await > 0 {
            sleep(Duration::from_millis(20)).await;
        }
        // The consumer has received the message from the delay queue. Before it stops, the consumer
        // acknowledges the message or returns it.
        sleep(Duration::from_millis(200)).await;
    };
    let never = |_: Context, _: Arc<Message>| async { Err::<(), _>(Failed::permanent("it ran")) };
    let consumer = builder(&queue.uri, &queue, &redlock).build().unwrap();
    let ended = timeout(HANG, consumer.run(never, judge)).await.expect("it ends").unwrap();
    assert!(ended.retried >= 1, "{ended:?}");
    let last = rest(&queue, &redlock, &Ledger::default()).await;
    assert_eq!(ended.acked + last.acked, 1, "acknowledged as done elsewhere: {ended:?} {last:?}");
    assert_eq!((ended.parked, left(&queue).await), (0, 0));
}

/// After the result is stored, a lost or failed acknowledgement does no harm (lapin#434).
#[tokio::test]
async fn a_connection_that_breaks_before_the_acknowledgement_costs_no_second_effect() {
    let (queue, node) = (Queue::new("broken").await, MemoryNode::new());
    let (redlock, ledger) = (handle(&node), Ledger::default());
    publish(&queue, (0..20).map(|n| (format!("order-{n}"), "10 GBP"))).await;
    let (uri, line) = queue.through_a_line().await;
    let books = ledger.clone();
    let line = Arc::new(line);
    // The fifth effect breaks the connection while the consumer has sixteen messages.
    let book = move |cx: Context, _: Arc<Message>| {
        let (books, line) = (books.clone(), Arc::clone(&line));
        async move {
            books.book(&cx);
            if books.effects().len() == 5 {
                line.cut();
            }
            Ok::<_, Failed>(())
        }
    };
    let consumer = builder(&uri, &queue, &redlock).build().unwrap();
    let ended = timeout(HANG, consumer.run(book, ledger.has(20))).await.expect("it ends");
    let ended = ended.unwrap();
    let last = rest(&queue, &redlock, &ledger).await;
    assert!(ended.delivered > 20, "what was in hand came again: {ended:?}");
    assert_eq!((ledger.effects(), left(&queue).await), (vec![1; 20], 0), "{ended:?} {last:?}");
    assert!(queue.dead().await.is_none());
}

#[tokio::test]
async fn what_cannot_be_handled_is_put_aside_with_its_reason() {
    let (queue, node) = (Queue::new("aside").await, MemoryNode::new());
    let bodies = [("refused", "a"), ("fails", "b"), ("fine", "c"), ("", "d")];
    publish(&queue, bodies.into_iter().map(|(key, body)| (key.to_owned(), body))).await;
    let (redlock, tries) = (handle(&node), Arc::new(AtomicU32::new(0)));
    let seen = Arc::clone(&tries);
    let handler = move |cx: Context, _: Arc<Message>| {
        let seen = Arc::clone(&seen);
        async move { judge(cx.key(), &seen) }
    };
    let rules = Rules::default().max_failures(3).retry(Duration::from_millis(50), LEASE);
    let consumer = builder(&queue.uri, &queue, &redlock).rules(rules).build().unwrap();
    let dead_letters = palisade_lapin::dead_letters(&queue.name);
    let three = async {
        while queue.ready(&dead_letters).await < 3 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(HANG, consumer.run(handler, three)).await.expect("it ends").unwrap();
    assert_eq!((tries.load(SeqCst), left(&queue).await), (3, 0));
    let mut dead = BTreeMap::new();
    while let Some(letter) = queue.dead().await {
        let headers = letter.delivery.properties.headers().as_ref().map(FieldTable::inner);
        let text = |name: &str| match headers.and_then(|all| all.get(name)) {
            Some(AMQPValue::LongString(text)) => text.to_string(),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(text(ORIGIN), queue.name);
        let body = String::from_utf8(letter.delivery.data.clone()).unwrap();
        dead.insert(text(REASON), (body, text(DETAIL)));
    }
    assert_eq!(dead.keys().collect::<Vec<_>>(), ["exhausted", "refused", "unreadable"]);
    assert_eq!((&*dead["refused"].0, &*dead["exhausted"].0), ("a", "b"));
    assert!(dead["refused"].1.ends_with("no such customer"), "{dead:?}");
    assert!(dead["unreadable"].1.contains("no `message_id`"), "{dead:?}");
}

#[tokio::test]
async fn a_stop_finishes_what_runs_and_returns_the_rest() {
    let (queue, node) = (Queue::new("stop").await, MemoryNode::new());
    let (redlock, ledger) = (handle(&node), Ledger::default());
    publish(&queue, (0..10).map(|n| (format!("order-{n}"), "10 GBP"))).await;
    let few = builder(&queue.uri, &queue, &redlock).rules(Rules::default().concurrency(2));
    let a = run(few, &ledger, Duration::from_millis(300), ledger.has(1)).await;
    assert_eq!((a.unfinished, a.unsettled), (0, 0), "{a:?}");
    assert_eq!(ledger.effects().len() as u64, a.acked, "{a:?}");
    assert!(a.acked < 10, "{a:?}");
    let b = rest(&queue, &redlock, &ledger).await;
    assert_eq!((a.acked + b.acked, ledger.effects()), (10, vec![1; 10]), "{a:?} {b:?}");
}

#[tokio::test]
async fn what_the_broker_takes_out_of_the_queue_is_with_the_dead_letters() {
    let (queue, redlock) = (Queue::new("limit").await, handle(&MemoryNode::new()));
    let consumer = builder(&queue.uri, &queue, &redlock).build().unwrap();
    let ready = async {
        while !queue.is_there(&dead_letters(&queue.name)).await {
            sleep(Duration::from_millis(50)).await;
        }
    };
    let idle = |_: Context, _: Arc<Message>| async { Ok::<_, Failed>(()) };
    timeout(HANG, consumer.run(idle, ready)).await.expect("it declares them").unwrap();
    publish(&queue, [("poor".to_owned(), "body")].into_iter()).await;
    // Reject the message, as the broker does after `delivery-limit` deliveries.
    let channel = queue.channel().await;
    let got = channel.basic_get(queue.name.as_str().into(), BasicGetOptions::default()).await;
    let got = got.unwrap().expect("it is there");
    let out = BasicNackOptions { requeue: false, ..BasicNackOptions::default() };
    got.delivery.acker.nack(out).await.unwrap();
    let letter = timeout(HANG, async {
        loop {
            match queue.dead().await {
                Some(letter) => break letter,
                None => sleep(Duration::from_millis(50)).await,
            }
        }
    });
    let letter = letter.await.expect("it is not lost");
    assert_eq!(letter.delivery.data, b"body");
    let id = letter.delivery.properties.message_id().as_ref();
    assert_eq!(id.map(ShortString::as_str), Some("poor"));
}

#[tokio::test]
async fn forgotten_messages_are_held_and_run_once_after_a_decision() {
    let (queue, held) = (Queue::new("forgotten").await, held::Held::new().await);
    let publisher = Publisher::new(&queue.uri, &queue.name);
    let publish = async |key: &str, made: SystemTime| {
        publisher.publish(key, made, b"10 GBP").await.unwrap();
    };
    let from = palisade_lapin::Queue::new(&queue.uri, &queue.name);
    let consumer = Consumer::builder(from, held.of.clone());
    let ended = held.consume(consumer, publish, std::future::ready(())).await;
    assert_eq!(ended.parked, 0, "{ended:?}");
    assert!(queue.dead().await.is_none());
}

/// Waits until this number of messages is put aside and no other one is left. A message that a
/// consumer has is not ready at the broker, so the queues must stay empty for a while.
async fn quiet(queue: &Queue, put_aside: u32) {
    let mut quiet = 0;
    while quiet < 10 {
        let is_aside = queue.ready(&dead_letters(&queue.name)).await == put_aside;
        quiet = if is_aside && left(queue).await == 0 { quiet + 1 } else { 0 };
        sleep(Duration::from_millis(100)).await;
    }
}

/// The broker takes a message away from a frozen consumer when its connection breaks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_consumer_changes_nothing_of_what_was_taken_over() {
    let queue = Queue::new("frozen").await;
    let publisher = Publisher::new(&queue.uri, &queue.name);
    let (through, line) = queue.through_a_line().await;
    let (line, made) = (Arc::new(line), Arc::new(AtomicU32::new(0)));
    let (direct, name) = (queue.uri.clone(), queue.name.clone());
    frozen::overtaken(
        async move |of| {
            // Each second consumer is the one that takes over.
            let takes_over = made.fetch_add(1, SeqCst) % 2 == 1;
            line.refuse(takes_over);
            let uri = if takes_over { &direct } else { &through };
            Consumer::builder(palisade_lapin::Queue::new(uri, &name), of)
        },
        async |key| publisher.publish(key, SystemTime::now(), b"10 GBP").await.unwrap(),
        async || quiet(&queue, 0).await,
        async || queue.ready(&dead_letters(&queue.name)).await as usize,
    )
    .await;
}

async fn late(queue: &Queue, answer: fn() -> Result<(), Failed>) -> ConsumerReport {
    let redlock = handle(&MemoryNode::new());
    publish(queue, std::iter::once(("order-1".to_owned(), "10 GBP"))).await;
    let (begun, gone) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (started, let_go) = (Arc::clone(&begun), Arc::clone(&gone));
    let handler = move |_: Context, message: Arc<Message>| {
        let (started, let_go) = (Arc::clone(&started), Arc::clone(&let_go));
        async move {
            started.notify_one();
            let_go.notified().await;
            let again = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
            assert!(message.delivery().acker.nack(again).await.unwrap());
            answer()
        }
    };
    let rules = Rules::default().max_failures(1).concurrency(1);
    let consumer = builder(&queue.uri, queue, &redlock).rules(rules).build().unwrap();
    let channel = queue.channel().await;
    let mut taken = None;
    let steal = async {
        begun.notified().await;
        let mut first = FieldTable::default();
        first.insert("x-priority".into(), AMQPValue::LongInt(10));
        let name = queue.name.as_str().into();
        let other = channel.basic_consume(name, "".into(), BasicConsumeOptions::default(), first);
        let mut other = other.await.unwrap();
        gone.notify_one();
        let again = other.next().await.expect("it comes again").unwrap();
        assert!(again.redelivered);
        taken = Some((other, again));
    };
    let ended = timeout(HANG, consumer.run(handler, steal)).await.expect("it ends").unwrap();
    let (_other, again) = taken.expect("the other one has it");
    assert_eq!(queue.ready(&dead_letters(&queue.name)).await, 0, "{ended:?}");
    assert!(again.acker.ack(BasicAckOptions::default()).await.unwrap(), "it stayed with it");
    ended
}

#[tokio::test]
async fn what_another_consumer_has_stays_with_it() {
    type Answer = fn() -> Result<(), Failed>;
    let answers: [(&str, Answer); 3] = [
        ("refused", || Err(Failed::permanent("no such customer"))),
        ("failed", || Err(Failed::retry("closed").after(LEASE))),
        ("done", || Ok(())),
    ];
    for (what, answer) in answers {
        let queue = Queue::new(&format!("late-{what}")).await;
        let ended = late(&queue, answer).await;
        assert_eq!((ended.unsettled, ended.delivered), (1, 1), "{what}: {ended:?}");
        assert_eq!(left(&queue).await, 0, "{what}: no copy of it");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_kills_its_process_is_put_aside() {
    let queue = Queue::new("kills").await;
    let publisher = Publisher::new(&queue.uri, &queue.name);
    let from = palisade_lapin::Queue::new(&queue.uri, &queue.name);
    frozen::kills_its_process(
        async move |of| Consumer::builder(from.clone(), of),
        async |key| publisher.publish(key, SystemTime::now(), b"10 GBP").await.unwrap(),
        async || quiet(&queue, 1).await,
    )
    .await;
    let letter = queue.dead().await.expect("it is put aside");
    let id = letter.delivery.properties.message_id().as_ref();
    assert_eq!(id.map(ShortString::as_str), Some("poisoned"));
}
