//! What is refused before anything is connected.

use std::time::Duration;

use palisade::idempotency::consumer::Rules;
use palisade::{MemoryNode, Redlock};
use palisade_lapin::{Consumer, ConsumerBuilder};

fn builder(queue: &str) -> ConsumerBuilder {
    let ttl = Duration::from_secs(15);
    let redlock = Redlock::builder().node(MemoryNode::new()).ttl(ttl).build().unwrap();
    let of = redlock.idempotency("orders").at_most_once().build().unwrap();
    Consumer::builder("amqp://guest:secret@127.0.0.1:1", queue, of)
}

#[test]
fn a_setting_that_cannot_be_kept_is_named_with_its_rule() {
    let secs = Duration::from_secs;
    let refused = |b: ConsumerBuilder| b.build().unwrap_err().to_string();
    let text = refused(builder("orders").consumer_timeout(secs(29)));
    assert!(
        text.starts_with("`consumer_timeout` is 29s: at least twice the lease (15s)"),
        "{text}"
    );
    assert!(text.contains("in rabbitmq.conf, or shorten the lease"), "{text}");
    assert!(refused(builder("")).starts_with("`queue` is \"\""));
    assert!(refused(builder(&"q".repeat(231))).contains("1 to 230 bytes"));
    let rules = Rules::default().concurrency(0);
    assert!(refused(builder("orders").rules(rules)).starts_with("`concurrency` is 0"));
    builder("orders").consumer_timeout(secs(30)).build().unwrap();
}

#[test]
fn no_password_is_shown() {
    let shown = format!("{:?} {:?}", builder("orders"), builder("orders").build().unwrap());
    assert!(!shown.contains("secret"), "{shown}");
}

#[tokio::test]
async fn a_broker_that_is_not_there_is_waited_for_and_a_stop_is_heard() {
    let consumer = builder("orders").build().unwrap();
    let handler = |_, _| async { Ok::<_, palisade::Failed>(()) };
    let run = consumer.run(handler, tokio::time::sleep(Duration::from_millis(300)));
    let ended = tokio::time::timeout(Duration::from_secs(20), run).await.expect("it ends");
    assert_eq!(ended.unwrap().delivered, 0);
}
