//! Tests of the Kafka consumers' guarantees, on librdkafka's mock cluster. The sockets and the
//! consumer groups are real, but the broker is not. The tests of `broker-demo` kill processes at
//! each crash point, that is, after each step of the handling of a message.

#[path = "../../../tests/support/books.rs"]
#[allow(dead_code, reason = "shared with tests that use all of it")]
mod books;
#[path = "../../../tests/support/frozen.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod frozen;
#[path = "../../../tests/support/held.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod held;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

use books::{HANG, LEASE, Ledger, handle, judge, repeatable, run};
use palisade::idempotency::Context;
use palisade::{Failed, MemoryNode, Redlock};
use palisade_consumer::headers::{DETAIL, KEY, ORIGIN, REASON};
use palisade_consumer::{ConsumerBuilder, ConsumerReport, Rules};
use palisade_kafka::{Consumer, Message, Publisher, Topic, dead_letters};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::Notify;
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

const TOPIC: &str = "orders";
const GROUP: &str = "billing";
const PATIENCE: Duration = Duration::from_secs(20);

/// A mock cluster with one topic, and a client that observes the topic.
struct Kafka {
    observer: BaseConsumer,
    partitions: i32,
    publisher: Publisher,
    // The cluster is dropped last. The clients in the other fields can still reach the cluster
    // while they are dropped.
    cluster: MockCluster<'static, DefaultProducerContext>,
}

