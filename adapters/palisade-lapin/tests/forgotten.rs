//! Messages with forgotten keys, on a real server. A key is forgotten if the nodes cannot say
//! whether there was an attempt for it.

#[path = "../../../tests/support/held.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod held;
#[expect(dead_code, reason = "each file of tests needs a part of it")]
mod server;

use std::time::SystemTime;

use held::Held;
use palisade_lapin::{Consumer, Publisher};
use server::Queue;

#[tokio::test]
async fn forgotten_messages_are_held_and_run_once_after_a_decision() {
    let (queue, held) = (Queue::new("forgotten").await, Held::new().await);
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
