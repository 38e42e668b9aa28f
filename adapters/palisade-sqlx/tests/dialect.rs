//! The types and SQL statements of PostgreSQL for the tests that run on both PostgreSQL and
//! MariaDB.

pub(crate) use palisade_sqlx::{fence, inbox, migrate};
use sqlx::AssertSqlSafe;
pub(crate) use sqlx::PgConnection as Conn;
pub(crate) use sqlx::postgres::PgPool as Pool;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Inserts a row into the inbox. The parameters are the record's name, the namespace, the key, the
/// result, and the number of hours for which the row is valid.
pub(crate) const ROW: &str = "INSERT INTO palisade_inbox \
    (record, namespace, key, fence, attempt, result, counts_until) \
    VALUES ($1, $2, $3, 1, 1, $4, now() + make_interval(hours => $5))";
/// Changes all rows so that they lost their validity this number of microseconds ago.
pub(crate) const OVER_SINCE: &str = "UPDATE palisade_inbox SET counts_until = \
    clock_timestamp() - $1::bigint * interval '1 microsecond'";
/// Makes all rows this number of microseconds older.
pub(crate) const AGES: &str = "UPDATE palisade_inbox SET counts_until = \
    counts_until - $1::bigint * interval '1 microsecond'";
/// Selects the number of seconds for which an inbox row is valid after its effect.
pub(crate) const LASTS: &str =
    "SELECT extract(epoch FROM counts_until - done_at)::bigint FROM palisade_inbox";

pub(crate) async fn effect(tx: &mut Conn, key: String) -> Result<i64, BoxError> {
    let insert = sqlx::query_scalar("INSERT INTO effects (key) VALUES ($1) RETURNING id");
    Ok(insert.bind(key).fetch_one(tx).await?)
}

/// Replaces the question marks of a statement, which stand for its parameters, by PostgreSQL's
/// `$1`, `$2` and so on.
pub(crate) fn sql(text: &str) -> AssertSqlSafe<String> {
    let mut parts = text.split('?');
    let first = parts.next().unwrap_or_default().to_owned();
    let numbered = parts.enumerate().map(|(at, part)| format!("${}{part}", at + 1));
    AssertSqlSafe(numbered.fold(first, |all, part| all + &part))
}
