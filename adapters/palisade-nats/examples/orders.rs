//! Consumes orders from NATS JetStream and books each of them once.
//!
//! ```text
//! palisade init --new --node redis://127.0.0.1
//! cargo run --example orders -- redis://127.0.0.1 nats://127.0.0.1
//! ```
//!
//! To consume orders with palisade, a program needs only the lines between the two comments that
//! say so. A test counts these lines.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_nats::jetstream::stream::Config;

// Begin of the lines that a user of the library writes.
use palisade::idempotency::Context;
use palisade::{Failed, RedisNode, Redlock};
use palisade_nats::{Consumer, Durable, Message, Publisher};
// End of the lines that a user of the library writes.

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, serde::Deserialize)]
struct Order {
    customer: String,
    pounds: u32,
}

/// Books an order. This is the effect that must happen only once.
async fn book(order: &Order, fence: u64) -> Result<(), Failure> {
    tokio::time::sleep(Duration::from_millis(10)).await;
    println!("booked {} GBP of {} with token {fence}", order.pounds, order.customer);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut urls = std::env::args().skip(1);
    let redis = urls.next().unwrap_or_else(|| "redis://127.0.0.1".to_owned());
    let nats = urls.next().unwrap_or_else(|| "nats://127.0.0.1".to_owned());

    // This producer sends every order twice.
    let config = Config { name: "orders".to_owned(), ..Config::default() };
    let client = async_nats::connect(&nats).await?;
    async_nats::jetstream::new(client.clone()).create_stream(config).await?;
    let publisher = Publisher::new(client, "orders");
    let made = SystemTime::now();
    for order in [1, 2, 3, 1, 2, 3] {
        let body = format!(r#"{{"customer":"alice","pounds":{order}}}"#);
        publisher.publish(&format!("order-{order}"), made, body.as_bytes()).await?;
    }

    // Begin of the lines that a user of the library writes.
    let redlock = Redlock::builder().node(RedisNode::new(&redis)?).build()?;
    let orders = redlock.idempotency("orders").at_most_once().build()?;
    let client = async_nats::connect(&nats).await?;
    let consumer = Consumer::builder(Durable::new(client, "orders", "billing"), orders).build()?;
    let handler = |cx: Context, message: Arc<Message>| async move {
        let order: Order = message.json()?;
        book(&order, cx.fencing_token().get()).await?;
        Ok::<_, Failed>(())
    };
    let ended = consumer.run(handler, tokio::time::sleep(Duration::from_secs(10))).await?;
    // End of the lines that a user of the library writes.

    println!("{ended:?}");
    println!("{}", redlock.close(Duration::from_secs(5)).await);
    Ok(())
}