impl Kafka {
    fn start(partitions: i32) -> Self {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic(TOPIC, partitions, 1).unwrap();
        cluster.create_topic(&dead_letters(TOPIC), 1, 1).unwrap();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.bootstrap_servers());
        let publisher = Publisher::new(&config, TOPIC).unwrap();
        let observer = config.set("group.id", GROUP).create().unwrap();
        Self { observer, partitions, publisher, cluster }
    }

    fn topic(&self) -> Topic {
        let topic = Topic::new(&self.cluster.bootstrap_servers(), TOPIC, GROUP);
        // The mock cluster delays the first members for three seconds. So the session timeout must
        // be longer than that.
        topic.set("session.timeout.ms", "5000")
    }

    fn builder(&self, redlock: &Redlock) -> ConsumerBuilder<Topic> {
        Consumer::builder(self.topic(), repeatable(redlock))
    }

    /// Returns a client that has not joined the group. Of two members, the first by this id gets
    /// the only partition.
    fn member(&self, id: &str) -> BaseConsumer {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.cluster.bootstrap_servers());
        config.set("group.id", GROUP).set("group.instance.id", id);
        config.set("session.timeout.ms", "5000").set("enable.auto.commit", "false");
        config.create().unwrap()
    }

    async fn publish(&self, key: &str, body: &str) {
        let sent = self.publisher.publish(key, SystemTime::now(), body.as_bytes()).await;
        sent.unwrap();
    }

    fn committed(&self) -> Vec<Option<i64>> {
        let mut asked = TopicPartitionList::new();
        asked.add_partition_range(TOPIC, 0, self.partitions - 1);
        let found = block_in_place(|| self.observer.committed_offsets(asked, PATIENCE)).unwrap();
        let offset = |offset| if let Offset::Offset(n) = offset { Some(n) } else { None };
        found.elements().iter().map(|of| offset(of.offset())).collect()
    }

    fn left(&self) -> i64 {
        let high = |p| block_in_place(|| self.observer.fetch_watermarks(TOPIC, p, PATIENCE));
        let committed = self.committed().into_iter().zip(0..);
        committed.map(|(done, p)| high(p).unwrap().1 - done.unwrap_or(0)).sum()
    }

    /// Makes the broker fail all requests for the time `outage`. Each failed request ends its
    /// connection. The test does not stop the broker, because the mock cluster would then bind the
    /// broker's port again, and abort if the port is in use.
    async fn answers_nothing(&self, outage: Duration) {
        use RDKafkaApiKey as R;
        let requests = [R::Fetch, R::OffsetCommit, R::FindCoordinator, R::JoinGroup, R::Heartbeat];
        let errors = vec![RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT; 1_000];
        for request in requests {
            self.cluster.request_errors(request, &errors);
        }
        sleep(outage).await;
        for request in requests {
            self.cluster.clear_request_errors(request);
        }
    }

    async fn drained(&self) {
        while self.left() > 0 {
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn dead(&self) -> BTreeMap<String, (Option<String>, String, String)> {
        let topic = dead_letters(TOPIC);
        let mut all = TopicPartitionList::new();
        all.add_partition_offset(&topic, 0, Offset::Beginning).unwrap();
        self.observer.assign(&all).unwrap();
        let (_, want) = self.observer.fetch_watermarks(&topic, 0, PATIENCE).unwrap();
        let mut dead = BTreeMap::new();
        for _ in 0..want {
            let letter = self.observer.poll(PATIENCE).expect("a dead letter").unwrap().detach();
            let text = |name| {
                let found = letter.headers()?.iter().find(|h| h.key == name)?.value?;
                Some(String::from_utf8(found.to_vec()).unwrap())
            };
            assert!(text(ORIGIN).unwrap().starts_with("orders/0:"));
            let body = String::from_utf8(letter.payload().unwrap().to_vec()).unwrap();
            let old = dead.insert(text(REASON).unwrap(), (text(KEY), body, text(DETAIL).unwrap()));
            assert!(old.is_none(), "each is there once");
        }
        dead
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_have_one_effect_and_everything_is_committed() {
    let (kafka, node, ledger) = (Kafka::start(4), MemoryNode::new(), Ledger::default());
    for n in 0..100 {
        kafka.publish(&format!("order-{}", n % 25), "10 GBP").await;
    }
    let (one, other) = (handle(&node), handle(&node));
    let a = run(kafka.builder(&one), &ledger, Duration::from_millis(5), kafka.drained());
    let b = run(kafka.builder(&other), &ledger, Duration::from_millis(5), kafka.drained());
    let (a, b) = tokio::join!(a, b);
    assert_eq!((ledger.effects(), kafka.left()), (vec![1; 25], 0));
    assert!(a.acked + b.acked >= 100 && a.parked + b.parked == 0, "{a:?} {b:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_committed_that_is_behind_something_open() {
    let (kafka, node) = (Kafka::start(1), MemoryNode::new());
    for n in 0..12 {
        kafka.publish(&format!("order-{n}"), "10 GBP").await;
    }
    let (done, gate) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let (counted, open) = (Arc::clone(&done), Arc::clone(&gate));
    // The handler of the fifth message waits until the test notifies `gate`.
    let book = move |cx: Context, _: Arc<Message>| {
        let (counted, open) = (Arc::clone(&counted), Arc::clone(&open));
        async move {
            if cx.key() == "order-4" {
                open.notified().await;
            }
            counted.fetch_add(1, SeqCst);
            Ok::<_, Failed>(())
        }
    };
    let judge = async {
        while done.load(SeqCst) < 11 || kafka.committed() == [None] {
            sleep(Duration::from_millis(20)).await;
        }
        // Checks during about five further commits that the committed offset never passes the fifth
        // message, which is not finished.
        for _ in 0..10 {
            assert!(kafka.committed()[0] <= Some(4), "{:?}", kafka.committed());
            sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(kafka.committed(), [Some(4)]);
        gate.notify_one();
        kafka.drained().await;
        assert_eq!(kafka.committed(), [Some(12)]);
    };
    let redlock = handle(&node);
    let consumer = kafka.builder(&redlock).build().unwrap();
    let ended = timeout(HANG, consumer.run(book, judge)).await.expect("it ends").unwrap();
    assert_eq!((ended.delivered, ended.acked), (12, 12), "{ended:?}");
}

/// The mock cluster refuses commits while members join. A real broker does not. The messages that
/// were finished in that time are delivered again. The consumer then replays their stored results.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_that_move_to_a_new_member_lose_nothing_and_repeat_nothing() {
    let (kafka, node, ledger) = (Kafka::start(4), MemoryNode::new(), Ledger::default());
    for n in 0..600 {
        kafka.publish(&format!("order-{n}"), "10 GBP").await;
    }
    let (one, other) = (handle(&node), handle(&node));
    let takes = Duration::from_millis(20);
    let slow = |of| kafka.builder(of).rules(Rules::default().concurrency(1));
    let first = run(slow(&one), &ledger, takes, kafka.drained());
    let second = async {
        ledger.has(50).await;
        run(slow(&other), &ledger, takes, kafka.drained()).await
    };
    let (a, b) = tokio::join!(first, second);
    assert_eq!((ledger.effects(), kafka.left()), (vec![1; 600], 0));
    assert!(a.acked > 0 && b.acked > 0, "partitions moved: {a:?} {b:?}");
    assert_eq!(a.parked + b.parked, 0, "{a:?} {b:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_cannot_be_handled_is_put_aside_and_delays_no_other() {
    let (kafka, node) = (Kafka::start(1), MemoryNode::new());
    for (key, body) in [("fails", "a"), ("refused", "b"), ("", "c"), ("fine", "d")] {
        kafka.publish(key, body).await;
    }
    let (tries, fine) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (seen, then) = (Arc::clone(&tries), Arc::clone(&fine));
    let handler = move |cx: Context, _: Arc<Message>| {
        let (seen, then) = (Arc::clone(&seen), Arc::clone(&then));
        async move {
            judge(cx.key(), &seen)?;
            then.store(seen.load(SeqCst), SeqCst);
            Ok::<_, Failed>(())
        }
    };
    let rules = Rules::default().max_failures(3).retry(Duration::from_millis(300), LEASE);
    let redlock = handle(&node);
    let consumer = kafka.builder(&redlock).rules(rules).build().unwrap();
    let ended = timeout(HANG, consumer.run(handler, kafka.drained())).await.expect("it ends");
    assert_eq!(ended.unwrap().parked, 3);
    assert_eq!(tries.load(SeqCst), 3);
    assert!(fine.load(SeqCst) < 3, "the last message did not wait for the first");
    let dead = block_in_place(|| kafka.dead());
    assert_eq!(dead.keys().collect::<Vec<_>>(), ["exhausted", "refused", "unreadable"]);
    let (key, body, detail) = &dead["refused"];
    assert_eq!((key.as_deref(), &**body), (Some("refused"), "b"));
    assert!(detail.ends_with("no such customer"), "{detail}");
    assert_eq!((&dead["unreadable"].0, &*dead["unreadable"].1), (&None, "c"));
    assert_eq!(dead["exhausted"].0.as_deref(), Some("fails"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_at_work_elsewhere_is_not_committed() {
    let (kafka, node) = (Kafka::start(1), MemoryNode::new());
    let redlock = handle(&node);
    kafka.publish("order-1", "10 GBP").await;
    // Another caller claims the key of the message, and runs for more than a lease.
    let claimed = Arc::new(Notify::new());
    let elsewhere = {
        let (of, claimed) = (repeatable(&redlock), Arc::clone(&claimed));
        tokio::spawn(async move {
            let call = of.key("order-1").fingerprint_bytes(b"10 GBP");
            let work = async |_: Context| {
                claimed.notify_one();
                sleep(8 * LEASE).await;
                Ok::<_, Failed>(())
            };
            call.run(work).await.unwrap()
        })
    };
    claimed.notified().await;
    let consumer = kafka.builder(&redlock).build().unwrap();
    let judge = async {
        tokio::pin!(elsewhere);
        loop {
            tokio::select! {
                biased;
                done = &mut elsewhere => break drop(done.unwrap()),
                () = sleep(Duration::from_millis(100)) => {
                    assert!(kafka.committed()[0].unwrap_or(0) == 0, "{:?}", kafka.committed());
                }
            }
        }
        kafka.drained().await;
    };
    let never = |_: Context, _: Arc<Message>| async { Err::<(), _>(Failed::permanent("it ran")) };
    let ended = timeout(HANG, consumer.run(never, judge)).await.expect("it ends").unwrap();
    assert_eq!((ended.acked, ended.parked), (1, 0), "{ended:?}");
    assert!(ended.retried >= 1, "it waited in its place: {ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_handler_keeps_its_partition() {
    let (kafka, node, ledger) = (Kafka::start(1), MemoryNode::new(), Ledger::default());
    kafka.publish("order-1", "10 GBP").await;
    let redlock = handle(&node);
    let from = kafka.topic().set("max.poll.interval.ms", "5000");
    let consumer = Consumer::builder(from, repeatable(&redlock));
    let consumer = consumer.rules(Rules::default().concurrency(1));
    let ended = run(consumer, &ledger, Duration::from_secs(9), kafka.drained()).await;
    assert_eq!((ended.delivered, ended.acked, ledger.effects()), (1, 1, vec![1]), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_commits_what_is_done_and_leaves_the_rest_to_others() {
    // At its end the consumer leaves the group. Then librdkafka revokes its partitions, and
    // `pre_rebalance` commits the offsets.
    let (kafka, node, ledger) = (Kafka::start(1), MemoryNode::new(), Ledger::default());
    for n in 0..10 {
        kafka.publish(&format!("order-{n}"), "10 GBP").await;
    }
    let (redlock, other) = (handle(&node), handle(&node));
    let few = kafka.builder(&redlock).rules(Rules::default().concurrency(2));
    let a = run(few, &ledger, Duration::from_millis(300), ledger.has(1)).await;
    assert_eq!((a.unfinished, a.unsettled), (0, 0), "{a:?}");
    assert_eq!(kafka.left(), 10 - i64::try_from(a.acked).unwrap(), "{a:?}");
    let b = run(kafka.builder(&other), &ledger, Duration::ZERO, kafka.drained()).await;
    assert_eq!((a.acked + b.acked, ledger.effects()), (10, vec![1; 10]), "{a:?} {b:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_that_go_away_and_come_back_lose_nothing() {
    let (kafka, node, ledger) = (Kafka::start(2), MemoryNode::new(), Ledger::default());
    for n in 0..300 {
        kafka.publish(&format!("order-{n}"), "10 GBP").await;
    }
    let redlock = handle(&node);
    let faults = async {
        ledger.has(50).await;
        kafka.answers_nothing(Duration::from_secs(2)).await;
        ledger.has(300).await;
        kafka.drained().await;
    };
    let takes = Duration::from_millis(20);
    let from = kafka.topic().set("reconnect.backoff.max.ms", "500");
    let consumer = Consumer::builder(from, repeatable(&redlock));
    let ended = run(consumer, &ledger, takes, faults).await;
    assert_eq!((ledger.effects(), ended.parked), (vec![1; 300], 0), "{ended:?}");
}

#[tokio::test]
async fn a_setting_that_cannot_be_kept_is_named_with_its_rule() {
    let redlock = handle(&MemoryNode::new());
    let from = |topic: &str, group: &str| Topic::new("127.0.0.1:1", topic, group);
    let with = |from: Topic| Consumer::builder(from, repeatable(&redlock));
    let refused = |b: ConsumerBuilder<Topic>| b.build().unwrap_err().to_string();
    assert!(refused(with(from("", GROUP))).starts_with("`topic` is \"\": 1 to 240 bytes"));
    assert!(refused(with(from(TOPIC, ""))).starts_with("`group` is \"\""));
    let text = refused(with(from(TOPIC, GROUP).set("enable.auto.commit", "true")));
    assert!(text.starts_with("`enable.auto.commit` is true: not set"), "{text}");
    let text = refused(with(from(TOPIC, GROUP).set("sesion.timeout.ms", "5000")));
    assert!(text.contains("sesion.timeout.ms"), "{text}");
    let rules = Rules::default().concurrency(0);
    assert!(refused(with(from(TOPIC, GROUP)).rules(rules)).starts_with("`concurrency` is 0"));
    let secret = with(from(TOPIC, GROUP).set("sasl.password", "secret"));
    let shown = format!("{:?} {:?}", secret, with(from(TOPIC, GROUP)).build().unwrap());
    assert!(!shown.contains("secret"), "{shown}");
    // The consumer waits for brokers that do not exist. `stop` still ends the consumer.
    let consumer = with(from(TOPIC, GROUP)).build().unwrap();
    let run = consumer
        .run(|_: Context, _: Arc<Message>| async { Ok::<_, Failed>(()) }, sleep(LEASE / 10));
    assert_eq!(timeout(HANG, run).await.expect("it ends").unwrap().delivered, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_messages_are_held_and_run_once_after_a_decision() {
    let (kafka, held) = (Kafka::start(1), held::Held::new().await);
    let publish = async |key: &str, made: SystemTime| {
        kafka.publisher.publish(key, made, b"10 GBP").await.unwrap();
    };
    let consumer = Consumer::builder(kafka.topic(), held.of.clone());
    let ended = held.consume(consumer, publish, kafka.drained()).await;
    assert_eq!((ended.acked, ended.parked), (25, 0), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_kills_its_process_is_put_aside() {
    let kafka = Kafka::start(1);
    let topic = kafka.topic();
    frozen::kills_its_process(
        async move |of| Consumer::builder(topic.clone(), of),
        async |key| kafka.publish(key, "10 GBP").await,
        async || kafka.drained().await,
    )
    .await;
    let dead = kafka.dead();
    assert_eq!(dead.keys().collect::<Vec<_>>(), ["exhausted"]);
    assert_eq!(dead["exhausted"].0.as_deref(), Some("poisoned"));
}

async fn late(answer: fn() -> Result<(), Failed>) -> (Kafka, ConsumerReport) {
    let (kafka, redlock) = (Kafka::start(1), handle(&MemoryNode::new()));
    kafka.publish("order-1", "10 GBP").await;
    let (begun, gone) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (started, let_go) = (Arc::clone(&begun), Arc::clone(&gone));
    let handler = move |_: Context, _: Arc<Message>| {
        let (started, let_go) = (Arc::clone(&started), Arc::clone(&let_go));
        async move {
            started.notify_one();
            let_go.notified().await;
            answer()
        }
    };
    let from = kafka.topic().set("group.instance.id", "b").set("heartbeat.interval.ms", "500");
    let rules = Rules::default().max_failures(1).concurrency(1);
    let consumer = Consumer::builder(from, repeatable(&redlock)).rules(rules).build().unwrap();
    let other = kafka.member("a");
    let steal = async {
        begun.notified().await;
        other.subscribe(&[TOPIC]).unwrap();
        // A member gets a partition after the one that had it has let it go.
        while other.assignment().unwrap().count() == 0 {
            drop(other.poll(Duration::ZERO));
            sleep(Duration::from_millis(20)).await;
        }
        gone.notify_one();
    };
    let ended = timeout(HANG, consumer.run(handler, steal)).await.expect("it ends").unwrap();
    drop(other);
    (kafka, ended)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_member_of_the_group_has_stays_with_it() {
    type Answer = fn() -> Result<(), Failed>;
    let answers: [(&str, Answer); 3] = [
        ("refused for good", || Err(Failed::permanent("no such customer"))),
        ("a failure, with a time", || Err(Failed::retry("closed").after(LEASE))),
        ("a result", || Ok(())),
    ];
    for (what, answer) in answers {
        let (kafka, ended) = late(answer).await;
        assert_eq!((ended.unsettled, ended.delivered), (1, 1), "{what}: {ended:?}");
        assert_eq!(kafka.committed(), [None], "{what}");
        assert!(kafka.dead().is_empty(), "{what}");
    }
}
