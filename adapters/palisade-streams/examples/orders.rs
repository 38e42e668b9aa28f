//! Consumes orders from a Redis stream. Each order is added to the stream twice and booked only
//! once.
//!
//! ```text
//! palisade init --new --node redis://127.0.0.1
//! cargo run --example orders -- redis://127.0.0.1
//! ```
//!
//! To consume orders with palisade, a program needs only the lines between the two comments that
//! say so. A test counts these lines.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use redis::AsyncCommands as _;
use redis::streams::StreamInfoGroupsReply;
use tokio::time::{Instant, sleep};

// Begin of the lines that a user of the library writes.
use palisade::idempotency::Context;
use palisade::{Failed, Redlock};
use palisade_streams::{Consumer, Message, Publisher, Stream};
// End of the lines that a user of the library writes.

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ORDERS: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, serde::Deserialize)]
struct Order {
    customer: String,
    pounds: u32,
}

/// The amounts of the booked orders.
static LEDGER: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Books an order. This is the effect that must happen only once.
async fn book(order: &Order, fence: u64) -> Result<(), Failure> {
    sleep(Duration::from_millis(10)).await;
    println!("booked {} GBP of {} with token {fence}", order.pounds, order.customer);
    LEDGER.lock().unwrap_or_else(PoisonError::into_inner).push(order.pounds);
    Ok(())
}

/// Adds all orders, and adds them again a second later. A producer does the same after a crash.
async fn produce(server: String, stream: String) -> Result<(), Failure> {
    let (publisher, made) = (Publisher::new(&server, &stream), SystemTime::now());
    for _ in 0..2 {
        for order in 1..=ORDERS {
            let body = format!(r#"{{"customer":"alice","pounds":{order}}}"#);
            publisher.publish(&format!("{stream}:{order}"), made, body.as_bytes()).await?;
        }
        sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

async fn all_done(server: &str, stream: &str) {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end && !is_done(server, stream).await.unwrap_or(false) {
        sleep(Duration::from_millis(50)).await;
    }
}

async fn is_done(server: &str, stream: &str) -> Result<bool, redis::RedisError> {
    let mut server = redis::Client::open(server)?.get_multiplexed_async_connection().await?;
    let seen: StreamInfoGroupsReply = server.xinfo_groups(stream).await?;
    let all = Some(2 * ORDERS as usize);
    Ok(seen.groups.iter().any(|group| group.entries_read == all && group.pending == 0))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    run(std::env::args().nth(1).unwrap_or("redis://127.0.0.1".into())).await
}

pub(crate) async fn run(server: String) -> Result<(), Failure> {
    let stream = format!("orders-{:08x}", rand::random::<u32>());

    let produced = tokio::spawn(produce(server.clone(), stream.clone()));

    // Begin of the lines that a user of the library writes.
    let redlock = Redlock::from_urls(&server)?;
    let orders = redlock.idempotency("orders").at_most_once().build()?;
    let consumer = Consumer::builder(Stream::new(&server, &stream, "billing"), orders).build()?;
    let handler = |cx: Context, message: Arc<Message>| async move {
        let order: Order = message.json()?;
        book(&order, cx.fencing_token().get()).await?;
        Ok::<_, Failed>(())
    };
    let ended = consumer.run(handler, all_done(&server, &stream)).await?;
    // End of the lines that a user of the library writes.

    produced.await??;
    println!("{ended:?}");
    println!("{}", redlock.close(Duration::from_secs(5)).await);
    let mut client = redis::Client::open(server)?.get_multiplexed_async_connection().await?;
    let left: StreamInfoGroupsReply = client.xinfo_groups(&stream).await?;
    let pending: usize = left.groups.iter().map(|group| group.pending).sum();
    let _: u32 = client.del(&stream).await?;
    let mut booked = std::mem::take(&mut *LEDGER.lock().unwrap_or_else(PoisonError::into_inner));
    booked.sort_unstable();
    if booked != [1, 2, 3] || pending > 0 {
        return Err(format!("booked {booked:?}, {pending} messages not acknowledged").into());
    }
    println!("{} messages, {ORDERS} orders booked once each", 2 * ORDERS);
    Ok(())
}
