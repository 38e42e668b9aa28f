//! Messages whose keys the nodes have forgotten, on a real server.

#[path = "../../../tests/support/held.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod held;
#[expect(dead_code, reason = "each file of tests needs a part of it")]
mod server;

use std::sync::Arc;
use std::time::SystemTime;

use held::Held;
use palisade::Failed;
use palisade::idempotency::Context;
use palisade::idempotency::consumer::Rules;
use palisade_lapin::{Consumer, Message, Publisher};
use server::Queue;

#[tokio::test]
async fn forgotten_messages_are_held_and_run_once_after_a_decision() {
    let (queue, held) = (Queue::new("forgotten").await, Held::new().await);
    let publisher = Publisher::new(&queue.uri, &queue.name);
    let publish = async |key: &str, made: SystemTime| {
        publisher.publish(key, made, b"10 GBP").await.unwrap();
    };
    held.lose(publish).await;
    let books = held.clone();
    let book = move |cx: Context, _: Arc<Message>| {
        books.book(&cx);
        async { Ok::<_, Failed>(()) }
    };
    let rules = Rules::default().concurrency(64);
    let consumer =
        Consumer::builder(palisade_lapin::Queue::new(&queue.uri, &queue.name), held.of.clone());
    let consumer = consumer.rules(rules).build().unwrap();
    let ended = consumer.run(book, held.judge(publish)).await.unwrap();
    assert_eq!(ended.parked, 0, "{ended:?}");
    assert!(queue.dead().await.is_none());
}
