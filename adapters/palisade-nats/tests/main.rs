//! Tests of the NATS consumers' guarantees, on a real server. The tests of `broker-demo` kill
//! processes at each crash point, that is, after each step of the handling of a message.

#[path = "../../../tests/support/books.rs"]
#[allow(dead_code, reason = "shared with tests that use all of it")]
mod books;
#[path = "../../../tests/support/frozen.rs"]
#[allow(unreachable_pub, missing_docs)]
mod frozen;
#[path = "../../../tests/support/held.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod held;
mod server;

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use books::{HANG, LEASE, Ledger, handle, judge, repeatable, run};
use palisade::idempotency::Context;
use palisade::{Failed, MemoryNode, Redlock};
use palisade_consumer::headers::{DETAIL, KEY, ORIGIN, REASON};
use palisade_consumer::{ConsumerBuilder, ConsumerReport, Rules};
use palisade_nats::{Consumer, Durable, Message, dead_letters};
use server::{DURABLE, Nats, STREAM};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// Returns a consumer that reads the key from the header `order`. So the stream does not drop the
/// copies of a message.
fn builder(nats: &Nats, redlock: &Redlock) -> ConsumerBuilder<Durable> {
    let key = |message: &Message| message.header("order").map(str::to_owned);
    Consumer::builder(nats.durable(), repeatable(redlock)).key(key)
}

#[tokio::test]
async fn duplicates_have_one_effect_and_all_are_acknowledged() {
    let (nats, node, ledger) = (Nats::start().await, MemoryNode::new(), Ledger::default());
    for n in 0..100 {
        nats.publish(&format!("order-{}", n % 25), "10 GBP").await;
    }
    let handles = [handle(&node), handle(&node)];
    let [a, b] = handles
        .each_ref()
        .map(|h| run(builder(&nats, h), &ledger, Duration::from_millis(5), nats.drained()));
    let (a, b) = tokio::join!(a, b);
    assert_eq!(ledger.effects(), [1; 25]);
    assert_eq!(a.acked + b.acked, 100, "{a:?} {b:?}");
    assert_eq!((a.unsettled + b.unsettled, a.parked + b.parked), (0, 0), "{a:?} {b:?}");
}

#[tokio::test]
async fn a_message_at_work_elsewhere_is_not_acknowledged() {
    let (nats, node) = (Nats::start().await, MemoryNode::new());
    nats.publish("order-1", "10 GBP").await;
    nats.publish("order-1", "10 GBP").await;
    let (redlock, effects) = (handle(&node), Arc::new(AtomicU32::new(0)));
    let (counted, context) = (Arc::clone(&effects), nats.context.clone());
    let slow = move |_: Context, _: Arc<Message>| {
        let (counted, context) = (Arc::clone(&counted), context.clone());
        async move {
            // During this sleep the server delivers the second copy of the message. The consumer
            // finds that this call has claimed the key.
            sleep(LEASE / 2).await;
            let found = context.get_consumer_from_stream(DURABLE, STREAM).await;
            let mut found: async_nats::jetstream::consumer::PullConsumer =
                found.map_err(Failed::permanent)?;
            let info = found.info().await.map_err(Failed::permanent)?;
            assert_eq!((info.num_ack_pending, info.num_pending), (2, 0), "none is acknowledged");
            counted.fetch_add(1, SeqCst);
            Ok::<_, Failed>(())
        }
    };
    let consumer = builder(&nats, &redlock).build().unwrap();
    let ended = timeout(HANG, consumer.run(slow, nats.drained())).await.expect("it ends").unwrap();
    assert_eq!((effects.load(SeqCst), ended.acked, ended.parked), (1, 2, 0), "{ended:?}");
    assert!(ended.retried <= 1, "the copy waited, or came again once: {ended:?}");
}

#[tokio::test]
async fn a_long_handler_keeps_its_message() {
    let (nats, node, ledger) = (Nats::start().await, MemoryNode::new(), Ledger::default());
    nats.publish("order-1", "10 GBP").await;
    let (one, other) = (handle(&node), handle(&node));
    // The ack wait is one and a half leases. The handler takes twice as long as the ack wait.
    let long = run(builder(&nats, &one), &ledger, 3 * LEASE, nats.drained());
    let idle = run(builder(&nats, &other), &ledger, 3 * LEASE, nats.drained());
    let (a, b) = tokio::join!(long, idle);
    assert_eq!((a.delivered + b.delivered, a.acked + b.acked), (1, 1), "{a:?} {b:?}");
    assert_eq!(ledger.effects(), [1]);
}

