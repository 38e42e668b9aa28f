//! Fencing tokens in MariaDB and MySQL; see [the module for PostgreSQL](crate::fence).

use palisade::FencingToken;
use sqlx::MySqlConnection;

use crate::error::Stale;
use crate::fence::value;

/// Stores `token` as the newest token of the resource in the table `palisade_fence`. Locks the row
/// of the resource until the transaction ends. If another holder with a newer token also calls
/// `raise`, it waits for the end of this transaction before it writes.
///
/// Call this function first in a transaction. Outside of a transaction the row lock ends at once.
///
/// # Errors
/// The outer error comes from the database. The inner error is [`Stale`]: a newer holder has
/// already stored its token. Then roll the transaction back.
///
/// # Cancellation safety
/// If the future is dropped, the token may or may not be stored in the transaction. Then roll the
/// transaction back.
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
    // The first statement has locked the row. This locking read returns the current state of the
    // row. A plain read may return an older state from the transaction's snapshot.
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
