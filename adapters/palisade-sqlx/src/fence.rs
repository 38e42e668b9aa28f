//! Fencing tokens in SQL. A write is refused if an earlier write to the resource had a newer token.
//!
//! If your table has a column `fence bigint NOT NULL DEFAULT 0`, compare this column with the token
//! in the statement that writes. Then check the result of the statement with [`applied`]:
//!
//! ```no_run
//! # async fn demo(mut conn: sqlx::PgConnection, token: palisade::FencingToken)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use palisade_sqlx::fence;
//! let done = sqlx::query("UPDATE stock SET rest = 7, fence = $1 WHERE id = $2 AND fence <= $1")
//!     .bind(fence::value(token))
//!     .bind(42)
//!     .execute(&mut conn)
//!     .await?;
//! fence::applied(done.rows_affected(), "stock 42", token)?;
//! # Ok(()) }
//! ```
//!
//! If the resource has no such column, or consists of several rows, begin the transaction with
//! [`raise`]. `raise` stores the resource's newest token in another table. All later writes of the
//! transaction are fenced.
//!
//! Readers of a read-write lock are fenced, too. For each resource, `fence` is the largest token of
//! its writers, and `read_fence` is the largest token of its readers. A reader is refused if a
//! later writer has written. A writer is refused if a later writer has written or a later reader
//! has read:
//!
//! ```no_run
//! # async fn demo(mut conn: sqlx::PgConnection, reader: palisade::FencingToken,
//! #     writer: palisade::FencingToken) -> Result<(), Box<dyn std::error::Error>> {
//! use palisade_sqlx::fence;
//! let read = "UPDATE doc SET read_fence = greatest(read_fence, $1) \
//!             WHERE id = $2 AND fence <= $1 RETURNING body";
//! let read = sqlx::query_scalar::<_, String>(read).bind(fence::value(reader)).bind(7);
//! let body = read.fetch_optional(&mut conn).await?;
//! fence::applied(body.iter().len() as u64, "doc 7", reader)?;
//!
//! let write = "UPDATE doc SET body = $3, fence = $1 \
//!              WHERE id = $2 AND fence <= $1 AND read_fence < $1";
//! let write = sqlx::query(write).bind(fence::value(writer)).bind(7).bind("new");
//! fence::applied(write.execute(&mut conn).await?.rows_affected(), "doc 7", writer)?;
//! # Ok(()) }
//! ```
//!
//! With the table `palisade_fence`, a reader calls [`raise_read`] and a writer calls [`raise`]. A
//! writer that reads under its own token must not set `read_fence`, because its next write would
//! then be refused. If a read should not have to write, leave `read_fence` out. Then a late reader
//! is still refused, but a late writer is not refused because of a later reader.
//!
//! Without a lock, use a column with the version of the row. Then a write that is based on an older
//! version of the row is refused: see [`unchanged`].

use palisade::FencingToken;
use sqlx::PgConnection;

use crate::error::{Changed, Stale};
use crate::pooled::keeps_statements;

/// Returns the token as a PostgreSQL `bigint`. Tokens are microseconds since 1970. A `bigint` can
/// hold them for 290 000 years.
pub fn value(token: FencingToken) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

/// Checks that an `UPDATE … WHERE … AND fence <= $1` found a row. `rows` is the number of affected
/// rows that sqlx returns. The function works with every database, and also for the `UPDATE` by
/// which a reader sets `read_fence`. In MariaDB and MySQL, sqlx also counts the rows that the
/// statement found and left unchanged.
///
/// # Errors
/// [`Stale`] if `rows` is zero. `rows` is also zero if the resource does not exist.
pub fn applied(rows: u64, resource: &str, token: FencingToken) -> Result<(), Stale> {
    if rows > 0 { Ok(()) } else { Err(Stale { resource: resource.to_owned(), token, seen: None }) }
}

/// Checks the number of rows that an `UPDATE … SET version = version + 1 WHERE … AND version = $1`
/// affected, in any database. Use this function if the program holds no lock between reading and
/// writing. The table needs a column `version bigint NOT NULL DEFAULT 0`.
///
/// # Errors
/// [`Changed`] if `rows` is zero. `rows` is also zero if the resource does not exist.
pub fn unchanged(rows: u64, resource: &str, version: i64) -> Result<(), Changed> {
    if rows > 0 { Ok(()) } else { Err(Changed { resource: resource.to_owned(), version }) }
}

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
    conn: &mut PgConnection,
    resource: &str,
    token: FencingToken,
) -> Result<Result<(), Stale>, sqlx::Error> {
    let raise = "INSERT INTO palisade_fence AS f (resource, fence) VALUES ($1, $2) \
                 ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence \
                 WHERE f.fence <= excluded.fence AND f.read_fence < excluded.fence";
    store(conn, raise, resource, token).await
}

/// Stores `token` of a reader in the table `palisade_fence`, unless another reader has stored a
/// larger token there. Locks the row of the resource until the transaction ends, as [`raise`] does.
/// So readers of one resource wait for each other: keep the transaction short.
///
/// Call this function first in a transaction, under the token of a
/// [`ReadGuard`](palisade::ReadGuard). After a downgrade (a writer becomes a reader) the guard is a
/// reader's, so do not write under its token any more.
///
/// # Errors
/// The outer error comes from the database. The inner error is [`Stale`]: a later writer has
/// already stored its token. Then roll the transaction back.
///
/// # Cancellation safety
/// If the future is dropped, the token may or may not be stored in the transaction. Then roll the
/// transaction back.
pub async fn raise_read(
    conn: &mut PgConnection,
    resource: &str,
    token: FencingToken,
) -> Result<Result<(), Stale>, sqlx::Error> {
    let raise = "INSERT INTO palisade_fence AS f (resource, fence, read_fence) VALUES ($1, 0, $2) \
                 ON CONFLICT (resource) DO UPDATE \
                 SET read_fence = greatest(f.read_fence, excluded.read_fence) \
                 WHERE f.fence <= excluded.read_fence";
    store(conn, raise, resource, token).await
}

async fn store(
    conn: &mut PgConnection,
    raise: &'static str,
    resource: &str,
    token: FencingToken,
) -> Result<Result<(), Stale>, sqlx::Error> {
    let raised = sqlx::query(raise)
        .bind(resource)
        .bind(value(token))
        .persistent(keeps_statements(conn))
        .execute(&mut *conn)
        .await?;
    if raised.rows_affected() > 0 {
        return Ok(Ok(()));
    }
    let seen = "SELECT greatest(fence, read_fence) FROM palisade_fence WHERE resource = $1";
    let seen: Option<i64> = sqlx::query_scalar(seen)
        .bind(resource)
        .persistent(keeps_statements(conn))
        .fetch_optional(conn)
        .await?;
    Ok(Err(Stale { resource: resource.to_owned(), token, seen }))
}
