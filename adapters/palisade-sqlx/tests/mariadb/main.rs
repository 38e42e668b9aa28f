//! Tests of the inbox and of fenced writes, on a real MariaDB server.

#[path = "../child.rs"]
mod child;
mod dialect;
#[path = "../fences.rs"]
mod fences;
#[path = "../inboxes.rs"]
mod inboxes;
#[path = "../outlived.rs"]
mod outlived;
mod server;

use std::time::Duration;

use palisade::idempotency::Context;
use palisade::{Idempotency, MemoryNode, Redlock};
use sqlx::mysql::MySqlPoolOptions;

use dialect::{BoxError, Pool, effect, inbox, migrate};

pub(crate) struct Lab {
    pub(crate) pool: Pool,
    _server: server::MariaDb,
}

impl Lab {
    pub(crate) async fn new() -> Self {
        let server = server::MariaDb::start();
        let options = MySqlPoolOptions::new().max_connections(20);
        let pool = options.acquire_timeout(Duration::from_secs(20)).connect(&server.url()).await;
        let pool = pool.expect("it accepts connections");
        for _ in 0..2 {
            migrate(&mut pool.acquire().await.expect("one")).await.expect("the tables");
        }
        let effects = "CREATE TABLE effects (id bigint AUTO_INCREMENT PRIMARY KEY, item text)";
        sqlx::query(effects).execute(&pool).await.expect("a table");
        Self { pool, _server: server }
    }

    pub(crate) async fn effects(&self, item: &str) -> i64 {
        let count = "SELECT count(*) FROM effects WHERE item = ?";
        sqlx::query_scalar(count).bind(item).fetch_one(&self.pool).await.expect("a number")
    }
}

pub(crate) fn memory() -> Redlock {
    Redlock::builder().node(MemoryNode::new()).build().expect("settings")
}

pub(crate) fn at_least_once(redlock: &Redlock) -> Idempotency {
    redlock.idempotency("orders").at_least_once().build().expect("settings")
}

/// MariaDB compares idempotency keys as bytes, without a collation.
#[tokio::test]
async fn keys_that_a_collation_takes_for_one_are_several() {
    let (lab, keys) = (Lab::new().await, at_least_once(&memory()));
    for key in ["k", "K", "k "] {
        let pool = lab.pool.clone();
        let run = keys.key(key).run(async move |cx: Context| inboxes::book(&pool, &cx).await);
        assert!(run.await.expect("it runs").is_executed());
    }
    let rows = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM effects");
    assert_eq!(rows.fetch_one(&lab.pool).await.expect("a number"), 3);
}

#[tokio::test]
async fn a_row_that_is_younger_than_the_snapshot_of_the_transaction_is_found() {
    let lab = Lab::new().await;
    let pool = lab.pool.clone();
    let (begun, wait) = tokio::sync::oneshot::channel();
    let waits = tokio::spawn(at_least_once(&memory()).key("k").run(async move |cx: Context| {
        let mut other = pool.begin().await?;
        inboxes::write(&mut other, &cx, Some("7")).await;
        let mut tx = pool.begin().await?;
        // This read fixes the transaction's snapshot. Later plain reads do not see the row that the
        // other attempt writes.
        let rows = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM palisade_inbox");
        assert_eq!(rows.fetch_one(&mut *tx).await?, 0);
        let _ = begun.send(other);
        let id = inbox::once(&mut tx, &cx, |tx| Box::pin(effect(tx, "k".to_owned()))).await?;
        tx.commit().await?;
        Ok::<i64, BoxError>(id)
    }));
    let other = wait.await.expect("it begins");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waits.is_finished(), "it waits for the other attempt");
    other.commit().await.expect("committed");
    let found = waits.await.expect("it ends").expect("the row's result");
    assert_eq!((found.into_value(), lab.effects("k").await), (Some(7), 0));
}
