//! Tests of RabbitMQ consumers that receive malformed messages, on a real RabbitMQ. No message has
//! a `message_id` or a header name with bytes that are not UTF-8, because lapin neither sends nor
//! reads them (see the README).

#[path = "../../../tests/support/hostile.rs"]
mod hostile;
#[expect(dead_code, reason = "each file of tests needs a part of it")]
mod server;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostile::{Became, Letter, consume, consumer, letters, promised};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel};
use palisade::idempotency::Context;
use palisade::{Failed, MemoryNode, Redlock};
use palisade_consumer::headers::{FAILURES, LEFT_OUT, ORIGIN, REASON};
use palisade_lapin::{Consumer, Message, dead_letters};
use server::Queue;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

const LEASE: Duration = Duration::from_secs(2);
/// Timeout that only a hang exceeds.
const HANG: Duration = Duration::from_secs(90);
/// Size of headers that fill a frame of 128 KiB and leave no room for the reason of a dead letter.
const FILL: usize = (128 << 10) - 200;

fn short(bytes: &[u8]) -> Option<ShortString> {
    ShortString::try_new(std::str::from_utf8(bytes).ok()?).ok()
}

/// Returns the properties of the test message, or `None` if lapin cannot send them.
fn properties(letter: &Letter) -> Option<BasicProperties> {
    let mut properties = BasicProperties::default();
    if let Some(key) = &letter.key {
        properties = properties.with_message_id(short(key)?);
    }
    if let Some(created) = letter.created {
        // AMQP's timestamp is in seconds. The test message has its time in milliseconds.
        properties = properties.with_timestamp(created.parse::<u64>().ok()? / 1_000);
    }
    let mut headers = FieldTable::default();
    if let Some((name, value)) = letter.header {
        headers.insert(short(name)?, AMQPValue::LongString(value.to_vec().into()));
    }
    // A header that no consumer expects: a nested table.
    headers.insert("x-odd".into(), AMQPValue::FieldTable(FieldTable::default()));
    if letter.case == "no body" {
        headers.insert(FAILURES.into(), AMQPValue::Boolean(true));
    }
    if letter.case == "the largest body" {
        let fill = vec![b'x'; FILL];
        headers.insert("x-fill".into(), AMQPValue::LongString(fill.into()));
    }
    Some(properties.with_headers(headers))
}

/// Declares a durable queue, and returns it with a channel that confirms what is published.
async fn declared(name: &str) -> (Queue, Channel) {
    let queue = Queue::new(name).await;
    let channel = queue.channel().await;
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let declared =
        channel.queue_declare(queue.name.as_str().into(), durable, FieldTable::default());
    declared.await.unwrap();
    (queue, channel)
}

async fn publish(channel: &Channel, queue: &str, body: &[u8], properties: BasicProperties) {
    let options = BasicPublishOptions::default();
    let published = channel.basic_publish("".into(), queue.into(), options, body, properties);
    assert!(published.await.unwrap().await.unwrap().is_ack());
}

fn full() -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("x-fill".into(), AMQPValue::LongString(vec![b'x'; FILL - 40].into()));
    BasicProperties::default().with_message_id("full".into()).with_headers(headers)
}

