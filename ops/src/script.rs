//! Scripts of operations. Each is atomic on its server, and returns `ok` or the reason of a
//! refusal.

use redis::Value;

use super::facts::Read;
use super::gather::conn::{Conn, raw, text};
use palisade::internal::{MARKER, SETTLED};

pub(super) const INIT: &str = include_str!("lua/init.lua");
pub(super) const OLDER: &str = include_str!("lua/older.lua");
pub(super) const CLOSE: &str = include_str!("lua/close.lua");
pub(super) const OPEN: &str = include_str!("lua/open.lua");
pub(super) const FINISH: &str = include_str!("lua/finish.lua");

/// Reason for which a script changed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The script refused: a precondition does not hold.
    Said(String),
    /// The script refused, because the server is marked already.
    Marked(String),
    /// The script refused, because the server's data are known to be lost.
    Lost(String),
    /// The script refused, because the server was changed since, perhaps by an earlier run of the
    /// script.
    Changed(String),
    /// The server refused the command, or did not answer, so the script may have been executed.
    Failed(String),
}

impl Refusal {
    pub(super) fn reason(self) -> String {
        match self {
            Self::Said(why)
            | Self::Marked(why)
            | Self::Lost(why)
            | Self::Changed(why)
            | Self::Failed(why) => why,
        }
    }
}

/// Runs a script, and returns the text that follows `ok` in its answer.
pub(super) async fn run(conn: &Conn, script: &str, args: &[&str]) -> Result<String, Refusal> {
    let mut command = redis::cmd("EVAL");
    command.arg(script).arg(2).arg(MARKER).arg(SETTLED).arg(args);
    match conn.ask(&command, "EVAL").await {
        Read::Got(Value::Array(said)) => {
            let part = |n| said.get(n).and_then(text).unwrap_or_default();
            match &*part(0) {
                // The marker is compared as a whole later, so it must be unchanged.
                "ok" => Ok(said.get(1).and_then(raw).unwrap_or_default()),
                "marked" => Err(Refusal::Marked(part(1))),
                "lost" => Err(Refusal::Lost(part(1))),
                "changed" => Err(Refusal::Changed(part(1))),
                _ => Err(Refusal::Said(part(1))),
            }
        }
        Read::Got(_) => Err(Refusal::Failed("EVAL: answer not understood".to_owned())),
        Read::Closed(why) | Read::Failed(why) => Err(Refusal::Failed(why)),
    }
}

/// Waits until this many replicas have everything that this connection wrote, and returns the
/// number of replicas that have it.
pub(super) async fn wait(conn: &Conn, replicas: usize, within: std::time::Duration) -> usize {
    let ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1);
    let command = redis::cmd("WAIT").arg(replicas).arg(ms).take();
    let answer = conn.ask(&command, "WAIT").await;
    answer.ok().and_then(text).and_then(|n| n.parse().ok()).unwrap_or(0)
}
