//! PostgreSQL's part of the tests that both databases run.

pub(crate) use palisade_sqlx::{fence, inbox, migrate};
use sqlx::AssertSqlSafe;
pub(crate) use sqlx::PgConnection as Conn;
pub(crate) use sqlx::postgres::PgPool as Pool;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Inserts a row with a record, a namespace, a key and a result. It counts for so many hours.
pub(crate) const ROW: &str = "INSERT INTO palisade_inbox \
    (record, namespace, key, fence, attempt, result, counts_until) \
    VALUES ($1, $2, $3, 1, 1, $4, now() + make_interval(hours => $5))";
/// Makes all rows invalid since this number of microseconds.
pub(crate) const OVER_SINCE: &str = "UPDATE palisade_inbox SET counts_until = \
    clock_timestamp() - $1::bigint * interval '1 microsecond'";
/// Selects for how many seconds a row counts.
pub(crate) const LASTS: &str =
    "SELECT extract(epoch FROM counts_until - done_at)::bigint FROM palisade_inbox";

pub(crate) async fn effect(tx: &mut Conn, key: String) -> Result<i64, BoxError> {
    let insert = sqlx::query_scalar("INSERT INTO effects (key) VALUES ($1) RETURNING id");
    Ok(insert.bind(key).fetch_one(tx).await?)
}

/// Writes the parameters of a statement, which are question marks, as the database reads them.
pub(crate) fn sql(text: &str) -> AssertSqlSafe<String> {
    let mut parts = text.split('?');
    let first = parts.next().unwrap_or_default().to_owned();
    let numbered = parts.enumerate().map(|(at, part)| format!("${}{part}", at + 1));
    AssertSqlSafe(numbered.fold(first, |all, part| all + &part))
}
