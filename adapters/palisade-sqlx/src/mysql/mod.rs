//! The inbox, and fenced writes, for MariaDB and MySQL (feature `mysql`), on InnoDB tables.
//!
//! ```no_run
//! # async fn demo(mut conn: sqlx::MySqlConnection, token: palisade::FencingToken)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use palisade_sqlx::fence;
//! let done = sqlx::query("UPDATE stock SET rest = 7, fence = ? WHERE id = ? AND fence <= ?")
//!     .bind(fence::value(token))
//!     .bind(42)
//!     .bind(fence::value(token))
//!     .execute(&mut conn)
//!     .await?;
//! fence::applied(done.rows_affected(), "stock 42", token)?;
//! # Ok(()) }
//! ```

pub mod fence;
pub mod inbox;

use sqlx::MySqlConnection;

/// SQL that creates the tables in MariaDB and MySQL. Copy it into your own migrations if you have
/// them. The SQL can run more than once.
pub const MIGRATION: &str = include_str!("../../migrations/mysql.sql");

/// Creates the missing tables of this crate in MariaDB or MySQL. Do not call this function in a
/// transaction, because the server commits the transaction when it creates a table.
///
/// # Errors
/// The errors of the database. Usually the database user has no right to create tables.
///
/// # Cancellation safety
/// If the future is dropped, some of the tables may be missing. The caller can repeat the call.
pub async fn migrate(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(MIGRATION).execute(conn).await.map(drop)
}
