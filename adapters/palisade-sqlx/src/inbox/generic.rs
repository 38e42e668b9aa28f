//! The part of the inbox that is the same for all databases; the statements differ ([`Rows`]).

use std::future::Future;
use std::time::Duration;

use futures_core::future::BoxFuture;
use palisade::Probed;
use palisade::idempotency::Context;
use palisade::internal::to_json;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{Connection as _, Database, Pool};

use crate::error::InboxError;

pub(crate) struct Found {
    /// The result of the effect as JSON; `None` if the row has no result.
    pub(crate) result: Option<Vec<u8>>,
    /// Fingerprint of the request that wrote the row.
    pub(crate) fingerprint: Option<Vec<u8>>,
    /// True if the row is valid. False if the nodes may already have dropped the key's idempotency
    /// record.
    pub(crate) counts: bool,
    /// True if the nodes keep a record that is written now for longer than the row is valid.
    pub(crate) ends_early: bool,
}

/// Time for which an inbox row is kept after the end of its validity. If an attempt was claimed
/// before the end of the validity, the attempt treats the row as valid. The handler of this attempt
/// may run for this time before it reads the row.
pub(crate) const SPARE: Duration = Duration::from_hours(24);

/// Time for which a row counts longer than the nodes surely keep the record. Within it a replay
/// does not write the row again: two attempts that have read it together would deadlock in MariaDB.
const APART: Duration = Duration::from_mins(1);

/// Returns the time in microseconds for which a row counts from now on.
pub(crate) fn lasts(cx: &Context) -> i64 {
    micros(cx.kept_for() + APART)
}

/// Returns the primary key of the inbox row for the call's idempotency record. The primary key has
/// 32 hexadecimal digits that depend on the prefix, the namespace and the key.
pub(crate) fn record(cx: &Context) -> String {
    cx.child_key("palisade-sqlx: inbox")
}

pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// Each database has its own dialect.
pub(crate) trait Rows: Database {
    /// Writes the row of the key's record. The row has no result yet. Overwrites a row that is no
    /// longer valid, unless it [may be this request's](may_be_ours). Returns false if there is
    /// another row, or a row in `palisade_inbox_unnamed`.
    /// If another transaction has written the row, waits until that transaction has ended.
    fn enter(
        conn: &mut Self::Connection,
        cx: &Context,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Reads the row of the key's record. If `entered` is true, [`enter`](Self::enter) has returned
    /// false in the same transaction, because it found that row.
    fn find(
        conn: &mut Self::Connection,
        cx: &Context,
        entered: bool,
    ) -> impl Future<Output = Result<Option<Found>, sqlx::Error>> + Send;

    /// Writes the result `json` into the row of the key's record. From then on the row is valid for
    /// as long as the nodes keep the record.
    fn finish(
        conn: &mut Self::Connection,
        cx: &Context,
        json: String,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Moves the end of the row's validity to `to` microseconds from now on; `to` may be negative.
    fn prolong(
        conn: &mut Self::Connection,
        cx: &Context,
        to: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

/// The function `once` of each database.
pub(crate) async fn once<D, T, E, F>(
    conn: &mut D::Connection,
    cx: &Context,
    effect: F,
) -> Result<T, E>
where
    D: Rows,
    T: Serialize + DeserializeOwned,
    E: From<InboxError>,
    F: for<'c> FnOnce(&'c mut D::Connection) -> BoxFuture<'c, Result<T, E>>,
{
    let sql = |error| InboxError::Sql { key: name(cx), error };
    let mut unit = conn.begin().await.map_err(sql)?;
    if !D::enter(&mut unit, cx).await.map_err(sql)? {
        let found = D::find(&mut unit, cx, true).await;
        if let Ok(Some(Found { counts: false, fingerprint, .. })) = &found
            && may_be_ours(cx, fingerprint.as_deref())
        {
            // The row stays over for this attempt, and its day until `purge` begins again.
            D::prolong(&mut unit, cx, -micros(cx.elapsed() + APART)).await.map_err(sql)?;
            unit.commit().await.map_err(sql)?;
            return Err(InboxError::Outlived { key: name(cx) }.into());
        }
        let ends_early = matches!(&found, Ok(Some(found)) if found.ends_early);
        let Some(found) = read(cx, found)? else {
            unit.rollback().await.map_err(sql)?;
            // The row was deleted after `enter` had found it and before `find` read it. Its effect
            // may have happened. So the effect does not run here, and the caller gets an error.
            return Err(InboxError::NoResult { key: name(cx) }.into());
        };
        // The claim of this attempt prolonged the record on the nodes, so the row has to live as
        // long: attempts that may be repeated are not counted, and the next one is the first again.
        if ends_early {
            D::prolong(&mut unit, cx, lasts(cx)).await.map_err(sql)?;
            unit.commit().await.map_err(sql)?;
        } else {
            unit.rollback().await.map_err(sql)?;
        }
        return Ok(found);
    }
    let value = match effect(&mut unit).await {
        Ok(value) => value,
        Err(error) => {
            unit.rollback().await.map_err(sql)?;
            return Err(error);
        }
    };
    // What the nodes would refuse is refused before the commit.
    let json = to_json(&value).map_err(|(what, error)| codec(cx, what, error))?;
    D::finish(&mut unit, cx, json).await.map_err(sql)?;
    unit.commit().await.map_err(sql)?;
    Ok(value)
}

/// The function `probe` of each database.
pub(crate) async fn probe<D: Rows, T: DeserializeOwned>(
    conn: &mut D::Connection,
    cx: &Context,
) -> Probed<T> {
    let found = D::find(conn, cx, false).await;
    if let Ok(Some(Found { counts: false, fingerprint, .. })) = &found {
        // If the fingerprints differ, the row belongs to an earlier use of the key. `once`
        // overwrites it with the row of this request.
        if differs(cx, fingerprint.as_deref()) {
            return Probed::NotFound;
        }
        // The row is too old to be valid. The row may belong to an earlier use of the key or to the
        // earlier attempt at this request. The nodes keep the record for as long as the key is
        // tried again. But the row is valid only for a fixed time after the effect.
        tracing::warn!(
            target: "palisade::sqlx", key = %name(cx),
            "a probe found a row older than the retention; see whether it is this request's, and \
             delete it if not"
        );
        return Probed::Unknown;
    }
    match read(cx, found) {
        Ok(Some(result)) => Probed::Found(result),
        Ok(None) => Probed::NotFound,
        Err(error) => unknown(&error),
    }
}

/// The function `prober` of each database.
pub(crate) fn prober<D, T>(
    pool: Pool<D>,
) -> impl Fn(Context) -> BoxFuture<'static, Probed<T>> + Clone + Send + Sync + 'static
where
    D: Rows,
    T: DeserializeOwned + Send + 'static,
{
    move |cx| {
        let pool = pool.clone();
        Box::pin(async move {
            match pool.acquire().await {
                Ok(mut conn) => probe::<D, T>(&mut conn, &cx).await,
                Err(error) => unknown(&InboxError::Sql { key: name(&cx), error }),
            }
        })
    }
}

fn unknown<T>(error: &InboxError) -> Probed<T> {
    tracing::warn!(target: "palisade::sqlx", %error, "a probe has no answer");
    Probed::Unknown
}

fn read<T: DeserializeOwned>(
    cx: &Context,
    found: Result<Option<Found>, sqlx::Error>,
) -> Result<Option<T>, InboxError> {
    let found = found.map_err(|error| InboxError::Sql { key: name(cx), error })?;
    let Some(Found { result, fingerprint, .. }) = found else { return Ok(None) };
    if differs(cx, fingerprint.as_deref()) {
        return Err(InboxError::Mismatch { key: name(cx) });
    }
    let json = result.ok_or_else(|| InboxError::NoResult { key: name(cx) })?;
    let value = serde_json::from_slice(&json);
    value
        .map(Some)
        .map_err(|error| codec(cx, "the stored result cannot be read as this type", error))
}

/// Returns true if the inbox row belongs to another request: both the call and the row have a
/// fingerprint, and the two fingerprints differ. A call without a fingerprint gets the stored
/// result. It would also get the stored result from the nodes.
fn differs(cx: &Context, stored: Option<&[u8]>) -> bool {
    cx.fingerprint().zip(stored).is_some_and(|(ours, stored)| stored != ours)
}

/// Returns true if a row that is no longer valid may be of an earlier attempt at this request. The
/// record has then lived on by the attempts since. Those that the handler ended by
/// [`Failed::retry`](palisade::Failed::retry) are not counted, so where the fingerprints are equal
/// the number of this attempt says nothing.
fn may_be_ours(cx: &Context, stored: Option<&[u8]>) -> bool {
    match cx.fingerprint().zip(stored) {
        Some((ours, stored)) => stored == ours,
        None => cx.attempt() > 1,
    }
}

fn codec(cx: &Context, what: &'static str, error: serde_json::Error) -> InboxError {
    InboxError::Codec { key: name(cx), what, error }
}

fn name(cx: &Context) -> String {
    format!("{}:{}", cx.namespace(), cx.key())
}
