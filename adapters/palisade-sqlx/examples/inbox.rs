//! Books an order only once, even if the order is delivered several times or a process dies.
//!
//! ```text
//! palisade init --new --node redis://127.0.0.1
//! cargo run -p palisade-sqlx --example inbox -- redis://127.0.0.1 \
//!     postgres://palisade@127.0.0.1/postgres
//! ```
//!
//! The inbox is a table with a row for each effect. To use it, a program needs only the lines
//! between the comments that say so. A test counts these lines.

use palisade::idempotency::Context;
use palisade::{Idempotency, Outcome, Redlock, RunError};
use sqlx::{PgConnection, PgPool};

// Begin of the lines that a user of the library writes.
use palisade_sqlx::inbox;
// End of the lines that a user of the library writes.

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Writes an order into the database. This is the effect that must happen only once.
async fn write(tx: &mut PgConnection, item: String) -> Result<i64, BoxError> {
    let insert = "INSERT INTO booked (item) VALUES ($1) RETURNING id";
    Ok(sqlx::query_scalar(insert).bind(item).fetch_one(tx).await?)
}

/// Books an order once, and returns the order's number. If `dies` is true, the function fails after
/// the commit and before the end of the call, as if the process had died there.
pub(crate) async fn book(
    orders: &Idempotency,
    pool: &PgPool,
    order: &str,
    dies: bool,
) -> Result<Outcome<i64>, RunError> {
    let (pool, item) = (pool.clone(), order.to_owned());
    // Begin of the lines that a user of the library writes.
    let call = orders.key(order).probe(inbox::prober(pool.clone()));
    // End of the lines that a user of the library writes.
    let handler = async move |cx: Context| {
        let mut tx = pool.begin().await?;
        // Begin of the lines that a user of the library writes.
        let number: i64 = inbox::once(&mut tx, &cx, |tx| Box::pin(write(tx, item))).await?;
        // End of the lines that a user of the library writes.
        tx.commit().await?;
        if dies {
            return Err("it died when its effect was committed and its result was not".into());
        }
        Ok::<i64, BoxError>(number)
    };
    call.run(handler).await
}

pub(crate) async fn prepare(pool: &PgPool) -> Result<(), BoxError> {
    // Begin of the lines that a user of the library writes.
    palisade_sqlx::migrate(&mut *pool.acquire().await?).await?;
    // End of the lines that a user of the library writes.
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
    let orders = Redlock::from_urls(redis)?.idempotency("orders").at_most_once().build()?;
    for (delivery, dies) in [(1, true), (2, false), (3, false)] {
        match book(&orders, &pool, "tea", dies).await {
            Ok(outcome) => println!("{delivery}: {outcome}"),
            Err(error) => println!("{delivery}: {error}"),
        }
    }
    Ok(())
}
