//! The tables of this crate in PostgreSQL (for the inbox and for fencing tokens), and the function
//! that creates them.

use sqlx::{Connection as _, PgConnection};

use crate::pooled::keeps_statements;

/// SQL that creates the tables in PostgreSQL. Copy it into your own migrations if you have them.
/// The SQL can run more than once.
pub const MIGRATION: &str = include_str!("../migrations/postgres.sql");

/// Number of an advisory lock. The lock keeps two programs from creating the tables at the same
/// time.
const LOCK: i64 = 0x7061_6c69_7361_6465;

/// Creates the missing tables of this crate in PostgreSQL.
///
/// # Errors
/// The errors of the database. Usually the database user has no right to create tables.
///
/// # Cancellation safety
/// If the future is dropped, either all tables are created or none. The caller can repeat the call.
pub async fn migrate(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    let mut tx = conn.begin().await?;
    let lock = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK);
    lock.persistent(keeps_statements(&tx)).execute(&mut *tx).await?;
    sqlx::raw_sql(MIGRATION).execute(&mut *tx).await?;
    tx.commit().await
}
