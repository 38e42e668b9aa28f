//! The SQL tables, and the function that creates them.

use sqlx::{Connection as _, PgConnection};

use crate::pooled::keeps_statements;

/// SQL of the tables, to copy into your own migrations. It may be run again.
pub const MIGRATION: &str = include_str!("../migrations/postgres.sql");

/// Advisory lock that keeps two programs from creating the tables at the same time.
const LOCK: i64 = 0x7061_6c69_7361_6465;

/// Creates the missing tables.
///
/// # Errors
/// The errors of the database; most often the user may not create tables.
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
