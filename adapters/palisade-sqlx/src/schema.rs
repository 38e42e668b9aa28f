//! The tables.

use sqlx::{Connection as _, PgConnection};

use crate::pooled::keeps_statements;

/// The tables as SQL, to copy into your own migrations. It may be run again.
pub const MIGRATION: &str = include_str!("../migrations/postgres.sql");

/// Two programs that start at the same time must not make the same table at the same time.
const LOCK: i64 = 0x7061_6c69_7361_6465;

/// Makes the tables where they are not there.
///
/// # Errors
/// Those of the database: most often the user may not create tables.
///
/// # Cancellation safety
/// Dropped, the tables are all made or none; it may be called again.
pub async fn migrate(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    let mut tx = conn.begin().await?;
    let lock = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK);
    lock.persistent(keeps_statements(&tx)).execute(&mut *tx).await?;
    sqlx::raw_sql(MIGRATION).execute(&mut *tx).await?;
    tx.commit().await
}
