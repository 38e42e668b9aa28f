//! The same for MariaDB and MySQL (feature `mysql`), on InnoDB tables.
//!
//! ```no_run
//! # async fn demo(mut conn: sqlx::MySqlConnection, token: palisade::FencingToken)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use palisade_sqlx::{fence, mysql};
//! let done = sqlx::query("UPDATE stock SET rest = 7, fence = ? WHERE id = ? AND fence <= ?")
//!     .bind(fence::value(token))
//!     .bind(42)
//!     .bind(fence::value(token))
//!     .execute(&mut conn)
//!     .await?;
//! mysql::fence::applied(&done, "stock 42", token)?;
//! # Ok(()) }
//! ```

pub mod fence;
pub mod inbox;

use sqlx::MySqlConnection;

/// The tables as SQL, to copy into your own migrations. It may be run again.
pub const MIGRATION: &str = include_str!("../../migrations/mysql.sql");

/// Makes the tables where they are not there. Not within a transaction: making a table ends it.
///
/// # Errors
/// Those of the database: most often the user may not create tables.
///
/// # Cancellation safety
/// If dropped, one of the tables may be missing; it may be called again.
pub async fn migrate(conn: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    let first = sqlx::raw_sql(MIGRATION).execute(&mut *conn).await;
    if let Err(sqlx::Error::Database(_)) = first {
        // Another program may have renamed the table of the first form in between.
        sqlx::raw_sql(MIGRATION).execute(conn).await?;
        return Ok(());
    }
    first.map(drop)
}
