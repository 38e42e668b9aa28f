//! Reads a server's marker and writes another one in its place, if nobody has changed it meanwhile.
//! What the new marker says is decided by the library's own rules.

use redis::Value;

use super::gather::conn::{Conn, raw};
use super::script::{Kind, Refusal};
use palisade::internal::lineage::{Marker, Note, Process, ReplicationId, Shown};
use palisade::internal::{MARKER, NOTE, SETTLED};

const SHOW: &str = include_str!("lua/show.lua");
const SWAP: &str = include_str!("lua/swap.lua");

/// A server's marker, as it was read.
pub(super) struct Looked {
    pub(super) text: String,
    pub(super) shown: Shown,
}

impl Looked {
    /// The server's clock in ms.
    pub(super) fn now(&self) -> u64 {
        self.shown.micros / 1_000
    }
}

/// Reads the marker of a master.
pub(super) async fn look(conn: &Conn) -> Result<Looked, Refusal> {
    let command = redis::cmd("EVAL").arg(SHOW).arg(2).arg(MARKER).arg(NOTE).take();
    let parts = run(conn, &command).await?;
    let text = |at: usize| parts.get(at).and_then(raw).unwrap_or_default();
    let number = |at: usize| text(at).parse::<u64>().ok();
    let broken = || Refusal::failed("EVAL: answer not understood");
    let micros = number(1).ok_or_else(broken)?;
    let marker = text(2);
    let process = Process {
        run: u64::from_str_radix(&text(5), 16).unwrap_or(0),
        inputs: number(6),
        calls: number(7).ok_or_else(broken)?,
        was_reset: text(8) == "1",
    };
    let shown = Shown {
        marker: Marker::parse(&marker, micros / 1_000),
        is_empty: marker.is_empty(),
        note: Note::parse(&text(3)),
        replid: ReplicationId::parse(&text(4)).ok_or_else(broken)?,
        process,
        evicted: number(9).ok_or_else(broken)?,
        micros,
    };
    Ok(Looked { text: marker, shown })
}

/// Writes `marker` in the place of the one that was looked at. `settles`: a planned handover ends
/// with it.
pub(super) async fn swap(
    conn: &Conn,
    looked: &Looked,
    marker: &Marker,
    settles: bool,
) -> Result<(), Refusal> {
    let mut command = redis::cmd("EVAL");
    command.arg(SWAP).arg(2).arg(MARKER).arg(SETTLED).arg(&looked.text).arg(marker.to_string());
    command.arg(looked.shown.replid.to_string()).arg(u8::from(settles));
    run(conn, &command).await.map(|_| ())
}

async fn run(conn: &Conn, command: &redis::Cmd) -> Result<Vec<Value>, Refusal> {
    let answer = conn.execute(command, "EVAL").await.map_err(Refusal::failed)?;
    let Value::Array(parts) = answer else {
        return Err(Refusal::failed("EVAL: answer not understood"));
    };
    let part = |at: usize| parts.get(at).and_then(raw).unwrap_or_default();
    let kind = match &*part(0) {
        "ok" => return Ok(parts),
        "changed" => Kind::Changed,
        _ => Kind::Refused,
    };
    Err(Refusal { kind, why: part(1) })
}
