//! The inbox: a table with a row for each idempotency key. The request of a key has an effect in
//! the database. One transaction writes this effect and the row.
//!
//! An effect and its row are either both committed or both not committed. So within one database an
//! effect happens only once, even after a crash. If the key's record on Redis has no result after a
//! crash, the [`probe`](palisade::idempotency::Call::probe) reads the row.
//!
//! Equal keys of different prefixes or namespaces have different rows, as they have different
//! records on the nodes. A row contains the request's fingerprint. A row is valid for as long as
//! the nodes keep the record ([`Context::kept_for`]) and a minute. Each attempt prolongs the
//! record on the nodes. An attempt that [`once`] answers from the row also prolongs the row. After
//! that time another request may use the key anew. The same request, with the same fingerprint, may
//! not: attempts that failed before they reached `once` may have prolonged the record alone. It
//! gets [`InboxError::Outlived`] in place of a second effect, until its row is deleted. So a
//! request that is made again after its retention, under the same key and with the same body, does
//! not run again by itself.

pub(crate) mod generic;

use futures_core::future::BoxFuture;
use palisade::Probed;
use palisade::idempotency::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{Connection as _, PgConnection, PgPool, Postgres};

use self::generic::{Found, Rows, SPARE, lasts, micros, record};
use crate::error::InboxError;
use crate::fence;
use crate::pooled::keeps_statements;

/// Runs `effect` and writes the result of `effect` into the key's row. If the key's row exists,
/// `effect` does not run, and the function returns the result in the row. If the row has the
/// fingerprint of another request, `effect` does not run, and the error is
/// [`InboxError::Mismatch`]. If the row is older than the retention and may belong to this request,
/// the error is [`InboxError::Outlived`]: if both have the same fingerprint, or if one of them has
/// none and this is not the key's first attempt. Attempts that ended by
/// [`Failed::retry`](palisade::Failed::retry) are not counted: an attempt after them is the first.
///
/// An attempt that gets the result in the row prolongs the row's validity, so that the row lives as
/// long as the key's record on the nodes. If the transaction of this attempt is rolled back, the
/// row is not prolonged.
///
/// If `conn` is in a transaction, `effect` and the row are written in a savepoint of this
/// transaction. If `effect` fails, the savepoint is rolled back. Then neither the writes of
/// `effect` nor the row are left, even if the transaction is committed afterwards. If `conn` is in
/// no transaction, the function begins a transaction and commits it.
///
/// Another attempt at the key may be in a transaction that is still open. Then the call waits for
/// the end of that transaction, for at most the connection's `lock_timeout`. At isolation levels
/// above `READ COMMITTED` the wait may end with a serialization failure. Then run the whole
/// transaction again.
///
/// # Errors
/// The errors of `effect`, and [`InboxError`].
///
/// # Cancellation safety
/// If the future is dropped, sqlx rolls back. After the end of the transaction neither the effect
/// nor the row is left. If `conn` is in no transaction, the function may have sent its commit
/// already, and this commit may still happen. The caller can safely call the function again.
pub async fn once<T, E, F>(conn: &mut PgConnection, cx: &Context, effect: F) -> Result<T, E>
where
    T: Serialize + DeserializeOwned,
    E: From<InboxError>,
    F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, E>>,
{
    generic::once::<Postgres, _, _, _>(conn, cx, effect).await
}

/// Looks for the effect of an earlier attempt at a key. The handler of the key must use [`once`].
///
/// - Returns [`Found`](Probed::Found) with the result if the key has a valid row.
/// - Returns [`NotFound`](Probed::NotFound) if the key has no row, or if its row is older than the
///   retention and has the fingerprint of another request. Such a row belongs to an earlier use of
///   the key.
/// - Returns [`Unknown`](Probed::Unknown) and logs a warning if the database returns an error, or
///   if the row is older than the retention and may belong to this request. Such a row usually
///   belongs to an earlier use of the key. But it belongs to this request if no probe has succeeded
///   during the whole retention.
///
/// If an earlier attempt is in a transaction that is still open, the probe does not find the row.
/// This does no harm, because the next attempt waits in [`once`] for the end of that transaction.
///
/// # Cancellation safety
/// The call only reads, so the future may be dropped at any time.
pub async fn probe<T: DeserializeOwned>(conn: &mut PgConnection, cx: &Context) -> Probed<T> {
    generic::probe::<Postgres, T>(conn, cx).await
}

/// Returns [`probe`] as a function that gets its connection from `pool`. The function is made for
/// [`Call::probe`](palisade::idempotency::Call::probe) and for the layer of palisade-tower. The
/// function also returns [`Unknown`](Probed::Unknown) if the pool has no connection within its
/// `acquire_timeout`.
pub fn prober<T>(
    pool: PgPool,
) -> impl Fn(Context) -> BoxFuture<'static, Probed<T>> + Clone + Send + Sync + 'static
where
    T: DeserializeOwned + Send + 'static,
{
    generic::prober::<Postgres, T>(pool)
}

