//! Tests of Kafka consumers that receive malformed messages, on librdkafka's mock cluster. A real
//! broker would refuse some of these messages.

#[path = "../../../tests/support/hostile.rs"]
mod hostile;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use hostile::{Letter, consume, consumer, letters, promised};
use palisade_consumer::headers::{CREATED, KEY, LEFT_OUT, ORIGIN, REASON};
use palisade_kafka::{Topic, dead_letters};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::task::block_in_place;
use tokio::time::sleep;

const TOPIC: &str = "orders";
const GROUP: &str = "billing";
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum size of a body in bytes: librdkafka limits a record with its headers to a million bytes.
const LARGEST_BODY: usize = 999_880;

fn headers(letter: &Letter) -> OwnedHeaders {
    let mut headers = OwnedHeaders::new();
    if let Some(key) = &letter.key {
        headers = headers.insert(Header { key: KEY, value: Some(key) });
    }
    if let Some(created) = letter.created {
        headers = headers.insert(Header { key: CREATED, value: Some(created) });
    }
    if let Some((name, value)) = letter.header {
        let key = std::str::from_utf8(name).expect("other names are sent by hand");
        headers = headers.insert(Header { key, value: Some(value) });
    }
    headers
}

fn varint(n: i64) -> Vec<u8> {
    let mut rest = ((n << 1) ^ (n >> 63)).cast_unsigned();
    let mut bytes = Vec::new();
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [varint(i64::try_from(bytes.len()).unwrap()), bytes.to_vec()].concat()
}

fn sized(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

/// Sends a record without rdkafka. rdkafka cannot send a header whose name is not text.
fn send(broker: &str, letter: &Letter) {
    let key = letter.key.as_deref().expect("it has one");
    let (name, value) = letter.header.expect("it has one");
    let headers = [long(KEY.as_bytes()), long(key), long(name), long(value)].concat();
    // Start of the record: attributes, timestamp delta, offset delta, no key.
    let start = [&[0_u8][..], &varint(0), &varint(0), &varint(-1)].concat();
    let record = [start, long(&letter.body), varint(2), headers].concat();
    // Start of the batch: leader epoch, magic, checksum (not verified by the mock cluster),
    // attributes, last offset delta.
    let mut batch = [&0_i32.to_be_bytes()[..], &[2], &[0; 4], &[0; 2], &[0; 4]].concat();
    // Rest of the batch: two timestamps; no producer id, epoch and base sequence; one record.
    batch.extend([&[0; 16][..], &[0xff; 14], &1_i32.to_be_bytes(), &long(&record)].concat());
    let batch = [&[0; 8][..], &sized(&batch)].concat();
    let topic = [&u16::try_from(TOPIC.len()).unwrap().to_be_bytes()[..], TOPIC.as_bytes()].concat();
    let one = 1_i32.to_be_bytes();
    // Header of a Produce request, version 3, followed by one topic with one partition.
    let head = [0, 0, 0, 3, 0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x75, 0x30];
    let request = [&head[..], &one, &topic, &one, &[0; 4], &sized(&batch)].concat();
    let mut broker = TcpStream::connect(broker).unwrap();
    broker.write_all(&sized(&request)).unwrap();
    let mut length = [0; 4];
    broker.read_exact(&mut length).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    broker.read_exact(&mut answer).unwrap();
    // The error code follows the correlation id, the topic count and name, the partition count and
    // id.
    let error = 4 + 4 + 2 + TOPIC.len() + 4 + 4;
    assert_eq!(answer[..4], [0, 0, 0, 7]);
    assert_eq!(answer[error..error + 2], [0, 0], "it is there: {answer:?}");
}

fn left(observer: &BaseConsumer) -> i64 {
    let mut asked = TopicPartitionList::new();
    asked.add_partition(TOPIC, 0);
    block_in_place(|| {
        let found = observer.committed_offsets(asked, PATIENCE).unwrap();
        let (_, high) = observer.fetch_watermarks(TOPIC, 0, PATIENCE).unwrap();
        match found.elements()[0].offset() {
            Offset::Offset(done) => high - done,
            _ => high,
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_record_stops_another_one() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, 1, 1).unwrap();
    cluster.create_topic(&dead_letters(TOPIC), 1, 1).unwrap();
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap_servers());
    let producer: FutureProducer = config.create().unwrap();
    let observer: BaseConsumer = config.set("group.id", GROUP).create().unwrap();
    let sent = letters(LARGEST_BODY);
    for letter in &sent {
        if letter.header.is_some_and(|(name, _)| std::str::from_utf8(name).is_err()) {
            send(&cluster.bootstrap_servers(), letter);
            continue;
        }
        let record = FutureRecord::<[u8], _>::to(TOPIC).payload(&letter.body);
        producer.send(record.headers(headers(letter)), Duration::ZERO).await.unwrap();
    }
    let consumer = consumer(Topic::new(&cluster.bootstrap_servers(), TOPIC, GROUP));
    let committed = async {
        while left(&observer) > 0 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    let mut became = consume(consumer, &Arc::default(), committed).await;
    let mut all = TopicPartitionList::new();
    all.add_partition_offset(&dead_letters(TOPIC), 0, Offset::Beginning).unwrap();
    observer.assign(&all).unwrap();
    let (_, dead) = observer.fetch_watermarks(&dead_letters(TOPIC), 0, PATIENCE).unwrap();
    for _ in 0..dead {
        let letter = observer.poll(PATIENCE).expect("a dead letter").unwrap().detach();
        let text = |name| {
            let found = letter.headers()?.iter().find(|h| h.key == name)?.value?;
            Some(String::from_utf8(found.to_vec()).unwrap())
        };
        let reason = text(REASON).expect("each has one");
        assert!(text(ORIGIN).is_some_and(|origin| origin.starts_with("orders/0:")));
        if reason == "refused" {
            assert!(letter.payload().is_none_or(<[u8]>::is_empty), "no room for a copy");
            let left_out = text(LEFT_OUT).expect("it says so");
            assert!(left_out.contains(&LARGEST_BODY.to_string()), "{left_out}");
        }
        *became.dead.entry(reason).or_default() += 1;
    }
    assert_eq!(became, promised(&sent));
}
