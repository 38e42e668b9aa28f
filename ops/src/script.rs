//! The Lua scripts of operators' commands. Each returns `ok` or the reason of a refusal.

use super::gather::conn::Conn;

/// The script of a file that uses `read` of `lua/read.lua`.
macro_rules! reading {
    ($file:literal) => {
        concat!(include_str!("lua/read.lua"), include_str!(concat!("lua/", $file)))
    };
}

pub(super) const OLDER: &str = reading!("older.lua");
pub(super) const HELD: &str = reading!("held.lua");
pub(super) const QUEUES: &str = reading!("queues.lua");
pub(super) const RECORDS: &str = reading!("records.lua");
pub(super) const CHANGE: &str = reading!("change.lua");

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) kind: Kind,
    pub(super) why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A condition is not met.
    Refused,
    /// The server was marked as new or was used before.
    Marked,
    /// A client found the server's earlier data missing.
    Lost,
    /// Another marker than the expected one: an earlier run may have changed it.
    Changed,
    /// Without an answer, the server may have executed the script.
    Failed,
}

impl Refusal {
    pub(super) fn failed(why: impl Into<String>) -> Self {
        Self { kind: Kind::Failed, why: why.into() }
    }
}

/// Returns the number of replicas that have all writes of this connection.
pub(super) async fn wait(conn: &Conn, replicas: usize, within: std::time::Duration) -> usize {
    let ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1);
    let command = redis::cmd("WAIT").arg(replicas).arg(ms).take();
    conn.read(&command, "WAIT").await.unwrap_or(0)
}