/// Deletes rows of a namespace whose validity ended at least a day ago. Deletes at most `at_most`
/// rows and returns the number of deleted rows. An older version of this crate used the table
/// `palisade_inbox_unnamed`. A row in this table is deleted when it is older than the longest
/// possible retention.
///
/// The nodes may still have the record of a deleted row. They keep a record for as long as the key
/// is tried again, even if all probes fail in that time. After the row is deleted, a probe returns
/// `NotFound`, and the effect happens again. So do not purge a namespace while its probes fail, nor
/// while its calls get [`InboxError::Outlived`] or a parked key waits for a person's decision. A
/// call that gets `Outlived` begins the row's day again if its transaction is committed, or if it
/// has none; the usual handler, which returns the error, rolls that back.
///
/// # Errors
/// The errors of the database.
///
/// # Cancellation safety
/// If the future is dropped, the rows may or may not be deleted. The caller can repeat the call.
pub async fn purge(
    conn: &mut PgConnection,
    namespace: &str,
    at_most: u32,
) -> Result<u64, sqlx::Error> {
    let delete = "DELETE FROM palisade_inbox WHERE record IN \
                  (SELECT record FROM palisade_inbox WHERE namespace = $1 \
                   AND counts_until < clock_timestamp() - $2 * interval '1 microsecond' \
                   ORDER BY counts_until LIMIT $3)";
    let delete = sqlx::query(delete).bind(namespace).bind(micros(SPARE)).bind(i64::from(at_most));
    let mut tx = conn.begin().await?;
    let deleted = delete.persistent(keeps_statements(&tx)).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(deleted.rows_affected())
}

impl Rows for Postgres {
    async fn enter(conn: &mut PgConnection, cx: &Context) -> Result<bool, sqlx::Error> {
        let entered = sqlx::query(
            "INSERT INTO palisade_inbox AS i \
             (record, namespace, key, fingerprint, fence, attempt, counts_until) \
             VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp() + $7 * interval '1 microsecond') \
             ON CONFLICT (record) DO UPDATE SET fingerprint = excluded.fingerprint, \
             fence = excluded.fence, attempt = excluded.attempt, result = NULL, \
             done_at = excluded.done_at, counts_until = excluded.counts_until \
             WHERE i.counts_until <= clock_timestamp() - $8 * interval '1 microsecond' \
             AND coalesce(i.fingerprint <> excluded.fingerprint, excluded.attempt <= 1)",
        )
        .bind(record(cx))
        .bind(cx.namespace())
        .bind(cx.key())
        .bind(cx.fingerprint().map(<[u8; 32]>::as_slice))
        .bind(fence::value(cx.fencing_token()))
        .bind(i64::from(cx.attempt()))
        .bind(lasts(cx))
        .bind(micros(cx.elapsed()))
        .persistent(keeps_statements(conn))
        .execute(conn)
        .await?;
        Ok(entered.rows_affected() > 0)
    }

    async fn find(
        conn: &mut PgConnection,
        cx: &Context,
        entered: bool,
    ) -> Result<Option<Found>, sqlx::Error> {
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
        let set = "UPDATE palisade_inbox SET result = $2, done_at = clock_timestamp(), \
                   counts_until = clock_timestamp() + $3 * interval '1 microsecond' \
                   WHERE record = $1";
        let set = sqlx::query(set).bind(record(cx)).bind(json).bind(lasts(cx));
        set.persistent(keeps_statements(conn)).execute(conn).await.map(drop)
    }

    async fn prolong(conn: &mut PgConnection, cx: &Context, to: i64) -> Result<(), sqlx::Error> {
        let set = "UPDATE palisade_inbox \
                   SET counts_until = clock_timestamp() + $2 * interval '1 microsecond' \
                   WHERE record = $1";
        let set = sqlx::query(set).bind(record(cx)).bind(to);
        set.persistent(keeps_statements(conn)).execute(conn).await.map(drop)
    }
}

async fn row_of(conn: &mut PgConnection, cx: &Context) -> Result<Option<Found>, sqlx::Error> {
    type Row = (Option<String>, Option<Vec<u8>>, bool, bool);
    let find = "SELECT result, fingerprint, \
                counts_until > clock_timestamp() - $2 * interval '1 microsecond', \
                counts_until < clock_timestamp() + $3 * interval '1 microsecond' \
                FROM palisade_inbox WHERE record = $1";
    let find = sqlx::query_as(find).bind(record(cx)).bind(micros(cx.elapsed()));
    let find = find.bind(micros(cx.kept_for())).persistent(keeps_statements(conn));
    let found: Option<Row> = find.fetch_optional(conn).await?;
    Ok(found.map(|(result, fingerprint, counts, ends_early)| Found {
        result: result.map(String::into_bytes),
        fingerprint,
        counts,
        ends_early,
    }))
}
