//! Fencing tokens in MariaDB and MySQL; see [the module for PostgreSQL](crate::fence).

use palisade::FencingToken;
use sqlx::MySqlConnection;
use sqlx::mysql::MySqlQueryResult;

use crate::error::{self, Changed, Stale};
use crate::fence::value;

/// What an `UPDATE … WHERE … AND fence <= ?` did. sqlx counts the rows that were found, also where
/// nothing was changed in them.
///
/// # Errors
/// [`Stale`] if it found no row. A resource that is not there at all looks the same.
pub fn applied(done: &MySqlQueryResult, resource: &str, token: FencingToken) -> Result<(), Stale> {
    error::not_stale(done.rows_affected(), resource, token)
}

/// As [`fence::unchanged`](crate::fence::unchanged).
///
/// # Errors
/// [`Changed`] if it found no row. A resource that is not there at all looks the same.
pub fn unchanged(done: &MySqlQueryResult, resource: &str, version: i64) -> Result<(), Changed> {
    error::unchanged(done.rows_affected(), resource, version)
}

/// Raises the token that the resource has seen, and holds it until the transaction ends: whatever
/// the transaction writes after this is written under a token that nobody has overtaken.
///
/// Call it first in a transaction. Outside of one it holds nothing.
///
/// # Errors
/// The outer one is the database's. The inner one is [`Stale`]: a newer holder was here, so roll
/// back.
///
/// # Cancellation safety
/// If dropped, the transaction may or may not have raised the token; roll it back.
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
    // The row is this transaction's by now; a locking read sees it as it is.
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
