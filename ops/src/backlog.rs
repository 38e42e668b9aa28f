//! Keeps the backlog of a server, so that the server does not rename its data while no replica
//! follows it. Most servers prove that such a rename lost nothing (rule quarantine 19 in
//! docs/design). The others begin a quarantine with it.

use super::Deployment;
use super::gather::conn::{Conn, fields};
use super::{marking, masters};
use palisade::internal::Endpoint;
use palisade::internal::lineage::Process;

/// The setting after how many seconds without replicas a server drops its backlog and renames its
/// data; 0: never.
pub(crate) const TTL: &str = "repl-backlog-ttl";

/// Returns true if a server with these counters can prove that a rename lost nothing.
pub(super) fn proves_renames(process: &Process) -> bool {
    process.inputs.is_some() && !process.was_reset
}

/// Keeps the backlog where a rename would cost a quarantine. Returns a sentence for the operator if
/// the setting was changed, or should be and could not.
pub(super) async fn keep(conn: &Conn, process: &Process) -> Option<String> {
    if proves_renames(process) {
        return None;
    }
    let ttl = conn.query(&format!("CONFIG GET {TTL}"), "CONFIG GET", fields).await;
    if ttl.as_ref().is_ok_and(|all| all.get(TTL).is_none_or(|ttl| ttl == "0")) {
        return None;
    }
    let set = conn.query(&format!("CONFIG SET {TTL} 0"), "CONFIG SET", |_| Some(())).await;
    Some(match set {
        Ok(()) => format!(
            "{TTL} is 0 now, because a quarantine would begin an hour after its last replica left; \
             write it to its configuration file, too"
        ),
        Err(why) => format!(
            "{TTL} could not be set to 0 ({why}): a quarantine begins an hour after its last \
             replica left"
        ),
    })
}

/// Keeps the backlog of the server that goes on after a handover, and says so by `tell`.
pub(super) async fn keep_at(
    (at, target): (&str, &Endpoint),
    deployment: &Deployment,
    tell: &impl Fn(&str),
) {
    let Ok(conn) = masters::open(target, deployment).await else { return };
    let Ok(looked) = marking::look(&conn).await else { return };
    if let Some(note) = keep(&conn, &looked.shown.process).await {
        tell(&format!("{at}: {note}"));
    }
}
