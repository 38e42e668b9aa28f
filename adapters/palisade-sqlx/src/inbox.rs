//! The inbox: a key's row in the transaction of its effect.
//!
//! An effect and the row that says that it happened are committed together or not at all. So within
//! one database an effect happens once, whatever crashes, and the row answers
//! the [`probe`](palisade::idempotency::Call::probe) of the key's record on Redis.

use std::time::Duration;

use futures_core::future::BoxFuture;
use palisade::Probed;
use palisade::idempotency::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{Connection as _, PgConnection, PgPool, Postgres};

use crate::error::InboxError;
use crate::fence;
use crate::pooled::keeps_statements;
use crate::row::{self, Found, Rows};

/// Runs `effect` unless the key's row is there, and writes the row with its result. If it is there,
/// nothing runs and the result is the row's.
///
/// All of it is one unit of the transaction that `conn` is in (a savepoint): if `effect` fails,
/// nothing of it is left, also where the transaction is committed all the same. On a connection
/// without a transaction it is a transaction of its own.
///
/// While another attempt at the key is in an open transaction, this waits for its end;
/// `lock_timeout` of the connection bounds that wait. At isolation levels above `READ COMMITTED`
/// the wait may end in a serialization failure; then run the whole transaction again.
///
/// # Errors
/// Those of `effect`, and [`InboxError`].
///
/// # Cancellation safety
/// Dropped, nothing is left of it once the transaction ends: sqlx rolls back.
pub async fn once<T, E, F>(conn: &mut PgConnection, cx: &Context, effect: F) -> Result<T, E>
where
    T: Serialize + DeserializeOwned,
    E: From<InboxError>,
    F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, E>>,
{
    row::once::<Postgres, _, _, _>(conn, cx, effect).await
}

/// Answers the probe of a key whose handler uses [`once`]: found, with the row's result, or not
/// found. An earlier attempt that is still in an open transaction is no danger: the next one waits
/// for it in [`once`].
///
/// What the database does not answer is [`Unknown`](Probed::Unknown), and a line of the log.
///
/// # Cancellation safety
/// Reads only.
pub async fn probe<T: DeserializeOwned>(conn: &mut PgConnection, cx: &Context) -> Probed<T> {
    row::probe::<Postgres, T>(conn, cx).await
}

/// [`probe`] with a connection of this pool, as [`Call::probe`](palisade::idempotency::Call::probe)
/// and the layer of palisade-tower take it. No connection within the pool's `acquire_timeout` is
/// [`Unknown`](Probed::Unknown), too.
pub fn prober<T>(
    pool: PgPool,
) -> impl Fn(Context) -> BoxFuture<'static, Probed<T>> + Clone + Send + Sync + 'static
where
    T: DeserializeOwned + Send + 'static,
{
    row::prober::<Postgres, T>(pool)
}

/// Deletes at most `at_most` rows of a namespace that are older than `older_than`, and returns
/// their number. Nothing may ask for them any more: keep them at least as long as the namespace's
/// retention.
///
/// # Errors
/// Those of the database.
///
/// # Cancellation safety
/// Dropped, it may or may not have deleted them; it may be called again.
pub async fn purge(
    conn: &mut PgConnection,
    namespace: &str,
    older_than: Duration,
    at_most: u32,
) -> Result<u64, sqlx::Error> {
    let mut tx = conn.begin().await?;
    let done = sqlx::query(
        "DELETE FROM palisade_inbox WHERE namespace = $1 AND key IN \
         (SELECT key FROM palisade_inbox WHERE namespace = $1 \
          AND done_at < now() - make_interval(secs => $2) \
          ORDER BY done_at LIMIT $3)",
    )
    .bind(namespace)
    .bind(older_than.as_secs_f64())
    .bind(i64::from(at_most))
    .persistent(keeps_statements(&tx))
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(done.rows_affected())
}

impl Rows for Postgres {
    async fn enter(conn: &mut PgConnection, cx: &Context) -> Result<bool, sqlx::Error> {
        let entered = sqlx::query(
            "INSERT INTO palisade_inbox (namespace, key, fence, attempt) VALUES ($1, $2, $3, $4) \
             ON CONFLICT DO NOTHING",
        )
        .bind(cx.namespace())
        .bind(cx.key())
        .bind(fence::value(cx.fencing_token()))
        .bind(i64::from(cx.attempt()))
        .persistent(keeps_statements(conn))
        .execute(conn)
        .await?;
        Ok(entered.rows_affected() > 0)
    }

    async fn find(
        conn: &mut PgConnection,
        cx: &Context,
        entered: bool,
    ) -> Result<Found, sqlx::Error> {
        if entered {
            return row_of(conn, cx).await;
        }
        let mut tx = conn.begin().await?;
        let found = row_of(&mut tx, cx).await?;
        tx.rollback().await?;
        Ok(found)
    }

    async fn finish(
        conn: &mut PgConnection,
        cx: &Context,
        json: String,
    ) -> Result<(), sqlx::Error> {
        let set = "UPDATE palisade_inbox SET result = $3 WHERE namespace = $1 AND key = $2";
        let set = sqlx::query(set).bind(cx.namespace()).bind(cx.key()).bind(json);
        set.persistent(keeps_statements(conn)).execute(conn).await.map(drop)
    }
}

async fn row_of(conn: &mut PgConnection, cx: &Context) -> Result<Found, sqlx::Error> {
    let find = "SELECT result FROM palisade_inbox WHERE namespace = $1 AND key = $2";
    let find = sqlx::query_scalar(find).bind(cx.namespace()).bind(cx.key());
    let find = find.persistent(keeps_statements(conn));
    let found: Option<Option<String>> = find.fetch_optional(conn).await?;
    Ok(found.map(|result| result.map(String::into_bytes)))
}