/// Runs a process that receives a message, freezes for longer than the ack wait, and then
/// continues. Its runtime has only one thread, and this thread sleeps. So the process sends neither
/// heartbeats nor renewals.
fn freezes(url: &str, node: &MemoryNode, taken: &Arc<Notify>) -> ConsumerReport {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let work = async {
        let client = async_nats::connect(url).await.unwrap();
        let of = repeatable(&handle(node));
        let key = |_: &Message| Some("order-1".to_owned());
        let consumer =
            Consumer::builder(Durable::new(client, STREAM, DURABLE), of).key(key).build().unwrap();
        let awake = Arc::new(Notify::new());
        let (started, woke) = (Arc::clone(taken), Arc::clone(&awake));
        let freeze = move |_: Context, _: Arc<Message>| {
            let (started, woke) = (Arc::clone(&started), Arc::clone(&woke));
            async move {
                started.notify_one();
                std::thread::sleep(3 * LEASE);
                woke.notify_one();
                Ok::<_, Failed>(())
            }
        };
        consumer.run(freeze, awake.notified()).await.unwrap()
    };
    runtime.block_on(Box::pin(work))
}

/// The server applies an acknowledgement to the newest delivery of the message (nats-server#4786).
/// So a consumer that is late must not acknowledge its old delivery.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_acknowledgement_does_not_settle_what_was_delivered_to_another() {
    let (nats, node) = (Nats::start().await, MemoryNode::new());
    nats.publish("order-1", "10 GBP").await;
    let taken = Arc::new(Notify::new());
    let frozen = {
        let url = format!("127.0.0.1:{}", nats.client.server_info().port);
        let (node, taken) = (node.clone(), Arc::clone(&taken));
        tokio::task::spawn_blocking(move || freezes(&url, &node, &taken))
    };
    taken.notified().await;
    let (redlock, ran) = (handle(&node), Arc::new(AtomicU32::new(0)));
    let over = Arc::new(Notify::new());
    let (counted, go_on) = (Arc::clone(&ran), Arc::clone(&over));
    let other = move |_: Context, _: Arc<Message>| {
        let (counted, go_on) = (Arc::clone(&counted), Arc::clone(&go_on));
        async move {
            counted.fetch_add(1, SeqCst);
            go_on.notified().await;
            Ok::<_, Failed>(())
        }
    };
    let consumer = builder(&nats, &redlock).build().unwrap();
    let judge = Box::pin(async {
        let late = frozen.await.unwrap();
        assert_eq!((late.acked, late.unsettled), (0, 1), "{late:?}");
        let info = nats.info().await;
        assert_eq!(info.num_ack_pending, 1, "the other one's delivery counts");
        assert_eq!(info.delivered.consumer_sequence, 2, "it was delivered to two");
        over.notify_one();
        nats.drained().await;
    });
    let ended = timeout(HANG, consumer.run(other, judge)).await.expect("it ends").unwrap();
    assert_eq!((ran.load(SeqCst), ended.acked), (1, 1), "{ended:?}");
    assert_eq!(nats.info().await.delivered.consumer_sequence, 2, "nothing came once more");
}

#[tokio::test]
async fn no_more_is_pulled_than_can_be_handled_at_once() {
    let (nats, node, ledger) = (Nats::start().await, MemoryNode::new(), Ledger::default());
    for n in 0..20 {
        nats.publish(&format!("order-{n}"), "10 GBP").await;
    }
    let redlock = handle(&node);
    let consumer = builder(&nats, &redlock).rules(Rules::default().concurrency(3));
    let most = AtomicUsize::new(0);
    let look = async {
        // Wait until the palisade consumer has created the durable consumer on the server.
        while nats
            .context
            .get_consumer_from_stream::<pull::Config, _, _>(DURABLE, STREAM)
            .await
            .is_err()
        {
            sleep(Duration::from_millis(10)).await;
        }
        loop {
            let now = nats.info().await.num_ack_pending;
            most.fetch_max(now, SeqCst);
            sleep(Duration::from_millis(10)).await;
        }
    };
    let stop = Box::pin(async {
        tokio::select! {
            () = nats.drained() => {}
            () = look => {}
        }
    });
    // Twenty messages, three at the same time, take longer than the ack wait of three seconds.
    let ended = run(consumer, &ledger, Duration::from_millis(600), stop).await;
    assert_eq!(most.into_inner(), 3);
    assert_eq!((ended.delivered, ended.acked), (20, 20), "nothing came twice: {ended:?}");
    assert_eq!(ledger.effects(), [1; 20]);
}

