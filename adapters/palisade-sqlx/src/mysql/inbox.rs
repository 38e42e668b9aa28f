//! The inbox in MariaDB and MySQL; see [the module for PostgreSQL](crate::inbox).

use futures_core::future::BoxFuture;
use palisade::Probed;
use palisade::idempotency::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{MySql, MySqlConnection, MySqlPool};

use crate::error::InboxError;
use crate::fence;
use crate::inbox::generic::{self, Found, Rows, SPARE, lasts, micros, record};

/// Runs `effect` and writes the result of `effect` into the key's row, unless the row exists; see
/// [`inbox::once`](crate::inbox::once). Another attempt at the key may be in a transaction that is
/// still open. Then the call waits for the end of that transaction, for at most the server's
/// `innodb_lock_wait_timeout`. If the server reports a deadlock, the server has rolled back the
/// whole transaction. Then run the whole transaction again.
///
/// # Errors
/// The errors of `effect`, and [`InboxError`].
///
/// # Cancellation safety
/// If the future is dropped, sqlx rolls back. After the end of the transaction neither the effect
/// nor the row is left. If `conn` is in no transaction, the function may have sent its commit
/// already, and this commit may still happen. The caller can safely call the function again.
pub async fn once<T, E, F>(conn: &mut MySqlConnection, cx: &Context, effect: F) -> Result<T, E>
where
    T: Serialize + DeserializeOwned,
    E: From<InboxError>,
    F: for<'c> FnOnce(&'c mut MySqlConnection) -> BoxFuture<'c, Result<T, E>>,
{
    generic::once::<MySql, _, _, _>(conn, cx, effect).await
}

/// Looks for the effect of an earlier attempt at a key; see [`inbox::probe`](crate::inbox::probe).
///
/// # Cancellation safety
/// The call only reads, so the future may be dropped at any time.
pub async fn probe<T: DeserializeOwned>(conn: &mut MySqlConnection, cx: &Context) -> Probed<T> {
    generic::probe::<MySql, T>(conn, cx).await
}

/// Returns [`probe`] as a function that gets its connection from `pool`; see
/// [`inbox::prober`](crate::inbox::prober).
pub fn prober<T>(
    pool: MySqlPool,
) -> impl Fn(Context) -> BoxFuture<'static, Probed<T>> + Clone + Send + Sync + 'static
where
    T: DeserializeOwned + Send + 'static,
{
    generic::prober::<MySql, T>(pool)
}

/// Deletes rows of a namespace that are no longer valid; see [`inbox::purge`](crate::inbox::purge).
///
/// # Errors
/// The errors of the database.
///
/// # Cancellation safety
/// If the future is dropped, the rows may or may not be deleted. The caller can repeat the call.
pub async fn purge(
    conn: &mut MySqlConnection,
    namespace: &str,
    at_most: u32,
) -> Result<u64, sqlx::Error> {
    let delete = "DELETE FROM palisade_inbox WHERE namespace = ? \
                  AND counts_until < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND \
                  ORDER BY counts_until LIMIT ?";
    let delete = sqlx::query(delete).bind(namespace.as_bytes()).bind(micros(SPARE)).bind(at_most);
    Ok(delete.execute(conn).await?.rows_affected())
}

impl Rows for MySql {
    async fn enter(conn: &mut MySqlConnection, cx: &Context) -> Result<bool, sqlx::Error> {
        // `INSERT IGNORE` would ignore not only the error of an existing row, but also other
        // errors. So this statement is a plain `INSERT`.
        let entered = sqlx::query(
            "INSERT INTO palisade_inbox (record, namespace, `key`, fingerprint, fence, attempt, \
             done_at, counts_until) \
             VALUES (?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6), \
             UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)",
        )
        .bind(record(cx).into_bytes())
        .bind(cx.namespace().as_bytes())
        .bind(cx.key().as_bytes())
        .bind(cx.fingerprint().map(<[u8; 32]>::as_slice))
        .bind(fence::value(cx.fencing_token()))
        .bind(i64::from(cx.attempt()))
        .bind(lasts(cx))
        .execute(&mut *conn)
        .await;
        match entered {
            Ok(done) => Ok(done.rows_affected() > 0),
            Err(sqlx::Error::Database(refused)) if refused.is_unique_violation() => {
                enter_again(conn, cx).await
            }
            Err(error) => Err(error),
        }
    }

