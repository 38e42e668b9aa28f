//! A key's row, whatever the database: what happens when in a transaction, how a result is written
//! and read, and what a probe answers. The statements are the databases' own ([`Rows`]).

use std::future::Future;
use std::time::Duration;

use futures_core::future::BoxFuture;
use palisade::Probed;
use palisade::idempotency::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{Connection as _, Database, Pool};

use crate::error::InboxError;

/// A row that was found.
pub(crate) enum Found {
    /// The record's.
    Row {
        /// JSON, or nothing.
        result: Option<Vec<u8>>,
        /// The fingerprint of its request.
        fingerprint: Option<Vec<u8>>,
        /// False once the nodes may have forgotten the record.
        counts: bool,
    },
    /// One of the table's first form, with this namespace and key.
    Unnamed,
}

/// How long a row is kept that no attempt would count that was claimed just now: a handler may have
/// run for as long before it comes to its row.
pub(crate) const SPARE: Duration = Duration::from_hours(24);

/// How long rows of the first form are kept: they do not tell their retention, of which this is the
/// longest.
pub(crate) const UNNAMED: Duration = Duration::from_hours(24 * 367);

/// The key of the record's row: 32 hexadecimal digits that depend on prefix, namespace and key.
pub(crate) fn record(cx: &Context) -> String {
    cx.child_key("palisade-sqlx: inbox")
}

/// A span in microseconds, as databases reckon with it.
pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// The statements of a database.
pub(crate) trait Rows: Database {
    /// Writes the record's row, without a result, in place of one that counts no longer; false if
    /// there is one that counts. Waits for the end of a transaction that has written it.
    fn enter(
        conn: &mut Self::Connection,
        cx: &Context,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Reads the row; `entered`: in the transaction in which [`enter`](Self::enter) found it.
    fn find(
        conn: &mut Self::Connection,
        cx: &Context,
        entered: bool,
    ) -> impl Future<Output = Result<Option<Found>, sqlx::Error>> + Send;

    /// Writes the result into the record's row, which counts from now on for as long as the nodes
    /// keep the record.
    fn finish(
        conn: &mut Self::Connection,
        cx: &Context,
        json: String,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

/// `once` of each database.
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
        let found = read(cx, D::find(&mut unit, cx, true).await)?;
        unit.rollback().await.map_err(sql)?;
        // Deleted between the two statements: the effect may have happened, and nothing ran here.
        return found.ok_or_else(|| InboxError::NoResult { key: name(cx) }.into());
    }
    let value = match effect(&mut unit).await {
        Ok(value) => value,
        Err(error) => {
            unit.rollback().await.map_err(sql)?;
            return Err(error);
        }
    };
    let json = serde_json::to_string(&value)
        .map_err(|error| codec(cx, "the result cannot be stored as JSON", error))?;
    D::finish(&mut unit, cx, json).await.map_err(sql)?;
    unit.commit().await.map_err(sql)?;
    Ok(value)
}

/// `probe` of each database.
pub(crate) async fn probe<D: Rows, T: DeserializeOwned>(
    conn: &mut D::Connection,
    cx: &Context,
) -> Probed<T> {
    let found = D::find(conn, cx, false).await;
    if let Ok(Some(Found::Row { counts: false, fingerprint, .. })) = &found {
        // Of an earlier use of the key: `once` writes this request's row in its place.
        if differs(cx, fingerprint.as_deref()) {
            return Probed::NotFound;
        }
        // An earlier use of the key, or the attempt that is asked for: the nodes keep a record for
        // as long as it is tried again, and a row only from its effect on.
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

/// `prober` of each database.
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
    let (result, fingerprint) = match found {
        None => return Ok(None),
        Some(Found::Unnamed) => return Err(InboxError::Unnamed { key: name(cx) }),
        Some(Found::Row { result, fingerprint, .. }) => (result, fingerprint),
    };
    if differs(cx, fingerprint.as_deref()) {
        return Err(InboxError::Mismatch { key: name(cx) });
    }
    let json = result.ok_or_else(|| InboxError::NoResult { key: name(cx) })?;
    let value = serde_json::from_slice(&json);
    value
        .map(Some)
        .map_err(|error| codec(cx, "the stored result cannot be read as this type", error))
}

/// Returns true if the row is another request's. As the nodes have it, a call without a fingerprint
/// is answered with what is there.
fn differs(cx: &Context, stored: Option<&[u8]>) -> bool {
    cx.fingerprint().zip(stored).is_some_and(|(ours, stored)| stored != ours)
}

fn codec(cx: &Context, what: &'static str, error: serde_json::Error) -> InboxError {
    InboxError::Codec { key: name(cx), what, error }
}

fn name(cx: &Context) -> String {
    format!("{}:{}", cx.namespace(), cx.key())
}
