//! The inbox in MariaDB and MySQL; see [the module for PostgreSQL](crate::inbox).

use std::time::Duration;

use futures_core::future::BoxFuture;
use palisade::Probed;
use palisade::idempotency::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{MySql, MySqlConnection, MySqlPool};

use crate::error::InboxError;
use crate::fence;
use crate::row::{self, Found, Rows};

/// As [`inbox::once`](crate::inbox::once). While another attempt at the key is in an open
/// transaction, this waits for its end; `innodb_lock_wait_timeout` bounds that wait. A deadlock
/// that the server reports has rolled back the whole transaction: run it again.
///
/// # Errors
/// Those of `effect`, and [`InboxError`].
///
/// # Cancellation safety
/// If dropped, nothing is left of it once the transaction ends: sqlx rolls back.
pub async fn once<T, E, F>(conn: &mut MySqlConnection, cx: &Context, effect: F) -> Result<T, E>
where
    T: Serialize + DeserializeOwned,
    E: From<InboxError>,
    F: for<'c> FnOnce(&'c mut MySqlConnection) -> BoxFuture<'c, Result<T, E>>,
{
    row::once::<MySql, _, _, _>(conn, cx, effect).await
}

/// As [`inbox::probe`](crate::inbox::probe).
///
/// # Cancellation safety
/// Reads only.
pub async fn probe<T: DeserializeOwned>(conn: &mut MySqlConnection, cx: &Context) -> Probed<T> {
    row::probe::<MySql, T>(conn, cx).await
}

/// As [`inbox::prober`](crate::inbox::prober).
pub fn prober<T>(
    pool: MySqlPool,
) -> impl Fn(Context) -> BoxFuture<'static, Probed<T>> + Clone + Send + Sync + 'static
where
    T: DeserializeOwned + Send + 'static,
{
    row::prober::<MySql, T>(pool)
}

/// As [`inbox::purge`](crate::inbox::purge).
///
/// # Errors
/// Those of the database.
///
/// # Cancellation safety
/// If dropped, it may or may not have deleted them; it may be called again.
pub async fn purge(
    conn: &mut MySqlConnection,
    namespace: &str,
    older_than: Duration,
    at_most: u32,
) -> Result<u64, sqlx::Error> {
    let done = sqlx::query(
        "DELETE FROM palisade_inbox WHERE namespace = ? \
         AND done_at < NOW() - INTERVAL ? SECOND ORDER BY done_at LIMIT ?",
    )
    .bind(namespace.as_bytes())
    .bind(older_than.as_secs())
    .bind(at_most)
    .execute(conn)
    .await?;
    Ok(done.rows_affected())
}

impl Rows for MySql {
    async fn enter(conn: &mut MySqlConnection, cx: &Context) -> Result<bool, sqlx::Error> {
        // Not `INSERT IGNORE`, which hides other errors, too.
        let entered = sqlx::query(
            "INSERT INTO palisade_inbox (namespace, `key`, fence, attempt) VALUES (?, ?, ?, ?)",
        )
        .bind(cx.namespace().as_bytes())
        .bind(cx.key().as_bytes())
        .bind(fence::value(cx.fencing_token()))
        .bind(i64::from(cx.attempt()))
        .execute(conn)
        .await;
        match entered {
            Ok(_) => Ok(true),
            Err(sqlx::Error::Database(refused)) if refused.is_unique_violation() => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn find(
        conn: &mut MySqlConnection,
        cx: &Context,
        entered: bool,
    ) -> Result<Found, sqlx::Error> {
        // In the transaction a locking read: its snapshot may be older than the row.
        let sql = if entered {
            "SELECT result FROM palisade_inbox WHERE namespace = ? AND `key` = ? LOCK IN SHARE MODE"
        } else {
            "SELECT result FROM palisade_inbox WHERE namespace = ? AND `key` = ?"
        };
        let find = sqlx::query_scalar(sql).bind(cx.namespace().as_bytes());
        find.bind(cx.key().as_bytes()).fetch_optional(conn).await
    }

    async fn finish(
        conn: &mut MySqlConnection,
        cx: &Context,
        json: String,
    ) -> Result<(), sqlx::Error> {
        sqlx::query("UPDATE palisade_inbox SET result = ? WHERE namespace = ? AND `key` = ?")
            .bind(json.into_bytes())
            .bind(cx.namespace().as_bytes())
            .bind(cx.key().as_bytes())
            .execute(conn)
            .await
            .map(drop)
    }
}
