//! Consumes orders from a Redis stream. Books each order only once in PostgreSQL, even if a process
//! dies.
//!
//! ```text
//! palisade init --new --node redis://127.0.0.1
//! cargo run -p palisade-sqlx --example orders -- redis://127.0.0.1 \
//!     postgres://palisade@127.0.0.1/postgres
//! ```
//!
//! One transaction writes the effect and the row that records the effect. If an attempt dies, the
//! consumer's probe looks for the row. So no order has to wait for a person's decision.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use palisade::idempotency::Context;
use palisade::{Idempotency, Redlock};
use palisade_consumer::{ConsumerReport, probed};
use palisade_sqlx::inbox;
use palisade_streams::{Consumer, Message, Publisher, Stream};
use sqlx::PgPool;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Publishes each order twice. A producer also does that if it crashed before it received the
/// confirmation.
pub(crate) async fn produce(server: &str, orders: &[&str]) -> Result<(), BoxError> {
    let (publisher, made) = (Publisher::new(server, "orders"), SystemTime::now());
    for order in orders.iter().chain(orders) {
        publisher.publish(order, made, order.as_bytes()).await?;
    }
    Ok(())
}

/// Consumes orders until `stop` resolves.
pub(crate) async fn consume(
    server: &str,
    of: Idempotency,
    pool: &PgPool,
    stop: impl Future<Output = ()>,
) -> Result<ConsumerReport, BoxError> {
    let consumer = Consumer::builder(Stream::new(server, "orders", "billing"), of).build()?;
    let probe = inbox::prober(pool.clone());
    let pool = pool.clone();
    let handler = move |cx: Context, order: Arc<Message>| {
        let pool = pool.clone();
        async move {
            let item = String::from_utf8(order.body().to_vec())?;
            let mut tx = pool.begin().await?;
            let effect = inbox::once(&mut tx, &cx, |tx| {
                Box::pin(async move {
                    let insert = "INSERT INTO booked (item) VALUES ($1) RETURNING id";
                    Ok::<i64, BoxError>(sqlx::query_scalar(insert).bind(item).fetch_one(tx).await?)
                })
            });
            let number = effect.await?;
            tx.commit().await?;
            Ok::<_, BoxError>(number)
        }
    };
    Ok(consumer.run(probed(handler, probe), stop).await?)
}

pub(crate) async fn prepare(pool: &PgPool) -> Result<(), BoxError> {
    palisade_sqlx::migrate(&mut *pool.acquire().await?).await?;
    let table = "CREATE TABLE IF NOT EXISTS booked (id bigserial PRIMARY KEY, item text)";
    sqlx::query(table).execute(pool).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut args = std::env::args().skip(1);
    let redis = args.next().unwrap_or("redis://127.0.0.1".into());
    let database = args.next().unwrap_or("postgres://127.0.0.1/postgres".into());
    let pool = PgPool::connect(&database).await?;
    prepare(&pool).await?;
    produce(&redis, &["tea", "milk", "sugar"]).await?;
    let orders = Redlock::from_urls(&redis)?.idempotency("orders").at_most_once().build()?;
    let stop = tokio::time::sleep(Duration::from_secs(10));
    println!("{:?}", consume(&redis, orders, &pool, stop).await?);
    let booked = "SELECT count(*) FROM booked";
    println!("{} booked", sqlx::query_scalar::<_, i64>(booked).fetch_one(&pool).await?);
    Ok(())
}
