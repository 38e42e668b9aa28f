//! The inbox: a row for each key, written in the transaction of the key's effect.
//!
//! An effect and the row that records it are committed together or not at all. So within one
//! database an effect happens once, whatever crashes, and the row answers the
//! [`probe`](palisade::idempotency::Call::probe) of the key's record on Redis.
//!
//! Each record has its own row: keys of another prefix or namespace have other rows. A row contains
//! the request's fingerprint, and is valid for as long as the nodes keep the record
//! ([`Context::kept_for`]). After that the key counts as new, here as on the nodes.

use futures_core::future::BoxFuture;
use palisade::Probed;
use palisade::idempotency::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{Connection as _, PgConnection, PgPool, Postgres};

use crate::error::InboxError;
use crate::fence;
use crate::pooled::keeps_statements;
use crate::row::{self, Found, Rows, SPARE, micros, record};

/// Runs `effect` and writes the key's row with its result, unless the row exists. If it exists,
/// `effect` does not run, and the row's result is returned. If the row has another request's
/// fingerprint, `effect` does not run, and the error is [`InboxError::Mismatch`].
///
/// `effect` and the row are one savepoint of the transaction that `conn` is in: if `effect` fails,
/// nothing of both is left, even if the transaction is committed. On a connection without a
/// transaction they are a separate transaction.
///
/// If another attempt at the key is in an open transaction, this call waits for its end; the
/// connection's `lock_timeout` bounds that wait. At isolation levels above `READ COMMITTED` the
/// wait may end in a serialization failure; then run the whole transaction again.
///
/// # Errors
/// The errors of `effect`, and [`InboxError`].
///
/// # Cancellation safety
/// If the future is dropped, neither the effect nor the row is left after the transaction has
/// ended: sqlx rolls back.
pub async fn once<T, E, F>(conn: &mut PgConnection, cx: &Context, effect: F) -> Result<T, E>
where
    T: Serialize + DeserializeOwned,
    E: From<InboxError>,
    F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, E>>,
{
    row::once::<Postgres, _, _, _>(conn, cx, effect).await
}

/// Answers the probe of a key whose handler uses [`once`]: found, with the row's result, or not
/// found. An earlier attempt that is still in an open transaction does no harm, because the next
/// attempt waits for it in [`once`].
///
/// If the database does not answer, the answer is [`Unknown`](Probed::Unknown), and a line is
/// logged. The answer is also unknown if the row is older than the retention: such a row may belong
/// to an earlier use of the key, or to the attempt in question if the probe had no answer for that
/// long. If such a row has another request's fingerprint, it belongs to an earlier use, and the
/// effect is not found.
///
/// # Cancellation safety
/// The call only reads, so the future may be dropped at any time.
pub async fn probe<T: DeserializeOwned>(conn: &mut PgConnection, cx: &Context) -> Probed<T> {
    row::probe::<Postgres, T>(conn, cx).await
}

/// Returns [`probe`] as a function that takes its connection from this pool, for
/// [`Call::probe`](palisade::idempotency::Call::probe) and for the layer of palisade-tower. If the
/// pool has no connection within its `acquire_timeout`, the answer is [`Unknown`](Probed::Unknown),
/// too.
pub fn prober<T>(
    pool: PgPool,
) -> impl Fn(Context) -> BoxFuture<'static, Probed<T>> + Clone + Send + Sync + 'static
where
    T: DeserializeOwned + Send + 'static,
{
    row::prober::<Postgres, T>(pool)
}

/// Deletes rows of a namespace whose validity ended at least a day ago, and returns their number,
/// which is at most `at_most`.
///
/// The nodes may still have the record of such a row: they keep it for as long as the key is tried
/// again, even if no probe had an answer in that time. Once its row is deleted, a probe does not
/// find the effect, and the effect happens again. So do not purge a namespace while its probes have
/// no answer or its parked keys are undecided.
///
/// # Errors
/// The errors of the database.
///
/// # Cancellation safety
/// If the future is dropped, the rows may or may not be deleted; the call may be repeated.
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
             WHERE i.counts_until <= clock_timestamp() - $8 * interval '1 microsecond'",
        )
        .bind(record(cx))
        .bind(cx.namespace())
        .bind(cx.key())
        .bind(cx.fingerprint().map(<[u8; 32]>::as_slice))
        .bind(fence::value(cx.fencing_token()))
        .bind(i64::from(cx.attempt()))
        .bind(micros(cx.kept_for()))
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
        let set = sqlx::query(set).bind(record(cx)).bind(json).bind(micros(cx.kept_for()));
        set.persistent(keeps_statements(conn)).execute(conn).await.map(drop)
    }
}

async fn row_of(conn: &mut PgConnection, cx: &Context) -> Result<Option<Found>, sqlx::Error> {
    type Row = (Option<String>, Option<Vec<u8>>, bool);
    let find = "SELECT result, fingerprint, \
                counts_until > clock_timestamp() - $2 * interval '1 microsecond' \
                FROM palisade_inbox WHERE record = $1";
    let find = sqlx::query_as(find).bind(record(cx)).bind(micros(cx.elapsed()));
    let found: Option<Row> = find.persistent(keeps_statements(conn)).fetch_optional(conn).await?;
    Ok(found.map(|(result, fingerprint, counts)| Found {
        result: result.map(String::into_bytes),
        fingerprint,
        counts,
    }))
}
