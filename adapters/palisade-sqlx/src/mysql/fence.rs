//! Fencing tokens in MariaDB and MySQL; see [the module for PostgreSQL](crate::fence).

use palisade::FencingToken;
use sqlx::MySqlConnection;

use crate::error::Stale;
use crate::fence::value;

/// Raises the token that the resource has seen, and locks it until the transaction ends. Everything
/// that the transaction writes afterwards is written under a token that no newer holder has
/// overtaken.
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
