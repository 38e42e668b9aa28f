//! Statements that also work behind a transaction pooler.
//!
//! sqlx gives a statement a name if it may run the statement again. It sends the statement's text
//! in one request and the arguments in the next request. A transaction pooler lets several clients
//! use one connection to the server. So the statement names of different clients can collide.
//! Outside of a transaction the pooler may also send the two requests over different connections.
//! So if a client's connection caches no statements, this crate sends each statement without a name
//! and in a transaction.

use sqlx::{Connection as _, PgConnection};

/// Returns true if the statement cache of this connection contains statements. With
/// `statement_cache_capacity(0)`, which programs behind a transaction pooler set, the cache is
/// always empty. Otherwise the cache contains a statement as soon as the program has run one.
pub(crate) fn keeps_statements(conn: &PgConnection) -> bool {
    conn.cached_statements_size() > 0
}
