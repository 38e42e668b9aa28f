//! The inbox, a table with a row for each idempotency key. The row is written in the transaction of
//! the effect that the key's request has in the database.
//!
//! An effect and its row are committed together or not at all. So within one database an effect
//! happens once, whatever crashes. If the key's record on Redis has no result after a crash, the
//! row answers the [`probe`](palisade::idempotency::Call::probe).
//!
//! Equal keys of different prefixes or namespaces have different rows, as they have different
//! records on the nodes. A row contains the request's fingerprint, and is valid for as long as the
//! nodes keep the record ([`Context::kept_for`]). After that the key counts as new, in the database
//! as on the nodes.

pub(crate) mod generic;

use futures_core::future::BoxFuture;
use palisade::Probed;
use palisade::idempotency::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{Connection as _, PgConnection, PgPool, Postgres};

use self::generic::{Found, Rows, SPARE, micros, record};
use crate::error::InboxError;
use crate::fence;
use crate::pooled::keeps_statements;

/// Runs `effect` and writes its result into the key's row, unless that row exists. If it exists,
/// `effect` does not run, and the result in the row is returned. If the row has the fingerprint of
/// another request, `effect` does not run, and the error is [`InboxError::Mismatch`].
///
/// If `conn` is in a transaction, `effect` and the row are written in a savepoint of it. If
/// `effect` fails, nothing of either is left, even if the transaction is committed afterwards. If
/// `conn` is in no transaction, the function makes one and commits it.
///
/// If another attempt at the key is in a transaction that is still open, the call waits for the end
/// of that transaction, for at most the connection's `lock_timeout`. At isolation levels above
/// `READ COMMITTED` the wait may end in a serialization failure; then run the whole transaction
/// again.
///
/// # Errors
/// The errors of `effect`, and [`InboxError`].
///
/// # Cancellation safety
/// If the future is dropped, sqlx rolls back, so that neither the effect nor the row is left after
/// the transaction has ended. If `conn` is in no transaction, a commit that has already been sent
/// may still happen; to call again is safe.
pub async fn once<T, E, F>(conn: &mut PgConnection, cx: &Context, effect: F) -> Result<T, E>
where
    T: Serialize + DeserializeOwned,
    E: From<InboxError>,
    F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, Result<T, E>>,
{
    generic::once::<Postgres, _, _, _>(conn, cx, effect).await
}

/// Answers whether an earlier attempt at a key took effect, if its handler uses [`once`]. Returns
/// [`Found`](Probed::Found) with the result in the key's row, or [`NotFound`](Probed::NotFound) if
/// there is no row. If an earlier attempt is in a transaction that is still open, its row is not
/// found; that does no harm, because the next attempt waits for that transaction in [`once`].
///
/// If the database returns an error, the answer is [`Unknown`](Probed::Unknown), and a warning is
/// logged. The answer is also `Unknown` if the row is older than the retention. Such a row may
/// belong to an earlier use of the key, but also to the attempt in question, if probes could not be
/// answered for that long. If the row is that old and has the fingerprint of another request, it
/// does belong to an earlier use, so the answer is `NotFound`.
///
/// # Cancellation safety
/// The call only reads, so the future may be dropped at any time.
pub async fn probe<T: DeserializeOwned>(conn: &mut PgConnection, cx: &Context) -> Probed<T> {
    generic::probe::<Postgres, T>(conn, cx).await
}

/// Returns [`probe`] as a function that takes its connection from this pool, for
/// [`Call::probe`](palisade::idempotency::Call::probe) and for the layer of palisade-tower. The
/// function also answers [`Unknown`](Probed::Unknown) if the pool has no connection within its
/// `acquire_timeout`.
pub fn prober<T>(
    pool: PgPool,
) -> impl Fn(Context) -> BoxFuture<'static, Probed<T>> + Clone + Send + Sync + 'static
where
    T: DeserializeOwned + Send + 'static,
{
    generic::prober::<Postgres, T>(pool)
}

/// Deletes at most `at_most` rows of a namespace that have not been valid for a day or longer, and
/// returns the number of deleted rows. Rows in `palisade_inbox_unnamed`, the table of an older
/// version of this crate, are deleted when they are older than any retention.
///
/// The nodes may still have the record of such a row, because they keep it for as long as the key
/// is tried again, even if no probe could be answered in that time. Once the row is deleted, a
/// probe answers that there was no effect, and the effect happens again. So do not purge a
/// namespace while its probes cannot be answered, or while no person has decided about its parked
/// keys.
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