    async fn find(
        conn: &mut MySqlConnection,
        cx: &Context,
        entered: bool,
    ) -> Result<Option<Found>, sqlx::Error> {
        type Row = (Option<Vec<u8>>, Option<Vec<u8>>, bool, bool);
        // After `enter` in the same transaction, this read must lock the row. A plain read would
        // return the transaction's snapshot, and the snapshot may be older than the row.
        let sql = if entered {
            "SELECT result, fingerprint, \
             counts_until > UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND, \
             counts_until < UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND \
             FROM palisade_inbox WHERE record = ? LOCK IN SHARE MODE"
        } else {
            "SELECT result, fingerprint, \
             counts_until > UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND, \
             counts_until < UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND \
             FROM palisade_inbox WHERE record = ?"
        };
        let find = sqlx::query_as(sql).bind(micros(cx.elapsed())).bind(micros(cx.kept_for()));
        let row: Option<Row> = find.bind(record(cx).into_bytes()).fetch_optional(conn).await?;
        Ok(row.map(|(result, fingerprint, counts, ends_early)| Found {
            result,
            fingerprint,
            counts,
            ends_early,
        }))
    }

    async fn finish(
        conn: &mut MySqlConnection,
        cx: &Context,
        json: String,
    ) -> Result<(), sqlx::Error> {
        sqlx::query(
            "UPDATE palisade_inbox SET result = ?, done_at = UTC_TIMESTAMP(6), \
             counts_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE record = ?",
        )
        .bind(json.into_bytes())
        .bind(lasts(cx))
        .bind(record(cx).into_bytes())
        .execute(conn)
        .await
        .map(drop)
    }

    async fn prolong(conn: &mut MySqlConnection, cx: &Context, to: i64) -> Result<(), sqlx::Error> {
        sqlx::query(
            "UPDATE palisade_inbox SET counts_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND \
             WHERE record = ?",
        )
        .bind(to)
        .bind(record(cx).into_bytes())
        .execute(conn)
        .await
        .map(drop)
    }
}

/// Overwrites the row of the key's record as [`Rows::enter`] says.
async fn enter_again(conn: &mut MySqlConnection, cx: &Context) -> Result<bool, sqlx::Error> {
    // This read takes only a shared lock. So transactions that find a valid row do not wait for
    // each other. If the row is no longer valid, the `UPDATE` locks it for writing.
    let over = "SELECT 1 FROM palisade_inbox WHERE record = ? \
                AND counts_until <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND \
                AND COALESCE(fingerprint <> ?, ? <= 1) LOCK IN SHARE MODE";
    let over = sqlx::query(over)
        .bind(record(cx).into_bytes())
        .bind(micros(cx.elapsed()))
        .bind(cx.fingerprint().map(<[u8; 32]>::as_slice))
        .bind(i64::from(cx.attempt()));
    if over.fetch_optional(&mut *conn).await?.is_none() {
        return Ok(false);
    }
    // The read has locked the row. So no other transaction has changed the row since then.
    let done = sqlx::query(
        "UPDATE palisade_inbox SET fingerprint = ?, fence = ?, attempt = ?, result = NULL, \
         done_at = UTC_TIMESTAMP(6), \
         counts_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE record = ?",
    )
    .bind(cx.fingerprint().map(<[u8; 32]>::as_slice))
    .bind(fence::value(cx.fencing_token()))
    .bind(i64::from(cx.attempt()))
    .bind(lasts(cx))
    .bind(record(cx).into_bytes())
    .execute(conn)
    .await?;
    Ok(done.rows_affected() > 0)
}
