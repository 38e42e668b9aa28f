//! Reads a server's marker and writes another one in its place, by the library's own rules.

use std::time::Duration;

use redis::Value;

use super::Deployment;
use super::gather::conn::{Conn, raw};
use super::masters::Master;
use super::script::{self, Kind, Refusal};
use palisade::internal::lineage::{Marker, Note, Process, ReplicationId, Shown};
use palisade::internal::{MARKER, NOTE, SETTLED};

const SHOW: &str = include_str!("lua/show.lua");
pub(super) const SWAP: &str = include_str!("lua/swap.lua");

const REPLICAS: Duration = Duration::from_millis(1_500);
/// Between the look at a marker and the write in its place, in ms (quarantine 1).
pub(super) const JUDGED: u64 = 2_000;
const TRIES: u8 = 5;

pub(super) struct Looked {
    pub(super) text: String,
    pub(super) shown: Shown,
}

impl Looked {
    /// In ms.
    pub(super) fn now(&self) -> u64 {
        self.shown.micros / 1_000
    }
}

pub(super) async fn look(conn: &Conn) -> Result<Looked, Refusal> {
    look_at(conn, &[MARKER, NOTE].map(ToOwned::to_owned)).await
}

/// `keys`: of the marker and the note.
pub(super) async fn look_at(conn: &Conn, keys: &[String; 2]) -> Result<Looked, Refusal> {
    let command = redis::cmd("EVAL").arg(SHOW).arg(2).arg(&keys[..]).take();
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
        stayed: false,
        disturbed: false,
        micros,
    };
    Ok(Looked { text: marker, shown })
}

/// Until the server's clock shows `last`, in ms. `settles`: a planned handover ends with it.
pub(super) async fn swap(
    conn: &Conn,
    looked: &Looked,
    marker: &Marker,
    settles: bool,
    last: u64,
) -> Result<(), Refusal> {
    let mut command = redis::cmd("EVAL");
    command.arg(SWAP).arg(2).arg(MARKER).arg(SETTLED).arg(&looked.text).arg(marker.to_string());
    command.arg(looked.shown.replid.to_string()).arg(u8::from(settles)).arg(last);
    run(conn, &command).await.map(|_| ())
}

/// Writes what `marker_of` makes of a master's marker, anew if another writer was faster. Returns
/// its other result, and how many replicas have the marker if not all of them have it.
pub(super) async fn rewrite<T>(
    conn: &Conn,
    (deployment, master): (&Deployment, &Master),
    marker_of: impl Fn(&Looked) -> Result<(Marker, T), Refusal>,
) -> Result<(T, Option<String>), Refusal> {
    let mut tries = TRIES;
    let made = loop {
        let write = async {
            let looked = look(conn).await?;
            let (marker, made) = marker_of(&looked)?;
            let last = looked.now().saturating_add(JUDGED);
            swap(conn, &looked, &marker, false, last).await.map(|()| made)
        };
        tries -= 1;
        match write.await {
            Ok(made) => break made,
            Err(Refusal { kind: Kind::Changed, .. }) if tries > 0 => {}
            Err(refusal) => return Err(refusal),
        }
    };
    let wanted = master.replicas.len();
    let have = script::wait(conn, wanted, REPLICAS.min(deployment.within())).await;
    let few = (have < wanted).then(|| format!("only {have} of its {wanted} replicas have it"));
    Ok((made, few))
}

async fn run(conn: &Conn, command: &redis::Cmd) -> Result<Vec<Value>, Refusal> {
    let answer = conn.needed(command).await.map_err(Refusal::failed)?;
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
