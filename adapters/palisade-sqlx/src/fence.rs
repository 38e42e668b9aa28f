//! Fencing tokens in SQL: a write is refused if the resource has seen a newer token.
//!
//! If your table has a column `fence bigint NOT NULL DEFAULT 0`, put the condition into the
//! statement itself, and let [`applied`] check its result:
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
//! If the resource has no such column, or consists of several rows, [`raise`] keeps the token in a
//! separate table. Then everything that the transaction writes afterwards is fenced.
//!
//! Without a lock, a version column refuses a write that was decided on an older state: see
//! [`unchanged`].

use palisade::FencingToken;
use sqlx::PgConnection;

use crate::error::{Changed, Stale};
use crate::pooled::keeps_statements;

/// Returns the token as a `bigint`. Tokens are microseconds since 1970, so they fit for
/// 290 000 years.
pub fn value(token: FencingToken) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

/// Checks the number of rows that an `UPDATE … WHERE … AND fence <= $1` affected, in any database.
/// In MariaDB and MySQL that is the number of rows that the statement found, even if nothing in
/// them was changed.
///
/// # Errors
/// [`Stale`] if it is zero. This is also the error if the resource does not exist.
pub fn applied(rows: u64, resource: &str, token: FencingToken) -> Result<(), Stale> {
    if rows > 0 { Ok(()) } else { Err(Stale { resource: resource.to_owned(), token, seen: None }) }
}

/// Checks the number of rows that an `UPDATE … SET version = version + 1 WHERE … AND version = $1`
/// affected, in any database. Use it for a table with a column `version bigint NOT NULL DEFAULT 0`,
/// if no lock is held between reading and writing.
///
/// # Errors
/// [`Changed`] if it is zero. This is also the error if the resource does not exist.
pub fn unchanged(rows: u64, resource: &str, version: i64) -> Result<(), Changed> {
    if rows > 0 { Ok(()) } else { Err(Changed { resource: resource.to_owned(), version }) }
}

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
    conn: &mut PgConnection,
    resource: &str,
    token: FencingToken,
) -> Result<Result<(), Stale>, sqlx::Error> {
    let raised = sqlx::query(
        "INSERT INTO palisade_fence AS f (resource, fence) VALUES ($1, $2) \
         ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence \
         WHERE f.fence <= excluded.fence",
    )
    .bind(resource)
    .bind(value(token))
    .persistent(keeps_statements(conn))
    .execute(&mut *conn)
    .await?;
    if raised.rows_affected() > 0 {
        return Ok(Ok(()));
    }
    let seen: Option<i64> =
        sqlx::query_scalar("SELECT fence FROM palisade_fence WHERE resource = $1")
            .bind(resource)
            .persistent(keeps_statements(conn))
            .fetch_optional(conn)
            .await?;
    Ok(Err(Stale { resource: resource.to_owned(), token, seen }))
}
