//! Messages with forgotten keys, on a real server. A key is forgotten if the nodes cannot say
//! whether there was an attempt for it.

#[path = "../../../tests/support/held.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod held;
#[expect(dead_code, reason = "each file of tests needs a part of it")]
mod server;

use std::time::SystemTime;

use held::Held;
use palisade_nats::Consumer;
use server::Nats;

#[tokio::test]
async fn forgotten_messages_are_held_and_run_once_after_a_decision() {
    let (nats, held) = (Nats::start().await, Held::new().await);
    let publisher = nats.publisher();
    let publish = async |key: &str, made: SystemTime| {
        publisher.publish(key, made, b"10 GBP").await.unwrap();
    };
    let consumer = Consumer::builder(nats.durable(), held.of.clone());
    let ended = held.consume(consumer, publish, nats.drained()).await;
    assert_eq!((ended.acked, ended.parked), (25, 0), "{ended:?}");
}
