//! Tests of the inbox and of fenced writes, on a real PostgreSQL server.

mod alone;
mod child;
mod dialect;
mod example;
mod fences;
mod http;
mod inboxes;
mod outlived;
mod pooled;
mod pooler;
#[path = "../../../tests/support/server.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with tests that use all of it")]
mod redis;
mod server;

use std::time::Duration;

use palisade::{Idempotency, MemoryNode, Redlock};
use sqlx::postgres::{PgPool, PgPoolOptions};

/// A PostgreSQL server with the tables of palisade, and with a table that has a row for each
/// effect.
pub(crate) struct Lab {
    pub(crate) server: server::Postgres,
    pub(crate) pool: PgPool,
}

impl Lab {
    pub(crate) async fn new() -> Self {
        let server = server::Postgres::start();
        let options = PgPoolOptions::new().max_connections(20);
        let pool = options.acquire_timeout(Duration::from_secs(20)).connect(&server.url()).await;
        let pool = pool.expect("it accepts connections");
        palisade_sqlx::migrate(&mut pool.acquire().await.expect("one")).await.expect("the tables");
        let effects = sqlx::raw_sql("CREATE TABLE effects (id bigserial PRIMARY KEY, key text)");
        effects.execute(&pool).await.expect("a table");
        Self { server, pool }
    }

    pub(crate) async fn effects(&self, key: &str) -> i64 {
        let count = "SELECT count(*) FROM effects WHERE key = $1";
        sqlx::query_scalar(count).bind(key).fetch_one(&self.pool).await.expect("a number")
    }
}

pub(crate) fn memory() -> Redlock {
    Redlock::builder().node(MemoryNode::new()).build().expect("settings")
}

pub(crate) fn at_least_once(redlock: &Redlock) -> Idempotency {
    let keys = redlock.idempotency("orders").at_least_once();
    keys.build().expect("settings")
}
