//! The inbox: a key's row in the transaction of its effect.
//!
//! An effect and the row that says that it happened are committed together or not at all. So within
//! one database an effect happens once, whatever crashes, and the row answers
//! the [`probe`](palisade::idempotency::Call::probe) of the key's record on Redis.
//!
//! The row is the record's: keys of another prefix or namespace have rows of their own. It has the
//! request's fingerprint, and counts for as long as the nodes keep the record
//! ([`Context::kept_for`]). Afterwards the key is new here as it is there.

use futures_core::future::BoxFuture;
use palisade::Probed;
use palisade::idempotency::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{Connection as _, PgConnection, PgPool, Postgres};

use crate::error::InboxError;
use crate::fence;
use crate::pooled::keeps_statements;
use crate::row::{self, Found, Rows, SPARE, UNNAMED, micros, record};

/// Runs `effect` unless the key's row is there, and writes the row with its result. If it is there,
/// nothing runs and the result is the row's. A row whose fingerprint is another request's is
/// [`InboxError::Mismatch`], and nothing runs.
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
/// What the database does not answer is [`Unknown`](Probed::Unknown), and a line of the log. So is
/// a row older than the retention: it may be of an earlier use of the key, or of the attempt that
/// is asked for, if the probe had no answer for that long. If its fingerprint is another request's,
/// it is of an earlier use, and the effect is not found.
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

/// Deletes rows of a namespace that count no longer and have not for a day, at most so many, and
/// returns how many. Of the table's first form those that are older than any retention.
///
/// The nodes may still have the record of such a row: they keep it for as long as the key is tried
/// again, also if no probe had an answer in that time. After its row is deleted, a probe does not
/// find the effect, and it happens again. So delete none while probes of the namespace have no
/// answer or its parked keys are not decided about.
///
/// # Errors
/// Those of the database.
///
/// # Cancellation safety
/// Dropped, it may or may not have deleted them; it may be called again.
pub async fn purge(
    conn: &mut PgConnection,
    namespace: &str,
    at_most: u32,
) -> Result<u64, sqlx::Error> {
    let mut tx = conn.begin().await?;
    let mut deleted = 0;
    for (sql, age) in [
        (
            "DELETE FROM palisade_inbox WHERE record IN \
             (SELECT record FROM palisade_inbox WHERE namespace = $1 \
              AND counts_until < clock_timestamp() - $2 * interval '1 microsecond' \
              ORDER BY counts_until LIMIT $3)",
            SPARE,
        ),
        (
            "DELETE FROM palisade_inbox_unnamed WHERE namespace = $1 AND key IN \
             (SELECT key FROM palisade_inbox_unnamed WHERE namespace = $1 \
              AND done_at < clock_timestamp() - $2 * interval '1 microsecond' LIMIT $3)",
            UNNAMED,
        ),
    ] {
        let rest = i64::from(at_most) - i64::try_from(deleted).unwrap_or(i64::MAX);
        let delete = sqlx::query(sql).bind(namespace).bind(micros(age)).bind(rest.max(0));
        let done = delete.persistent(keeps_statements(&tx)).execute(&mut *tx).await?;
        deleted += done.rows_affected();
    }
    tx.commit().await?;
    Ok(deleted)
}

impl Rows for Postgres {
    async fn enter(conn: &mut PgConnection, cx: &Context) -> Result<bool, sqlx::Error> {
        let entered = sqlx::query(
            "INSERT INTO palisade_inbox AS i \
             (record, namespace, key, fingerprint, fence, attempt, counts_until) \
             SELECT $1, $2, $3, $4, $5, $6, clock_timestamp() + $7 * interval '1 microsecond' \
             WHERE NOT EXISTS \
             (SELECT FROM palisade_inbox_unnamed WHERE namespace = $2 AND key = $3) \
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
    type Row = (Option<String>, Option<Vec<u8>>, bool, bool);
    let find = "SELECT result, fingerprint, false AS unnamed, \
                counts_until > clock_timestamp() - $2 * interval '1 microsecond' AS counts \
                FROM palisade_inbox WHERE record = $1 \
                UNION ALL SELECT NULL, NULL, true, true FROM palisade_inbox_unnamed \
                WHERE namespace = $3 AND key = $4 ORDER BY unnamed LIMIT 1";
    let find = sqlx::query_as(find).bind(record(cx)).bind(micros(cx.elapsed()));
    let find = find.bind(cx.namespace()).bind(cx.key()).persistent(keeps_statements(conn));
    let found: Option<Row> = find.fetch_optional(conn).await?;
    Ok(found.map(|(result, fingerprint, unnamed, counts)| {
        if unnamed {
            return Found::Unnamed;
        }
        Found::Row { result: result.map(String::into_bytes), fingerprint, counts }
    }))
}
