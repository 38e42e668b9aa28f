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

/// SQL that creates the tables in MariaDB and MySQL, to be copied into your own migrations. It may
/// be run more than once.
pub const MIGRATION: &str = include_str!("../../migrations/mysql.sql");

/// Creates those tables of this crate in MariaDB or MySQL that do not exist yet. Do not call it in
/// a transaction, because the server commits the transaction when it creates a table.
///
/// # Errors
/// The errors of the database, most often because its user may not create tables.
///
/// # Cancellation safety
/// If the future is dropped, some of the tables may be missing; the call may be repeated.
pub async fn migrate(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(MIGRATION).execute(conn).await.map(drop)
}
