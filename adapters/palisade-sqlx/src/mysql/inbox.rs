//! The inbox in MariaDB and MySQL; see [the module for PostgreSQL](crate::inbox).

use futures_core::future::BoxFuture;
use palisade::Probed;
use palisade::idempotency::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{MySql, MySqlConnection, MySqlPool};

use crate::error::InboxError;
use crate::fence;
use crate::inbox::generic::{self, Found, Rows, SPARE, micros, record};

/// Runs `effect` and writes its result into the key's row, unless that row exists; see
/// [`inbox::once`](crate::inbox::once). If another attempt at the key is in a transaction that is
/// still open, the call waits for the end of that transaction, for at most the server's
/// `innodb_lock_wait_timeout`. If the server reports a deadlock, it has rolled back the whole
/// transaction, so run the whole transaction again.
///
/// # Errors
/// The errors of `effect`, and [`InboxError`].
///
/// # Cancellation safety
/// If the future is dropped, sqlx rolls back, so that neither the effect nor the row is left after
/// the transaction has ended. If `conn` is in no transaction, a commit that has already been sent
/// may still happen; to call again is safe.
pub async fn once<T, E, F>(conn: &mut MySqlConnection, cx: &Context, effect: F) -> Result<T, E>
where
    T: Serialize + DeserializeOwned,
    E: From<InboxError>,
    F: for<'c> FnOnce(&'c mut MySqlConnection) -> BoxFuture<'c, Result<T, E>>,
{
    generic::once::<MySql, _, _, _>(conn, cx, effect).await
}

/// Answers whether an earlier attempt at a key took effect; see
/// [`inbox::probe`](crate::inbox::probe).
///
/// # Cancellation safety
/// The call only reads, so the future may be dropped at any time.
pub async fn probe<T: DeserializeOwned>(conn: &mut MySqlConnection, cx: &Context) -> Probed<T> {
    generic::probe::<MySql, T>(conn, cx).await
}

/// Returns [`probe`] as a function that takes its connection from this pool; see
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
/// If the future is dropped, the rows may or may not be deleted; the call may be repeated.
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
        // Not `INSERT IGNORE`, which would also hide errors other than that the row exists.
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
        .bind(micros(cx.kept_for()))
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
        type Row = (Option<Vec<u8>>, Option<Vec<u8>>, bool);
        // After `enter` in the same transaction, the read has to lock the row, because a plain read
        // sees the transaction's snapshot, which may be older than the row.
        let sql = if entered {
            "SELECT result, fingerprint, \
             counts_until > UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND \
             FROM palisade_inbox WHERE record = ? LOCK IN SHARE MODE"
        } else {
            "SELECT result, fingerprint, \
             counts_until > UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND \
             FROM palisade_inbox WHERE record = ?"
        };
        let find = sqlx::query_as(sql).bind(micros(cx.elapsed())).bind(record(cx).into_bytes());
        let row: Option<Row> = find.fetch_optional(conn).await?;
        Ok(row.map(|(result, fingerprint, counts)| Found { result, fingerprint, counts }))
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
        .bind(micros(cx.kept_for()))
        .bind(record(cx).into_bytes())
        .execute(conn)
        .await
        .map(drop)
    }
}

/// Overwrites the row of the key's record if it is no longer valid. Returns false if it is valid.
async fn enter_again(conn: &mut MySqlConnection, cx: &Context) -> Result<bool, sqlx::Error> {
    // This read takes only a shared lock, so that transactions that find a valid row do not wait
    // for each other. Only a row that is no longer valid is locked for writing, by the `UPDATE`.
    let over = "SELECT 1 FROM palisade_inbox WHERE record = ? \
                AND counts_until <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND LOCK IN SHARE MODE";
    let over = sqlx::query(over).bind(record(cx).into_bytes()).bind(micros(cx.elapsed()));
    if over.fetch_optional(&mut *conn).await?.is_none() {
        return Ok(false);
    }
    // The read has locked the row, so no other transaction has changed it since.
    let done = sqlx::query(
        "UPDATE palisade_inbox SET fingerprint = ?, fence = ?, attempt = ?, result = NULL, \
         done_at = UTC_TIMESTAMP(6), \
         counts_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE record = ?",
    )
    .bind(cx.fingerprint().map(<[u8; 32]>::as_slice))
    .bind(fence::value(cx.fencing_token()))
    .bind(i64::from(cx.attempt()))
    .bind(micros(cx.kept_for()))
    .bind(record(cx).into_bytes())
    .execute(conn)
    .await?;
    Ok(done.rows_affected() > 0)
}
