//! Fencing tokens in MariaDB and MySQL; see [the module for PostgreSQL](crate::fence).

use palisade::FencingToken;
use sqlx::MySqlConnection;
use sqlx::mysql::MySqlQueryResult;

use crate::error::{self, Changed, Stale};
use crate::fence::value;

/// Checks the result of an `UPDATE … WHERE … AND fence <= ?`. sqlx reports the number of rows that
/// fulfilled the condition, even if the statement changed nothing in them.
///
/// # Errors
/// [`Stale`] if the statement found no row. This is also the error if the resource does not exist.
pub fn applied(done: &MySqlQueryResult, resource: &str, token: FencingToken) -> Result<(), Stale> {
    error::not_stale(done.rows_affected(), resource, token)
}

/// Checks the result of an `UPDATE … SET version = version + 1 WHERE … AND version = ?`, as
/// [`fence::unchanged`](crate::fence::unchanged) does for PostgreSQL.
///
/// # Errors
/// [`Changed`] if the statement found no row. This is also the error if the resource does not
/// exist.
pub fn unchanged(done: &MySqlQueryResult, resource: &str, version: i64) -> Result<(), Changed> {
    error::unchanged(done.rows_affected(), resource, version)
}

/// Stores `token` as the newest token of the resource in the table `palisade_fence`, and locks this
/// row of the table until the transaction ends. No holder with a newer token that also calls
/// `raise` can write between this call and the end of the transaction.
///
/// Call it first in a transaction. Outside of a transaction the lock ends at once.
///
/// # Errors
/// The outer error comes from the database. The inner error is [`Stale`], which means that a newer
/// holder has stored its token before, so roll the transaction back.
///
/// # Cancellation safety
/// If the future is dropped, the token may or may not be stored in the transaction; roll it back.
pub async fn raise(
    conn: &mut MySqlConnection,
    resource: &str,
    token: FencingToken,
) -> Result<Result<(), Stale>, sqlx::Error> {
    sqlx::query(
        "INSERT INTO palisade_fence (resource, fence) VALUES (?, ?) \
         ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence))",
    )
    .bind(resource.as_bytes())
    .bind(value(token))
    .execute(&mut *conn)
    .await?;
    // The first statement has locked the row. A locking read returns the current state of the row,
    // while a plain read may return an older one from the transaction's snapshot.
    let seen: i64 =
        sqlx::query_scalar("SELECT fence FROM palisade_fence WHERE resource = ? FOR UPDATE")
            .bind(resource.as_bytes())
            .fetch_one(conn)
            .await?;
    if seen <= value(token) {
        return Ok(Ok(()));
    }
    Ok(Err(Stale { resource: resource.to_owned(), token, seen: Some(seen) }))
}
