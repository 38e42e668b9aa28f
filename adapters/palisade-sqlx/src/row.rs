//! A key's row, whatever the database: what happens when in a transaction, how a result is written
//! and read, and what a probe answers. The statements are the databases' own ([`Rows`]).

use std::future::Future;

use futures_core::future::BoxFuture;
use palisade::Probed;
use palisade::idempotency::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{Connection as _, Database, Pool};

use crate::error::InboxError;

/// The result in a row that is there: JSON, or nothing.
pub(crate) type Found = Option<Option<Vec<u8>>>;

/// The statements of a database.
pub(crate) trait Rows: Database {
    /// Inserts the key's row, without a result; false if it is there. Waits for the end of a
    /// transaction that has inserted it.
    fn enter(
        conn: &mut Self::Connection,
        cx: &Context,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Reads the key's row; `entered`: in the transaction in which [`enter`](Self::enter) found it.
    fn find(
        conn: &mut Self::Connection,
        cx: &Context,
        entered: bool,
    ) -> impl Future<Output = Result<Found, sqlx::Error>> + Send;

    /// Writes the result into the key's row.
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
    match read(cx, D::find(conn, cx, false).await) {
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
    found: Result<Found, sqlx::Error>,
) -> Result<Option<T>, InboxError> {
    let found = found.map_err(|error| InboxError::Sql { key: name(cx), error })?;
    let Some(result) = found else { return Ok(None) };
    let json = result.ok_or_else(|| InboxError::NoResult { key: name(cx) })?;
    let value = serde_json::from_slice(&json);
    value
        .map(Some)
        .map_err(|error| codec(cx, "the stored result cannot be read as this type", error))
}

fn codec(cx: &Context, what: &'static str, error: serde_json::Error) -> InboxError {
    InboxError::Codec { key: name(cx), what, error }
}

fn name(cx: &Context) -> String {
    format!("{}:{}", cx.namespace(), cx.key())
}
