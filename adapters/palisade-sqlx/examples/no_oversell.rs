//! Sells a stock over HTTP to more orders than there is stock, and does not sell too much.
//!
//! ```text
//! cargo run -p palisade-sqlx --example no_oversell -- redis://127.0.0.1 \
//!     postgres://palisade@127.0.0.1/postgres lock
//! ```
//!
//! Two servers sell the same stock. 5,000 clients order one piece each, every fifth of them twice,
//! as a client does that was not answered in time. Each order is taken once, by its idempotency
//! key and the inbox. Two ways to take a piece:
//!
//! - `lock`: a holder of the lock `stock:42` reads the stock, and writes what is left under its
//!   fencing token. For decisions that are more than one statement.
//! - `sql`: the condition is in the `UPDATE`. Where that is possible no lock is needed.
//!
//! The last line is JSON; the exit code is 1 if the figures are wrong.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use futures_util::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use palisade::{MemoryNode, Redlock};
use palisade_sqlx::{fence, inbox};
use palisade_tower::{Claim, IdempotencyLayer, Keep, Scope};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use sqlx::postgres::{PgPool, PgPoolOptions};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Requests under way at once.
const IN_FLIGHT: usize = 250;
/// How long a client sends its order again.
const PATIENCE: Duration = Duration::from_mins(5);
const ITEM: i64 = 42;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Lock,
    Sql,
}

/// What came of it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// Orders that were answered 201 and 409, each counted once.
    pub(crate) sold: usize,
    pub(crate) refused: usize,
    /// Answers that said neither, after all tries.
    pub(crate) unanswered: usize,
    /// By the database.
    pub(crate) rest: i64,
    pub(crate) rows: i64,
    pub(crate) doubles: i64,
    pub(crate) ms: u128,
}

impl Report {
    pub(crate) fn is_right(&self, stock: i64, orders: usize) -> bool {
        let sold = usize::try_from(stock).unwrap_or(0).min(orders);
        let answers = (self.sold, self.refused, self.unanswered) == (sold, orders - sold, 0);
        answers && (self.rest, self.rows, self.doubles) == (0, stock, 0)
    }
}

/// Whether a piece was sold, and how many are left. A refusal is a result, too.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Sale {
    sold: bool,
    rest: i64,
}

#[derive(Clone)]
struct Shop {
    way: Way,
    redlock: Redlock,
    pool: PgPool,
    /// This process's orders wait here, so that only one of them waits for the lock.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Shop {
    /// One order in one transaction.
    async fn sell(&self, claim: &Claim) -> Result<Sale, BoxError> {
        // A stock does not grow: sold out is sold out, and nobody has to wait to hear it.
        let locked = self.way == Way::Lock && rest(&mut *self.pool.acquire().await?).await? > 0;
        let _turn = if locked { Some(self.turn.lock().await) } else { None };
        let guard = if locked {
            let lock = self.redlock.mutex(format!("stock:{ITEM}"));
            Some(lock.acquire_timeout(Duration::from_mins(1)).build()?.acquire().await?)
        } else {
            None
        };
        let token = guard.as_ref().map(|guard| fence::value(guard.fencing_token()));
        let mut tx = self.pool.begin().await?;
        let key = claim.key().to_owned();
        let sale = inbox::once(&mut tx, claim, |tx| {
            async move {
                let sale = match token {
                    Some(token) => read_and_write(tx, token).await?,
                    None => take(tx).await?,
                };
                if sale.sold {
                    let order = sqlx::query("INSERT INTO orders (key) VALUES ($1)").bind(key);
                    order.execute(&mut *tx).await?;
                }
                Ok::<_, BoxError>(sale)
            }
            .boxed()
        })
        .await?;
        tx.commit().await?;
        if let Some(guard) = guard {
            // Lost or not: what was written under an overtaken token was refused.
            let _ = guard.release().await;
        }
        Ok(sale)
    }
}

async fn rest(conn: &mut PgConnection) -> Result<i64, BoxError> {
    let read = sqlx::query_scalar("SELECT rest FROM stock WHERE id = $1").bind(ITEM);
    Ok(read.fetch_one(conn).await?)
}

async fn read_and_write(tx: &mut PgConnection, token: i64) -> Result<Sale, BoxError> {
    let rest = rest(&mut *tx).await?;
    if rest == 0 {
        return Ok(Sale { sold: false, rest });
    }
    let written =
        sqlx::query("UPDATE stock SET rest = $1, fence = $2 WHERE id = $3 AND fence <= $2")
            .bind(rest - 1)
            .bind(token)
            .bind(ITEM)
            .execute(tx)
            .await?;
    if written.rows_affected() == 0 {
        return Err("a newer holder of the lock has written the stock".into());
    }
    Ok(Sale { sold: true, rest: rest - 1 })
}

async fn take(tx: &mut PgConnection) -> Result<Sale, BoxError> {
    let rest: Option<i64> = sqlx::query_scalar(
        "UPDATE stock SET rest = rest - 1 WHERE id = $1 AND rest > 0 RETURNING rest",
    )
    .bind(ITEM)
    .fetch_optional(tx)
    .await?;
    Ok(Sale { sold: rest.is_some(), rest: rest.unwrap_or(0) })
}

