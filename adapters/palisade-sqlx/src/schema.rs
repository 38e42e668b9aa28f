//! The tables in PostgreSQL, and the function that creates them.

use sqlx::{Connection as _, PgConnection};

use crate::pooled::keeps_statements;

/// SQL that creates the tables in PostgreSQL, to be copied into your own migrations. It may be run
/// more than once.
pub const MIGRATION: &str = include_str!("../migrations/postgres.sql");

/// Number of the advisory lock that keeps two programs from creating the tables at the same time.
const LOCK: i64 = 0x7061_6c69_7361_6465;

/// Creates those tables of this crate in PostgreSQL that do not exist yet.
///
/// # Errors
/// The errors of the database, most often because its user may not create tables.
///
/// # Cancellation safety
/// If the future is dropped, either all tables are created or none; the call may be repeated.
pub async fn migrate(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    let mut tx = conn.begin().await?;
    let lock = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK);
    lock.persistent(keeps_statements(&tx)).execute(&mut *tx).await?;
    sqlx::raw_sql(MIGRATION).execute(&mut *tx).await?;
    tx.commit().await
}
