//! Consumers on nodes that `palisade init` has not initialised. No message becomes a dead letter.
//! The messages wait at the broker until a person runs `palisade init`.

use std::sync::atomic::AtomicUsize;

use palisade::RedisNode;
use palisade_ops::Deployment;
use tracing_subscriber::filter::LevelFilter;

use super::*;
use crate::support::logs::Log;
use crate::support::server::Server;

const MESSAGES: usize = 79;
/// Default number of messages that a consumer handles at the same time.
const CONCURRENCY: usize = 16;
const CLOSED: [&str; 2] = ["no messages are taken", "palisade init"];

/// A consumer that books each message once. The test can stop it.
struct Running {
    booked: Arc<AtomicUsize>,
    stop: Arc<Notify>,
    task: tokio::task::JoinHandle<palisade_consumer::ConsumerReport>,
}

fn running(orders: &Idempotency, broker: &Broker) -> Running {
    let (booked, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (books, stopped) = (Arc::clone(&booked), Arc::clone(&stop));
    let (connection, _) = broker.connect();
    let consumer = Consumer::builder(connection, orders.clone()).build().unwrap();
    let handler = move |_: Context, _: Arc<Handed>| {
        books.fetch_add(1, SeqCst);
        async { Ok::<_, Failed>(()) }
    };
    let task = tokio::spawn(async move {
        let run = consumer.run(handler, async move { stopped.notified().await });
        run.await.expect("nothing ends it")
    });
    Running { booked, stop, task }
}

fn full() -> Broker {
    let broker = Broker::default();
    for n in 0..MESSAGES {
        broker.publish(&format!("order-{n}"), "body");
    }
    broker
}

/// Returns the number of deliveries that the consumer returned to the broker.
fn given_back(broker: &Broker) -> usize {
    let log = broker.log();
    assert!(log.iter().all(|(_, how)| matches!(how, Disposition::Retry(_))), "{log:?}");
    log.len()
}

#[tokio::test(start_paused = true)]
async fn one_message_is_tried_every_five_seconds_and_the_reason_is_said_each_minute() {
    let log = Log::of_this_thread(LevelFilter::INFO);
    let w = World::new(1);
    w.nodes[0].restart_empty();
    let keep = Duration::from_secs(3_600);
    let orders = w.redlock.idempotency("orders").at_most_once().retention(keep).build().unwrap();
    let broker = full();
    let consumer = running(&orders, &broker);
    // Wait for the log line that no messages are taken. Before this line the node is in quarantine
    // (the time after a loss of data), in which it answers for no key.
    while log.lines(&CLOSED).is_empty() {
        sleep(Duration::from_secs(1)).await;
    }
    let (began, before) = (Instant::now(), given_back(&broker));
    sleep(Duration::from_secs(600)).await;
    let tries = given_back(&broker) - before;
    let most = 600 / 5 + CONCURRENCY;
    assert!((100..=most).contains(&tries), "{tries}");
    let waiting = orders.health().await.waiting;
    let [waiting] = &waiting[..] else { panic!("{waiting:?}") };
    assert_eq!(waiting.messages, 0);
    assert!((590..620).contains(&waiting.waited.as_secs()), "{waiting}");
    assert!(waiting.why.contains("palisade init"), "{waiting}");
    let lines = log.lines(&CLOSED);
    assert!((10..=11).contains(&lines.len()), "{lines:?}");
    assert_eq!((consumer.booked.load(SeqCst), broker.dead().len()), (0, 0));
    // After one retention, all earlier claims of these keys would have expired. So the messages are
    // then handled without an initialisation.
    while broker.left() > 0 {
        assert!(began.elapsed() < 2 * keep);
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!((consumer.booked.load(SeqCst), broker.dead().len()), (MESSAGES, 0));
    assert_eq!(log.lines(&["messages are taken again"]).len(), 1);
    assert_eq!(orders.health().await.waiting, []);
    consumer.stop.notify_one();
    let ended = consumer.task.await.unwrap();
    assert_eq!((ended.acked, ended.parked), (MESSAGES as u64, 0));
}

#[tokio::test]
async fn on_a_new_redis_nothing_is_a_dead_letter_and_after_init_all_are_booked() {
    let server = Server::start(&[]);
    let node = RedisNode::new(server.url()).unwrap();
    let redlock = Redlock::builder().node(node).ttl(Duration::from_secs(1)).build().unwrap();
    let orders = redlock.idempotency("orders").at_most_once().build().unwrap();
    let broker = full();
    let consumer = running(&orders, &broker);
    let patience = Duration::from_secs(60);
    let refused = async {
        while orders.metrics().not_initialised == 0 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(patience, refused).await.expect("the first message is refused");
    assert_eq!((consumer.booked.load(SeqCst), broker.dead().len()), (0, 0));
    let done = palisade_ops::init(&Deployment::new().node(server.url()), "").await.unwrap();
    assert!(done.is_done(), "{done}");
    let all = async {
        while broker.left() > 0 {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(patience, all).await.expect("they go on by themselves");
    assert_eq!((consumer.booked.load(SeqCst), broker.dead().len()), (MESSAGES, 0));
    consumer.stop.notify_one();
    assert_eq!(consumer.task.await.unwrap().parked, 0);
}
