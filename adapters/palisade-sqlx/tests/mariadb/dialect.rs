//! MariaDB's part of the tests that both databases run.

pub(crate) use palisade_sqlx::mysql::{fence, inbox, migrate};
pub(crate) use sqlx::MySqlConnection as Conn;
pub(crate) use sqlx::mysql::MySqlPool as Pool;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Inserts a row with a record, a namespace, a key and a result. It counts for so many hours.
pub(crate) const ROW: &str = "INSERT INTO palisade_inbox \
    (record, namespace, `key`, fence, attempt, result, done_at, counts_until) \
    VALUES (?, ?, ?, 1, 1, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? HOUR)";
/// Makes all rows invalid since this number of microseconds.
pub(crate) const OVER_SINCE: &str =
    "UPDATE palisade_inbox SET counts_until = UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND";
/// Selects for how many seconds a row counts.
pub(crate) const LASTS: &str =
    "SELECT TIMESTAMPDIFF(SECOND, done_at, counts_until) FROM palisade_inbox";

pub(crate) async fn effect(tx: &mut Conn, key: String) -> Result<i64, BoxError> {
    let insert = sqlx::query("INSERT INTO effects (item) VALUES (?)").bind(key);
    Ok(i64::try_from(insert.execute(tx).await?.last_insert_id())?)
}

/// Returns the statement as it is: the parameters are question marks.
pub(crate) fn sql(text: &'static str) -> &'static str {
    text
}
