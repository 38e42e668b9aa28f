//! Tests of invalid settings. The consumer refuses these settings before it connects.

use std::sync::Arc;
use std::time::Duration;

use palisade::idempotency::Context;
use palisade::{MemoryNode, Redlock};
use palisade_consumer::{ConsumerBuilder, Rules};
use palisade_lapin::{Consumer, Message, Queue};

fn queue(name: &str) -> Queue {
    Queue::new("amqp://guest:secret@127.0.0.1:1", name)
}

fn builder(queue: Queue) -> ConsumerBuilder<Queue> {
    let ttl = Duration::from_secs(15);
    let redlock = Redlock::builder().node(MemoryNode::new()).ttl(ttl).build().unwrap();
    let of = redlock.idempotency("orders").at_most_once().build().unwrap();
    Consumer::builder(queue, of)
}

#[test]
fn a_setting_that_cannot_be_kept_is_named_with_its_rule() {
    let secs = Duration::from_secs;
    let refused = |b: ConsumerBuilder<Queue>| b.build().unwrap_err().to_string();
    let text = refused(builder(queue("orders").consumer_timeout(secs(29))));
    assert!(
        text.starts_with("`consumer_timeout` is 29s: at least twice the lease (15s)"),
        "{text}"
    );
    assert!(text.contains("in rabbitmq.conf, or shorten the lease"), "{text}");
    assert!(refused(builder(queue(""))).starts_with("`queue` is \"\""));
    assert!(refused(builder(queue(&"q".repeat(231)))).contains("1 to 230 bytes"));
    let rules = Rules::default().concurrency(0);
    assert!(refused(builder(queue("orders")).rules(rules)).starts_with("`concurrency` is 0"));
    builder(queue("orders").consumer_timeout(secs(30))).build().unwrap();
}

#[test]
fn no_password_is_shown() {
    let shown =
        format!("{:?} {:?}", builder(queue("orders")), builder(queue("orders")).build().unwrap());
    assert!(!shown.contains("secret"), "{shown}");
}

#[tokio::test]
async fn a_broker_that_is_not_there_is_waited_for_and_a_stop_is_heard() {
    let consumer = builder(queue("orders")).build().unwrap();
    let handler = |_: Context, _: Arc<Message>| async { Ok::<_, palisade::Failed>(()) };
    let run = consumer.run(handler, tokio::time::sleep(Duration::from_millis(300)));
    let ended = tokio::time::timeout(Duration::from_secs(20), run).await.expect("it ends");
    assert_eq!(ended.unwrap().delivered, 0);
}
