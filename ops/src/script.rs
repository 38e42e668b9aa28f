//! Scripts of operations: each is atomic on its server and answers `ok` or why not.

use redis::Value;

use super::facts::Read;
use super::gather::conn::{Conn, raw, text};
use palisade::internal::{MARKER, SETTLED};

pub(super) const INIT: &str = include_str!("lua/init.lua");
pub(super) const OLDER: &str = include_str!("lua/older.lua");
pub(super) const CLOSE: &str = include_str!("lua/close.lua");
pub(super) const OPEN: &str = include_str!("lua/open.lua");
pub(super) const FINISH: &str = include_str!("lua/finish.lua");

/// Why a script did nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The script refused: a precondition does not hold.
    Said(String),
    /// It did nothing because the server is marked already.
    Marked(String),
    /// It refused because the server's data are known to be lost.
    Lost(String),
    /// It refused because something else was done since, perhaps by itself.
    Changed(String),
    /// No answer, so it may have been executed, or the server's refusal.
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

/// Runs one; what it says besides `ok`.
pub(super) async fn run(conn: &Conn, script: &str, args: &[&str]) -> Result<String, Refusal> {
    let mut command = redis::cmd("EVAL");
    command.arg(script).arg(2).arg(MARKER).arg(SETTLED).arg(args);
    match conn.ask(&command, "EVAL").await {
        Read::Got(Value::Array(said)) => {
            let part = |n| said.get(n).and_then(text).unwrap_or_default();
            match &*part(0) {
                // A marker has to come back whole.
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

/// Waits until so many replicas have all that this connection wrote; how many have it.
pub(super) async fn wait(conn: &Conn, replicas: usize, within: std::time::Duration) -> usize {
    let ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX).max(1);
    let command = redis::cmd("WAIT").arg(replicas).arg(ms).take();
    let answer = conn.ask(&command, "WAIT").await;
    answer.ok().and_then(text).and_then(|n| n.parse().ok()).unwrap_or(0)
}