#[tokio::test]
async fn what_cannot_be_handled_is_put_aside_once_with_its_reason() {
    let (nats, node) = (Nats::start().await, MemoryNode::new());
    let made = std::time::SystemTime::now();
    let publisher = nats.publisher();
    for (key, body) in [("refused", "a"), ("fails", "b"), ("fine", "c")] {
        publisher.publish(key, made, body.as_bytes()).await.unwrap();
    }
    nats.publish("ignored", "without a key").await;
    let (redlock, tries) = (handle(&node), Arc::new(AtomicU32::new(0)));
    let seen = Arc::clone(&tries);
    let handler = move |cx: Context, message: Arc<Message>| {
        let seen = Arc::clone(&seen);
        async move {
            assert_eq!(message.subject(), STREAM);
            judge(cx.key(), &seen)
        }
    };
    let of = repeatable(&redlock);
    let rules = Rules::default().max_failures(3).retry(Duration::from_millis(50), LEASE);
    let consumer = Consumer::builder(nats.durable(), of).rules(rules);
    let consumer = consumer.build().unwrap();
    let ended = timeout(HANG, consumer.run(handler, nats.drained())).await.expect("it ends");
    assert_eq!(ended.unwrap().parked, 3);
    assert_eq!(tries.load(SeqCst), 3);
    let mut dead = BTreeMap::new();
    for letter in nats.dead().await {
        let text = |name| letter.headers.get(name).map(|v| v.as_str().to_owned());
        assert_eq!(letter.subject.as_str(), format!("{}.{DURABLE}", dead_letters(STREAM)));
        assert!(text(ORIGIN).unwrap().starts_with("orders:"), "{letter:?}");
        let body = String::from_utf8(letter.payload.to_vec()).unwrap();
        dead.insert(text(REASON).unwrap(), (text(KEY), body, text(DETAIL).unwrap()));
    }
    assert_eq!(dead.keys().collect::<Vec<_>>(), ["exhausted", "refused", "unreadable"]);
    let (key, body, detail) = &dead["refused"];
    assert_eq!((key.as_deref(), &**body), (Some("refused"), "a"));
    assert!(detail.ends_with("no such customer"), "{detail}");
    assert_eq!(dead["exhausted"].0.as_deref(), Some("fails"));
    let (key, body, detail) = &dead["unreadable"];
    assert_eq!((key, &**body), (&None, "without a key"));
    assert!(detail.contains("no header `Nats-Msg-Id`"), "{detail}");
}

#[tokio::test]
async fn a_stop_finishes_what_runs_and_leaves_the_rest_to_others() {
    let (nats, node, ledger) = (Nats::start().await, MemoryNode::new(), Ledger::default());
    for n in 0..10 {
        nats.publish(&format!("order-{n}"), "10 GBP").await;
    }
    let redlock = handle(&node);
    let begun = Arc::new(Notify::new());
    let (books, started) = (ledger.clone(), Arc::clone(&begun));
    let book = move |cx: Context, _: Arc<Message>| {
        let (books, started) = (books.clone(), Arc::clone(&started));
        async move {
            started.notify_one();
            sleep(LEASE).await;
            books.book(&cx);
            Ok::<_, Failed>(())
        }
    };
    let consumer = builder(&nats, &redlock).rules(Rules::default().concurrency(4)).build().unwrap();
    let stop = async { begun.notified().await };
    let ended = timeout(HANG, consumer.run(book, stop)).await.expect("it ends").unwrap();
    assert_eq!((ended.unfinished, ended.unsettled), (0, 0), "{ended:?}");
    assert_eq!(ledger.effects().len() as u64, ended.acked, "{ended:?}");
    let info = nats.info().await;
    assert_eq!(info.num_ack_pending, usize::try_from(ended.retried).unwrap(), "{ended:?}");
    assert_eq!(info.num_pending + info.num_ack_pending as u64, 10 - ended.acked, "{ended:?}");
    // Another consumer receives the messages at once, and not only after the ack wait, because the
    // first consumer returned them.
    let other = handle(&node);
    let rest = run(builder(&nats, &other), &ledger, Duration::ZERO, nats.drained()).await;
    assert_eq!((rest.acked, ledger.effects()), (10 - ended.acked, vec![1; 10]));
}