#[tokio::test]
async fn no_message_stops_another_one() {
    let (queue, channel) = declared("hostile").await;
    let name = queue.name.as_str();
    let mut sent = letters(1 << 20);
    sent.retain(|letter| properties(letter).is_some());
    assert!(sent.len() >= 11, "most of them can be sent");
    for letter in &sent {
        publish(&channel, name, &letter.body, properties(letter).unwrap()).await;
    }
    let became = Arc::new(Mutex::new(Became::default()));
    let want = promised(&sent);
    let dead: u32 = want.dead.values().sum();
    let settled = async {
        while queue.ready(&dead_letters(name)).await < dead
            || became.lock().unwrap().effects.len() < want.effects.len()
        {
            sleep(Duration::from_millis(50)).await;
        }
    };
    let from = palisade_lapin::Queue::new(&queue.uri, name);
    let mut became = consume(consumer(from), &became, settled).await;
    while let Some(letter) = queue.dead().await {
        let headers = letter.delivery.properties.headers().as_ref().map(FieldTable::inner);
        let text = |name: &str| match headers.and_then(|all| all.get(name)) {
            Some(AMQPValue::LongString(text)) => Some(text.to_string()),
            _ => None,
        };
        let reason = text(REASON).expect("each has one");
        assert_eq!(text(ORIGIN).as_deref(), Some(name));
        if reason == "refused" {
            assert!(letter.delivery.data.is_empty(), "no room for a copy");
            assert!(text(LEFT_OUT).is_some_and(|left_out| left_out.contains("1048576 bytes")));
        }
        *became.dead.entry(reason).or_default() += 1;
    }
    assert_eq!(became, want);
    assert_eq!(queue.ready(name).await, 0, "all is settled");
}

#[tokio::test]
async fn a_message_without_room_for_the_count_of_its_failures_is_put_aside() {
    let (queue, channel) = declared("full").await;
    let name = queue.name.as_str();
    let plain = BasicProperties::default().with_message_id("plain".into());
    for properties in [full(), plain] {
        publish(&channel, name, b"{}", properties).await;
    }
    let redlock = Redlock::builder().node(MemoryNode::new()).ttl(LEASE).build().unwrap();
    let of = redlock.idempotency("orders").at_least_once().build().unwrap();
    let consumer =
        Consumer::builder(palisade_lapin::Queue::new(&queue.uri, name), of).build().unwrap();
    let runs = Arc::new(Mutex::new(Vec::new()));
    let ours = Arc::clone(&runs);
    let handler = move |cx: Context, _: Arc<Message>| {
        let key = cx.key().to_owned();
        ours.lock().unwrap().push(key.clone());
        async move { if key == "full" { Err(Failed::retry("not now")) } else { Ok(()) } }
    };
    let settled = async {
        while queue.ready(&dead_letters(name)).await < 1 || queue.ready(name).await > 0 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(HANG, consumer.run(handler, settled)).await.expect("it ends").unwrap();
    let letter = queue.dead().await.expect("one");
    let headers = letter.delivery.properties.headers().as_ref().map(FieldTable::inner);
    let reason = headers.and_then(|all| all.get(REASON)).and_then(AMQPValue::as_long_string);
    assert_eq!(reason.map(ToString::to_string).as_deref(), Some("exhausted"));
    let mut runs = std::mem::take(&mut *runs.lock().unwrap());
    runs.sort();
    assert_eq!(runs, ["full", "plain"], "each once, over one connection");
}

#[tokio::test]
async fn a_message_without_room_for_a_copy_that_waits_breaks_no_connection() {
    let (queue, channel) = declared("waits").await;
    let name = queue.name.as_str();
    publish(&channel, name, b"{}", full()).await;
    // In its quarantine, the time after its start, the node grants no key. So the message has to
    // wait for longer than the maximum time for the broker's reply.
    let node = MemoryNode::builder().quarantined().build();
    let redlock = Redlock::builder().node(node).ttl(LEASE).max_ttl(10 * LEASE).build().unwrap();
    let of = redlock.idempotency("orders").at_least_once().build().unwrap();
    let consumer =
        Consumer::builder(palisade_lapin::Queue::new(&queue.uri, name), of).build().unwrap();
    let ran = Arc::new(Notify::new());
    let runs = Arc::clone(&ran);
    let handler = move |_: Context, _: Arc<Message>| {
        runs.notify_one();
        async { Ok::<_, Failed>(()) }
    };
    let ended = timeout(HANG, consumer.run(handler, ran.notified())).await.expect("it runs");
    let ended = ended.unwrap();
    assert_eq!((ended.acked, ended.unsettled), (1, 0), "{ended:?}");
    assert!(ended.retried > 0, "it had to wait: {ended:?}");
}