async fn order(
    State(shop): State<Shop>,
    claim: Claim,
) -> Result<(StatusCode, Json<Sale>), (axum::Extension<Keep>, StatusCode)> {
    match shop.sell(&claim).await {
        Ok(sale) if sale.sold => Ok((StatusCode::CREATED, Json(sale))),
        Ok(sale) => Ok((StatusCode::CONFLICT, Json(sale))),
        Err(error) => {
            eprintln!("order {}: {error}", claim.key());
            // The transaction was rolled back, or the inbox knows that it was not.
            Err((axum::Extension(Keep::Repeatable), StatusCode::INTERNAL_SERVER_ERROR))
        }
    }
}

async fn prepare(pool: &PgPool, stock: i64) -> Result<(), BoxError> {
    let mut conn = pool.acquire().await?;
    palisade_sqlx::migrate(&mut conn).await?;
    let tables = "DROP TABLE IF EXISTS stock, orders;
         DELETE FROM palisade_inbox WHERE namespace = 'orders';
         CREATE TABLE stock (id bigint PRIMARY KEY, rest bigint NOT NULL CHECK (rest >= 0),
                             fence bigint NOT NULL DEFAULT 0);
         CREATE TABLE orders (id bigserial PRIMARY KEY, key text NOT NULL)";
    sqlx::raw_sql(tables).execute(&mut *conn).await?;
    let put = sqlx::query("INSERT INTO stock (id, rest) VALUES ($1, $2)").bind(ITEM).bind(stock);
    put.execute(&mut *conn).await?;
    Ok(())
}

async fn serve(shop: Shop) -> Result<String, BoxError> {
    let keys = shop.redlock.idempotency("orders").at_least_once().build()?;
    // There is one shop and no users in it; a client's key is its order's number.
    let once = IdempotencyLayer::new(keys, |_| Some(Scope::everybody()));
    // The second copy of an order is answered when the first one is.
    let once = once.in_flight_timeout(Duration::from_secs(10));
    let app = Router::new().route("/orders", post(order).layer(once)).with_state(shop);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/orders", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(url)
}

/// Sends an order until it is decided, for some minutes.
async fn buy(client: &reqwest::Client, url: &str, key: usize) -> Option<bool> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let request = client.post(url).header("idempotency-key", format!("order-{key}"));
        if let Ok(response) = request.send().await {
            // A problem is no sale: in progress, or the servers fail.
            if let Ok(sale) = response.json::<Sale>().await {
                return Some(sale.sold);
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    None
}

/// Sells `stock` pieces to so many orders.
pub(crate) async fn run(
    redlocks: [Redlock; 2],
    database: &str,
    way: Way,
    (stock, orders): (i64, usize),
) -> Result<Report, BoxError> {
    let pool = PgPoolOptions::new().max_connections(20).connect(database).await?;
    prepare(&pool, stock).await?;
    let begun = Instant::now();
    let mut urls = Vec::new();
    for redlock in redlocks {
        let shop = Shop { way, redlock, pool: pool.clone(), turn: Arc::default() };
        urls.push(serve(shop).await?);
    }
    let client = reqwest::Client::new();
    let answers: Vec<(usize, Option<bool>)> = stream::iter(0..orders)
        .map(|key| {
            let (client, urls) = (&client, &urls);
            async move {
                let first = buy(client, &urls[key % 2], key);
                if key % 5 > 0 {
                    return (key, first.await);
                }
                // The same order at both servers at once.
                let (first, second) = tokio::join!(first, buy(client, &urls[(key + 1) % 2], key));
                (key, first.filter(|first| second == Some(*first)))
            }
        })
        .buffer_unordered(IN_FLIGHT)
        .collect()
        .await;
    let count = |what| answers.iter().filter(|(_, answer)| *answer == what).count();
    let number = async |sql: &'static str| sqlx::query_scalar::<_, i64>(sql).fetch_one(&pool).await;
    Ok(Report {
        sold: count(Some(true)),
        refused: count(Some(false)),
        unanswered: count(None),
        rest: number("SELECT rest FROM stock").await?,
        rows: number("SELECT count(*) FROM orders").await?,
        doubles: number("SELECT count(*) - count(DISTINCT key) FROM orders").await?,
        ms: begun.elapsed().as_millis(),
    })
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [redis, database, way] = args.as_slice() else {
        return Err("usage: no_oversell redis://… (or `memory`) postgres://… lock|sql".into());
    };
    let way = match way.as_str() {
        "lock" => Way::Lock,
        "sql" => Way::Sql,
        _ => return Err("the last argument is `lock` or `sql`".into()),
    };
    let memory = MemoryNode::new();
    let handle = || -> Result<Redlock, BoxError> {
        let builder = Redlock::builder();
        Ok(match redis.as_str() {
            "memory" => builder.node(memory.clone()).build()?,
            url => Redlock::from_urls(url)?,
        })
    };
    let (stock, orders) = (1_000, 5_000);
    let report = run([handle()?, handle()?], database, way, (stock, orders)).await?;
    let json = serde_json::to_string(&report)?;
    println!("{json}");
    if report.is_right(stock, orders) { Ok(()) } else { Err("the figures are wrong".into()) }
}
