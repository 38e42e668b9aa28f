//! The types and SQL statements of MariaDB for the tests that run on both PostgreSQL and MariaDB.

pub(crate) use palisade_sqlx::mysql::{fence, inbox, migrate};
pub(crate) use sqlx::MySqlConnection as Conn;
pub(crate) use sqlx::mysql::MySqlPool as Pool;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Inserts a row into the inbox. The parameters are the record's name, the namespace, the key, the
/// result, and the number of hours for which the row is valid.
pub(crate) const ROW: &str = "INSERT INTO palisade_inbox \
    (record, namespace, `key`, fence, attempt, result, done_at, counts_until) \
    VALUES (?, ?, ?, 1, 1, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? HOUR)";
/// Changes all rows so that they lost their validity this number of microseconds ago.
pub(crate) const OVER_SINCE: &str =
    "UPDATE palisade_inbox SET counts_until = UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND";
/// Makes all rows this number of microseconds older.
pub(crate) const AGES: &str =
    "UPDATE palisade_inbox SET counts_until = counts_until - INTERVAL ? MICROSECOND";
/// Selects the number of seconds for which an inbox row is valid after its handler has run.
pub(crate) const LASTS: &str =
    "SELECT TIMESTAMPDIFF(SECOND, done_at, counts_until) FROM palisade_inbox";

pub(crate) async fn effect(tx: &mut Conn, key: String) -> Result<i64, BoxError> {
    let insert = sqlx::query("INSERT INTO effects (item) VALUES (?)").bind(key);
    Ok(i64::try_from(insert.execute(tx).await?.last_insert_id())?)
}

/// Returns the statement unchanged, because MariaDB's parameters are question marks, too.
pub(crate) fn sql(text: &'static str) -> &'static str {
    text
}
