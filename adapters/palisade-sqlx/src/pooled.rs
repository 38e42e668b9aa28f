//! Statements behind a transaction pooler.
//!
//! sqlx gives a name to each statement that it may run again, and sends the statement's text and
//! its arguments in two requests. Behind a transaction pooler, clients share a server's statement
//! names, and outside of a transaction the two requests may reach different servers. So if the
//! connection caches no statements, this crate's statements have no name, and each of them is part
//! of a transaction.

use sqlx::{Connection as _, PgConnection};

/// Returns true if the connection caches statements. With `statement_cache_capacity(0)` it never
/// does; otherwise it does from the owner's first statement on.
pub(crate) fn keeps_statements(conn: &PgConnection) -> bool {
    conn.cached_statements_size() > 0
}
