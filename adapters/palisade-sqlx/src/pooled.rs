//! Statements behind a transaction pooler.
//!
//! sqlx names each statement that it may run again, and sends its text before its arguments, as two
//! requests. Behind a transaction pooler clients share a server's names, and outside of a
//! transaction the two requests may come to different servers. So where the connection keeps no
//! statements, ours have no name; and each is part of a transaction.

use sqlx::{Connection as _, PgConnection};

/// Returns true if the connection keeps statements: always false with
/// `statement_cache_capacity(0)`. With any other, true from the first statement of its owner on.
pub(crate) fn keeps_statements(conn: &PgConnection) -> bool {
    conn.cached_statements_size() > 0
}
