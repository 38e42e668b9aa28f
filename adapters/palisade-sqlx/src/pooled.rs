//! Statements that also work behind a transaction pooler, where several clients use one connection:
//! named statements would collide. If a client's connection caches none, this crate sends each
//! statement without a name and in a transaction, so that it goes over one connection.

use sqlx::{Connection as _, PgConnection};

/// Returns true if the statement cache of this connection contains statements. With
/// `statement_cache_capacity(0)`, which programs behind a transaction pooler set, the cache is
/// always empty. Otherwise the cache contains a statement as soon as the program has run one.
pub(crate) fn keeps_statements(conn: &PgConnection) -> bool {
    conn.cached_statements_size() > 0
}
