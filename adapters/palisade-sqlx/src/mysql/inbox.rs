//! The inbox in MariaDB and MySQL; see [the module for PostgreSQL](crate::inbox).

use std::time::Duration;

use futures_core::future::BoxFuture;
use palisade::Probed;
use palisade::idempotency::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{Connection as _, MySqlConnection, MySqlPool};

use crate::error::InboxError;
use crate::fence;
use crate::inbox::name;

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
    let sql = |error| InboxError::Sql { key: name(cx), error };
    let mut unit = conn.begin().await.map_err(sql)?;
    // Not `INSERT IGNORE`, which hides other errors, too.
    let entered = sqlx::query(
        "INSERT INTO palisade_inbox (namespace, `key`, fence, attempt) VALUES (?, ?, ?, ?)",
    )
    .bind(cx.namespace().as_bytes())
    .bind(cx.key().as_bytes())
    .bind(fence::value(cx.fencing_token()))
    .bind(i64::from(cx.attempt()))
    .execute(&mut *unit)
    .await;
    match entered {
        Ok(_) => {}
        Err(sqlx::Error::Database(refused)) if refused.is_unique_violation() => {
            // A locking read: the transaction's snapshot may be older than the row.
            let locking = "SELECT result FROM palisade_inbox \
                           WHERE namespace = ? AND `key` = ? LOCK IN SHARE MODE";
            let found = row(&mut unit, cx, locking).await?;
            unit.rollback().await.map_err(sql)?;
            return found.ok_or_else(|| InboxError::NoResult { key: name(cx) }.into());
        }
        Err(error) => return Err(sql(error).into()),
    }
    let value = match effect(&mut unit).await {
        Ok(value) => value,
        Err(error) => {
            unit.rollback().await.map_err(sql)?;
            return Err(error);
        }
    };
    let what = "the result cannot be stored as JSON";
    let json = serde_json::to_vec(&value).map_err(|error| InboxError::Codec {
        key: name(cx),
        what,
        error,
    })?;
    sqlx::query("UPDATE palisade_inbox SET result = ? WHERE namespace = ? AND `key` = ?")
        .bind(json)
        .bind(cx.namespace().as_bytes())
        .bind(cx.key().as_bytes())
        .execute(&mut *unit)
        .await
        .map_err(sql)?;
    unit.commit().await.map_err(sql)?;
    Ok(value)
}

/// As [`inbox::probe`](crate::inbox::probe).
///
/// # Cancellation safety
/// Reads only.
pub async fn probe<T: DeserializeOwned>(conn: &mut MySqlConnection, cx: &Context) -> Probed<T> {
    let read = "SELECT result FROM palisade_inbox WHERE namespace = ? AND `key` = ?";
    match row(conn, cx, read).await {
        Ok(Some(result)) => Probed::Found(result),
        Ok(None) => Probed::NotFound,
        Err(error) => {
            tracing::warn!(target: "palisade::sqlx", %error, "a probe is not answered");
            Probed::Unknown
        }
    }
}

/// As [`inbox::prober`](crate::inbox::prober).
pub fn prober<T>(
    pool: MySqlPool,
) -> impl Fn(Context) -> BoxFuture<'static, Probed<T>> + Clone + Send + Sync + 'static
where
    T: DeserializeOwned + Send + 'static,
{
    move |cx| {
        let pool = pool.clone();
        Box::pin(async move {
            match pool.acquire().await {
                Ok(mut conn) => probe(&mut conn, &cx).await,
                Err(error) => {
                    let key = name(&cx);
                    tracing::warn!(target: "palisade::sqlx", %error, key, "a probe has no answer");
                    Probed::Unknown
                }
            }
        })
    }
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

async fn row<T: DeserializeOwned>(
    conn: &mut MySqlConnection,
    cx: &Context,
    sql: &'static str,
) -> Result<Option<T>, InboxError> {
    let found: Option<Option<Vec<u8>>> = sqlx::query_scalar(sql)
        .bind(cx.namespace().as_bytes())
        .bind(cx.key().as_bytes())
        .fetch_optional(conn)
        .await
        .map_err(|error| InboxError::Sql { key: name(cx), error })?;
    let Some(result) = found else { return Ok(None) };
    let json = result.ok_or_else(|| InboxError::NoResult { key: name(cx) })?;
    let what = "the stored result does not read as this type";
    let read = serde_json::from_slice(&json);
    read.map(Some).map_err(|error| InboxError::Codec { key: name(cx), what, error })
}
