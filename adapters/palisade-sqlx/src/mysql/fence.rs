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
/// already stored its token, or a reader has stored one that is not smaller. Then roll the
/// transaction back.
///
/// # Cancellation safety
/// If the future is dropped, the token may or may not be stored in the transaction. Then roll the
/// transaction back.
pub async fn raise(
    conn: &mut MySqlConnection,
    resource: &str,
    token: FencingToken,
) -> Result<Result<(), Stale>, sqlx::Error> {
    let raise = "INSERT INTO palisade_fence (resource, fence) VALUES (?, ?) \
                 ON DUPLICATE KEY UPDATE \
                 fence = IF(read_fence < VALUES(fence), GREATEST(fence, VALUES(fence)), fence)";
    let (written, read) = store(conn, raise, resource, token).await?;
    let good = written <= value(token) && read < value(token);
    Ok(judge(good, resource, token, written.max(read)))
}

/// Stores `token` of a reader in the table `palisade_fence`, unless another reader has stored a
/// larger token there; see [`fence::raise_read`](crate::fence::raise_read).
///
/// # Errors
/// The outer error comes from the database. The inner error is [`Stale`]: a later writer has
/// already stored its token. Then roll the transaction back.
///
/// # Cancellation safety
/// If the future is dropped, the token may or may not be stored in the transaction. Then roll the
/// transaction back.
pub async fn raise_read(
    conn: &mut MySqlConnection,
    resource: &str,
    token: FencingToken,
) -> Result<Result<(), Stale>, sqlx::Error> {
    let raise = "INSERT INTO palisade_fence (resource, fence, read_fence) VALUES (?, 0, ?) \
                 ON DUPLICATE KEY UPDATE read_fence = IF(fence <= VALUES(read_fence), \
                 GREATEST(read_fence, VALUES(read_fence)), read_fence)";
    let (written, read) = store(conn, raise, resource, token).await?;
    Ok(judge(written <= value(token), resource, token, written.max(read)))
}

/// Runs a statement that stores the token in the row of the resource, or leaves the row unchanged.
/// Returns the largest tokens with which the resource was written and read.
async fn store(
    conn: &mut MySqlConnection,
    raise: &'static str,
    resource: &str,
    token: FencingToken,
) -> Result<(i64, i64), sqlx::Error> {
    let raise = sqlx::query(raise).bind(resource.as_bytes()).bind(value(token));
    raise.execute(&mut *conn).await?;
    // The statement `raise` has locked the row. This locking read returns the current state of the
    // row. A plain read may return an older state from the transaction's snapshot.
    let seen = "SELECT fence, read_fence FROM palisade_fence WHERE resource = ? FOR UPDATE";
    sqlx::query_as(seen).bind(resource.as_bytes()).fetch_one(conn).await
}

fn judge(good: bool, resource: &str, token: FencingToken, seen: i64) -> Result<(), Stale> {
    if good {
        Ok(())
    } else {
        Err(Stale { resource: resource.to_owned(), token, seen: Some(seen) })
    }
}