#[tokio::test]
async fn what_is_not_as_it_has_to_be_at_the_server_is_refused_with_a_sentence() {
    let (nats, node) = (Nats::start().await, MemoryNode::new());
    let redlock = handle(&node);
    let refused = async |stream: &str, durable: &str| {
        let of = repeatable(&redlock);
        let from = Durable::new(nats.client.clone(), stream, durable);
        let consumer = Consumer::builder(from, of).build().unwrap();
        let run =
            consumer.run(|_: Context, _: Arc<Message>| async { Ok::<_, Failed>(()) }, pending());
        timeout(HANG, run).await.expect("it ends").unwrap_err().to_string()
    };
    let text = refused("nothing", DURABLE).await;
    assert!(text.contains("no stream \"nothing\"; create it"), "{text}");
    let explicit = || pull::Config { ack_policy: AckPolicy::Explicit, ..pull::Config::default() };
    let unfit = [
        (pull::Config { ack_wait: LEASE / 2, ..explicit() }, "its ack wait is 1s; at least"),
        (pull::Config { max_deliver: 5, ..explicit() }, "drops a message without a dead letter"),
        (pull::Config { ack_policy: AckPolicy::All, ..explicit() }, "its ack policy is All"),
    ];
    let stream = nats.context.get_stream(STREAM).await.unwrap();
    for (n, (config, want)) in unfit.into_iter().enumerate() {
        let name = format!("unfit-{n}");
        let config = pull::Config { durable_name: Some(name.clone()), ..config };
        stream.create_consumer(config).await.unwrap();
        let text = refused(STREAM, &name).await;
        assert!(text.contains(want), "{text}");
    }
}

#[tokio::test]
async fn a_setting_that_cannot_be_kept_is_named_with_its_rule() {
    let client = async_nats::ConnectOptions::new().retry_on_initial_connect();
    let client = client.connect("127.0.0.1:1").await.unwrap();
    let redlock = handle(&MemoryNode::new());
    let from = |stream: &str, durable: &str| Durable::new(client.clone(), stream, durable);
    let with = |from: Durable| Consumer::builder(from, repeatable(&redlock));
    let refused = |b: ConsumerBuilder<Durable>| b.build().unwrap_err().to_string();
    let text = refused(with(from(STREAM, DURABLE).ack_wait(LEASE / 2)));
    assert!(text.starts_with("`ack_wait` is 1s: at least the lease (2s)"), "{text}");
    assert!(refused(with(from("", DURABLE))).starts_with("`stream` is \"\": 1 to 200 bytes"));
    assert!(refused(with(from(STREAM, "a.b"))).starts_with("`durable` is \"a.b\""));
    let rules = Rules::default().concurrency(0);
    assert!(refused(with(from(STREAM, DURABLE)).rules(rules)).starts_with("`concurrency` is 0"));
    // The consumer waits for a server that does not exist. `stop` still ends the consumer.
    let consumer = with(from(STREAM, DURABLE)).build().unwrap();
    let run = consumer.run(
        |_: Context, _: Arc<Message>| async { Ok::<_, Failed>(()) },
        sleep(Duration::from_millis(200)),
    );
    assert_eq!(timeout(HANG, run).await.expect("it ends").unwrap().delivered, 0);
}

#[tokio::test]
async fn forgotten_messages_are_held_and_run_once_after_a_decision() {
    let (nats, held) = (Nats::start().await, held::Held::new().await);
    let publisher = nats.publisher();
    let publish = async |key: &str, made: std::time::SystemTime| {
        publisher.publish(key, made, b"10 GBP").await.unwrap();
    };
    let consumer = Consumer::builder(nats.durable(), held.of.clone());
    let ended = held.consume(consumer, publish, nats.drained()).await;
    assert_eq!((ended.acked, ended.parked), (25, 0), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_consumer_changes_nothing_of_what_was_taken_over() {
    let nats = Nats::start().await;
    let url = format!("127.0.0.1:{}", nats.client.server_info().port);
    frozen::overtaken(
        async move |of| {
            let client = async_nats::connect(&url).await.unwrap();
            let key = |message: &Message| message.header("order").map(str::to_owned);
            Consumer::builder(Durable::new(client, STREAM, DURABLE), of).key(key)
        },
        async |key| nats.publish(key, "10 GBP").await,
        async || nats.drained().await,
        async || nats.dead().await.len(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_kills_its_process_is_put_aside() {
    let nats = Nats::start().await;
    let url = format!("127.0.0.1:{}", nats.client.server_info().port);
    frozen::kills_its_process(
        async move |of| {
            let client = async_nats::connect(&url).await.unwrap();
            let key = |message: &Message| message.header("order").map(str::to_owned);
            Consumer::builder(Durable::new(client, STREAM, DURABLE), of).key(key)
        },
        async |key| nats.publish(key, "10 GBP").await,
        async || nats.drained().await,
    )
    .await;
    let dead = nats.dead().await;
    let reason = dead[0].headers.get(REASON).map(|v| v.as_str().to_owned());
    assert_eq!((dead.len(), reason.as_deref()), (1, Some("exhausted")));
}
