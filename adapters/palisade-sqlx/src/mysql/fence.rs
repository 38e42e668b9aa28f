//! Fencing tokens in MariaDB and MySQL; see [the module for PostgreSQL](crate::fence).

use palisade::FencingToken;
use sqlx::MySqlConnection;

use crate::error::Stale;
use crate::fence::value;

/// Raises the token that the resource has seen, and locks it until the transaction ends. Everything
/// that the transaction writes afterwards is written under a token that no newer holder has
/// overtaken.
///
/// Call it first in a transaction. Outside of a transaction it locks nothing.
///
/// # Errors
/// The outer error is the database's. The inner error is [`Stale`]: a newer holder has raised the
/// token, so roll back.
///
/// # Cancellation safety
/// If the future is dropped, the transaction may or may not have raised the token; roll it back.
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
    // The transaction has locked the row, and a locking read returns the row's current state.
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
