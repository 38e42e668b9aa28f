//! Keeps the backlog of a server, so that it does not rename its data while no replica follows it
//! (rule quarantine 19 in docs/design).

use super::Deployment;
use super::gather::conn::{Conn, fields};
use super::{marking, masters};
use palisade::internal::Endpoint;
use palisade::internal::lineage::Process;

/// After this many seconds without replicas a server drops its backlog and renames its data; 0:
/// never.
pub(crate) const TTL: &str = "repl-backlog-ttl";

pub(super) fn proves_renames(process: &Process) -> bool {
    process.inputs.is_some() && !process.was_reset
}

/// Where a rename would cost a quarantine. Returns a sentence for the operator if the setting was
/// changed, or should be and could not.
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
