//! Statements that also work behind a transaction pooler.
//!
//! If sqlx may run a statement again, it gives the statement a name, and sends the statement's text
//! in one request and its arguments in the next one. A transaction pooler lets several clients use
//! one connection to the server, so their names for statements can collide. Outside of a
//! transaction it may also send the two requests over different connections. So if a client's
//! connection caches no statements, this crate sends statements without names, and each of them in
//! a transaction.

use sqlx::{Connection as _, PgConnection};

/// Returns true if sqlx has statements in the cache of this connection. It never has any with
/// `statement_cache_capacity(0)`, which programs behind a transaction pooler set. Otherwise it has
/// some as soon as the program itself has run a statement.
pub(crate) fn keeps_statements(conn: &PgConnection) -> bool {
    conn.cached_statements_size() > 0
}
