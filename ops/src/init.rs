//! Marks the nodes of a deployment as new. Marked nodes grant at once, and their idempotency keys
//! do not count as forgotten.
//!
//! A server without a marker is new, or it lost its data; only the operator can know. `init`
//! refuses a server that was initialised or used before. Every client writes the marker before any
//! other key, so no client can write a key between the check and the marker of `init`. The marker
//! also names the deployment and the vote (rule quarantine 14 in docs/design).
//!
//! Applications may have connected before `init`. Such a server has a marker with the loss of all
//! earlier data. During the first quarantine `init` replaces that marker, because the server has
//! granted no lock. Afterwards `init` only removes that loss and adds a name.
//!
//! A server that was replaced or emptied while other nodes have data is not new: it has lost keys
//! that it had confirmed. So `init` examines all nodes together.

use std::fmt;

use futures_util::future::join_all;

use super::cluster::{self, Target, deployment_of};
use super::gather::conn::Conn;
use super::keys::{is_decision, is_palisades};
use super::marking::{self, Looked};
use super::masters::{self, Absent, Found, Master};
use super::scan::{Scan, escaped};
use super::script::{self, Kind, Refusal};
use super::{Deployment, backlog};
use palisade::ConfigError;
use palisade::internal::lineage::{Losses, Marker};
use palisade::internal::{MARKER, RecordRead};
use palisade::node::spi::Began;

/// The result of `init` for each node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it may contain a refusal"]
pub struct Initialised {
    /// Each node with its result.
    pub nodes: Vec<(String, Init)>,
}

/// The result of `init` for one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Init {
    /// The server at `at` was marked as new, and all its replicas have the marker.
    Marked {
        /// Address of the server, `host:port`.
        at: String,
        /// Number of the server's replicas.
        replicas: usize,
        /// Further information for the operator.
        note: Option<String>,
    },
    /// The server was marked as new or was used before, so nothing was done.
    Already {
        /// Address of the server, `host:port`.
        at: String,
        /// A sentence about the origin of the server's marker.
        note: String,
    },
    /// Nothing was written to this server, because another node was refused.
    Left {
        /// Address of the server, `host:port`.
        at: String,
    },
    /// Nothing was written. Another node has data, so the deployment is not new, and this server
    /// was replaced or emptied. The server grants by itself after one quarantine.
    Replaced {
        /// Address of the server, `host:port`.
        at: String,
    },
    /// Nothing was written. The text has the reason and an instruction.
    Refused(String),
    /// The server could not be reached.
    Unreachable(String),
    /// The server is marked as new, but not all its replicas have the marker. The text has an
    /// instruction.
    Doubtful(String),
}

impl Initialised {
    /// Returns true if every node is marked as new, by this call or an earlier one.
    pub fn is_done(&self) -> bool {
        let is_marked = |done: &Init| matches!(done, Init::Marked { .. } | Init::Already { .. });
        self.nodes.iter().all(|(_, done)| is_marked(done))
    }

    /// Returns the exit code: 0 if every node is marked as new, 2 if a server was refused, replaced
    /// or doubtful (even if another server could not be reached), else 69.
    pub fn exit_code(&self) -> u8 {
        let any = |is: fn(&Init) -> bool| self.nodes.iter().any(|(_, done)| is(done));
        if self.is_done() {
            0
        } else if any(|done| {
            matches!(done, Init::Refused(_) | Init::Replaced { .. } | Init::Doubtful(_))
        }) {
            2
        } else {
            69
        }
    }
}

impl fmt::Display for Initialised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (node, done) in &self.nodes {
            match done {
                Init::Marked { at, replicas, note } => {
                    write!(f, "{node}: marked at {at}")?;
                    match replicas {
                        0 => {}
                        1 => write!(f, ", and its replica has it")?,
                        n => write!(f, ", and its {n} replicas have it")?,
                    }
                    if let Some(note) = note {
                        write!(f, "; {note}")?;
                    }
                    writeln!(f)?;
                }
                Init::Already { at, note } => {
                    writeln!(f, "{node}: has the marker {MARKER} at {at} already: {note}")?;
                }
                Init::Left { at } => {
                    let why = "because another node cannot be marked";
                    writeln!(f, "{node}: not marked at {at}, {why}")?;
                }
                Init::Replaced { at } => {
                    writeln!(f, "{node}: not marked at {at}: {REPLACED}; {LOST}")?;
                }
                Init::Refused(why) => writeln!(f, "{node}: refused: {why}")?,
                Init::Unreachable(why) => writeln!(f, "{node}: not reached: {why}")?,
                Init::Doubtful(why) => writeln!(f, "{node}: {why}")?,
            }
        }
        let already = |done: &Init| matches!(done, Init::Already { .. });
        let end = if self.is_done() && self.nodes.iter().all(|(_, done)| already(done)) {
            "initialised before; nothing was changed"
        } else if self.is_done() {
            "initialised: every key that it does not have is new"
        } else {
            "not initialised"
        };
        writeln!(f, "{end}")
    }
}

const REPLACED: &str = "other nodes have data, so it was replaced or emptied: do not initialise \
                        it, not even alone; it joins by itself after one quarantine";
const DELETED: &str = "it has deleted keys because its memory was full, and nothing shows which \
                       ones; if none were palisade's, restart it empty";
const DECIDED: &str = "an operator has decided about keys that it lost";
pub(super) const LOST: &str = "`palisade idem incidents` shows for which loss keys wait; if \
                               everything was lost and cannot be restored, `--lost-everything` \
                               marks it all the same: keys used before then count as new, so they \
                               may run again";

/// Marks all nodes of a new deployment: records in each node's marker that the node is new. If one
/// node must not be marked, marks no node.
///
/// Name all nodes in one call. A server that was replaced or emptied while the other nodes have
/// data must not be marked. Such a server grants by itself after one quarantine. If all nodes are
/// marked already, the call changes nothing and succeeds. The call replaces a marker that
/// applications wrote before, if the node is still in its first quarantine. The call refuses a node
/// that has a key with `prefix`. If `prefix` is empty, the call refuses a node that has a key of
/// palisade's form, such as a lock's fence or an idempotency record. The replicas of a group must
/// be connected: Redis 6.2 begins a quarantine when the first of them connects later.
///
/// # Errors
/// [`ConfigError`] if a setting is invalid. Failures of the nodes are in the result.
///
/// # Cancellation safety
/// If the future is dropped at an await, some of the nodes may be marked. The next call reports
/// these nodes as already marked.
pub async fn init(deployment: &Deployment, prefix: &str) -> Result<Initialised, ConfigError> {
    mark_all(deployment, Some(prefix)).await
}

/// Marks all nodes of a deployment that lost all its data. Keys used before count as new, so they
/// may run again.
///
/// The call also marks nodes that [`init`] refuses: servers that had data which a client found
/// missing, and servers that began empty while other nodes have data. The call does not shorten a
/// quarantine. It does not change nodes that still have their data.
///
/// # Errors
/// [`ConfigError`] if a setting is invalid. Failures of the nodes are in the result.
///
/// # Cancellation safety
/// If the future is dropped at an await, some of the nodes may be marked. The next call reports
/// these nodes as already marked.
pub async fn init_lost(deployment: &Deployment) -> Result<Initialised, ConfigError> {
    mark_all(deployment, None).await
}

/// `None`: all earlier data are lost, so no key is examined.
async fn mark_all(
    deployment: &Deployment,
    prefix: Option<&str>,
) -> Result<Initialised, ConfigError> {
    palisade::internal::check_prefix(prefix.unwrap_or_default())?;
    let wanted = deployment.id()?;
    let (clusters, others) = deployment.clusters()?;
    let mut found = Vec::new();
    if !others.is_empty() {
        let (_, servers) = masters::find(&others).await?;
        let server = |Found { node, master }| (node, master.map(Target::Server));
        found.extend(servers.into_iter().map(server));
    }
    for login in &clusters {
        let cluster = cluster::find(deployment, login).await;
        found.push((login.url.clone(), cluster.map(Target::Cluster)));
    }
    let looks = found.iter().map(|(_, target)| async {
        match target {
            Ok(target) => target.look(deployment, prefix).await,
            Err(Absent::Refused(why)) => Err(Not::Now(Init::Refused(why.clone()))),
            Err(Absent::Unreachable(why)) => Err(Not::Now(Init::Unreachable(why.clone()))),
        }
    });
    let looks = join_all(looks).await;
    let has_data = |look: &Result<(), Not>| matches!(look, Err(Not::New(_) | Not::Marked(_)));
    let in_use = looks.iter().any(has_data);
    // An earlier run may have marked some nodes as new already.
    let is_lost = prefix.is_none();
    let all_new =
        looks.iter().all(|look| look.is_ok() || is_lost && matches!(look, Err(Not::Marked(_))));
    // The nodes that were marked before say which deployment this is.
    let known = found.iter().map(|(_, target)| deployment_of(deployment, target));
    let known = join_all(known).await;
    let differs = |id: u64| id != 0 && wanted.is_some_and(|wanted| wanted != id);
    let other = |known: Option<u64>| known.filter(|id| differs(*id));
    if known.iter().any(|known| other(*known).is_some()) {
        let nodes = found.into_iter().zip(known);
        let nodes = nodes.map(|((node, target), known)| (node, of_other(target, other(known))));
        return Ok(Initialised { nodes: nodes.collect() });
    }
    let known = known.into_iter().flatten().find(|id| *id != 0);
    let mut id = wanted.or(known).unwrap_or_else(rand::random);
    let mut nodes = Vec::new();
    for ((node, target), look) in found.into_iter().zip(looks) {
        let at = target.as_ref().map(Target::at).unwrap_or_default();
        let done = match (look, &target) {
            (Err(Not::Marked(done)), _) => done,
            (Err(Not::New(why)), _) => Init::Refused(why),
            (Err(Not::Now(why)), _) => why,
            (Ok(()), Ok(target)) if all_new => target.mark(deployment, is_lost, id).await,
            (Ok(()), Ok(_)) if in_use => Init::Replaced { at },
            (Ok(()), Ok(_)) => Init::Left { at },
            (Ok(()), Err(_)) => continue,
        };
        // Of several calls at once, the one that marked the first node names the deployment.
        if wanted.is_none() && matches!(done, Init::Already { .. }) {
            id = deployment_of(deployment, &target).await.filter(|id| *id != 0).unwrap_or(id);
        }
        nodes.push((node, done));
    }
    Ok(Initialised { nodes })
}

/// `other` is the id of this node's data, if it is that node.
fn of_other(target: Result<Target, Absent>, other: Option<u64>) -> Init {
    match (target, other) {
        (Ok(target), Some(id)) => Init::Refused(format!(
            "{}: it has the data of the deployment {id:016x}, and the settings name another one \
             (`deployment`)",
            target.at()
        )),
        (Ok(target), None) => Init::Left { at: target.at() },
        (Err(absent), _) => Init::Unreachable(absent.why()),
    }
}

pub(super) enum Not {
    Marked(Init),
    New(String),
    Now(Init),
}

/// An unused server must not have a key of palisade, and a used one no record that is older than
/// the beginning of its data.
pub(super) async fn look(
    deployment: &Deployment,
    master: &Master,
    prefix: Option<&str>,
) -> Result<(), Not> {
    let unreachable = |why: String| Not::Now(Init::Unreachable(format!("{}: {why}", master.at)));
    let conn = master.open(deployment).await.map_err(unreachable)?;
    let refusal = |Refusal { kind, why }| match kind {
        Kind::Marked => Not::Marked(Init::Already { at: master.at.clone(), note: why }),
        Kind::Refused => Not::New(format!("{}: {why}", master.at)),
        Kind::Lost => Not::New(format!("{} lost its data: {why}; {LOST}", master.at)),
        Kind::Changed => Not::Now(Init::Refused(format!("{}: {why}", master.at))),
        Kind::Failed => unreachable(why),
    };
    let looked = marking::look(&conn).await.map_err(refusal)?;
    let used = used(&looked, master.epoch, prefix.is_none()).map_err(refusal)?;
    let used = used.map_or_else(String::new, |began| began.to_string());
    let Some(prefix) = prefix else { return Ok(()) };
    // `{name}:fence` begins with a brace, before the prefix.
    let pattern = (!prefix.is_empty()).then(|| format!("*{}*", escaped(prefix)));
    let mut scan = Scan::new(deployment, master, pattern);
    while let Some((conn, keys)) = scan.next().await.map_err(unreachable)? {
        if keys.iter().any(|key| is_decision(key)) {
            return Err(Not::New(format!("{} is not new: {DECIDED}; {LOST}", master.at)));
        }
        let mut ours = keys.into_iter().filter(|key| is_palisades(key, prefix));
        let old = if used.is_empty() {
            ours.next()
        } else {
            older(&conn, ours.collect(), &used).await.map_err(unreachable)?
        };
        if let Some(key) = old {
            return Err(Not::New(format!(
                "{} is not new: it has the key \"{}\"; a server with data is never initialised; it \
                 grants by itself after one quarantine; {LOST}",
                master.at,
                conn.secrets().clean(&String::from_utf8_lossy(&key))
            )));
        }
    }
    Ok(())
}

/// `None` if it has granted nothing yet.
pub(super) fn used(
    looked: &Looked,
    epoch: Option<u64>,
    is_lost: bool,
) -> Result<Option<u64>, Refusal> {
    let refuse = |kind, why: &str| Err(Refusal { kind, why: why.to_owned() });
    let shown = &looked.shown;
    let Some(marker) = shown.marker else {
        let why = "no program has connected to it yet: let one connect, and run this again";
        return match shown.evicted {
            _ if is_lost => refuse(Kind::Changed, why),
            0 => Ok(None),
            _ => refuse(Kind::Lost, DELETED),
        };
    };
    if marker.began == Began::Known {
        return refuse(Kind::Marked, "it was initialised or used before");
    }
    // A program may have counted them.
    if (marker.has_evicted(shown) || marker.evicted > 0) && !is_lost {
        return refuse(Kind::Lost, DELETED);
    }
    if marker.began == Began::Lost && !is_lost {
        return refuse(Kind::Lost, "a program found data gone that it saw before, or keys deleted");
    }
    // Who returns unchanged after another was the master has its own marker, of an earlier epoch.
    let was_replaced = epoch.is_some_and(|epoch| epoch > marker.epoch);
    if was_replaced {
        let why = "the Sentinels have promoted a server since its marker was written: let a \
                   program connect that may read their epoch (SENTINEL MASTER), and run this again";
        return refuse(Kind::Changed, why);
    }
    if marker.replid != shown.replid || marker.handover.is_some() || marker.since == 0 {
        let why = "it was restarted or replaced, and no program has connected to it since: let one \
                   connect, and run this again";
        return refuse(Kind::Changed, why);
    }
    // A server that lost its data may have forgotten leases that are still held.
    let granted = looked.now() >= marker.quarantine_end();
    let first = marker.losses.first().map(|first| first.began);
    Ok(first.filter(|_| is_lost || granted || marker.losses.iter().count() != 1))
}

/// A data history keeps its name, so that programs that have connected before go on.
pub(super) fn marked(
    looked: &Looked,
    used: Option<u64>,
    names: (u64, u64),
    epoch: Option<u64>,
) -> Marker {
    let shown = &looked.shown;
    let (deployment, vote) = names;
    let born = Marker::born(deployment, vote, rand::random(), shown.replid);
    let mut marker = shown.marker.unwrap_or(born);
    if marker.vote == 0 {
        (marker.deployment, marker.vote) = names;
    }
    (marker.process, marker.evicted) = (shown.process, shown.evicted);
    marker.epoch = marker.epoch.max(epoch.unwrap_or(0));
    (marker.began, marker.written) = (Began::Known, looked.now());
    if used.is_some() {
        marker.losses = marker.losses.without_first();
    } else {
        (marker.since, marker.floor, marker.losses) = (0, 0, Losses::default());
    }
    marker
}

/// `began` is when the server's data began.
async fn older(conn: &Conn, keys: Vec<Vec<u8>>, began: &str) -> Result<Option<Vec<u8>>, String> {
    if keys.is_empty() {
        return Ok(None);
    }
    let mut command = redis::cmd("EVAL");
    command.arg(script::OLDER).arg(keys.len()).arg(&keys).arg(RecordRead::HEAD);
    let heads: Vec<Vec<u8>> = conn.read(&command, "EVAL").await?;
    let began = began.parse::<u64>().unwrap_or(0).saturating_mul(1_000);
    let is_older = |head: &Vec<u8>| RecordRead::parse(head).is_some_and(|r| r.ballot() < began);
    Ok(keys.into_iter().zip(&heads).find(|(_, head)| is_older(head)).map(|(key, _)| key))
}

pub(super) async fn mark(deployment: &Deployment, master: &Master, is_lost: bool, id: u64) -> Init {
    let conn = match master.open(deployment).await {
        Ok(conn) => conn,
        Err(why) => return Init::Unreachable(format!("{}: {why}", master.at)),
    };
    let names = (id, rand::random());
    let written = marking::rewrite(&conn, (deployment, master), |looked| {
        let used = used(looked, master.epoch, is_lost)?;
        Ok((marked(looked, used, names, master.epoch), (used, looked.shown.process)))
    });
    let ((used, process), few) = match written.await {
        Ok(written) => written,
        // Another call was faster.
        Err(Refusal { kind: Kind::Marked, why }) => {
            return Init::Already { at: master.at.clone(), note: why };
        }
        Err(Refusal { why, .. }) => return Init::Refused(format!("{}: {why}", master.at)),
    };
    if let Some(few) = few {
        return Init::Doubtful(format!(
            "marked at {}, but {few}: before it is used, find out why they lag, delete {MARKER} \
             there and run init again",
            master.at
        ));
    }
    let wanted = master.replicas.len();
    let notes = [
        (is_lost, "keys used before count as new"),
        (
            used.is_some(),
            "programs have used it already: a quarantine that has begun lasts to its end",
        ),
        (
            wanted == 0 && master.without_backlog && !backlog::proves_renames(&process),
            "it has no replica: attaching the first one, also for a backup, costs one quarantine, \
             as a failover does; attach it before the server is used",
        ),
    ];
    let kept = backlog::keep(&conn, &process).await;
    let notes = notes.iter().filter(|(is, _)| *is).map(|(_, note)| *note);
    let notes: Vec<&str> = notes.chain(kept.as_deref()).collect();
    let note = (!notes.is_empty()).then(|| notes.join("; "));
    Init::Marked { at: master.at.clone(), replicas: wanted, note }
}

#[cfg(test)]
mod tests {
    use palisade::internal::lineage::{ReplicationId, Shown};
    use palisade::node::spi::Loss;

    use super::*;

    /// It returned unchanged, and no program has been here since.
    #[test]
    fn a_server_that_was_replaced_in_between_is_not_marked() {
        let replid = ReplicationId::parse(&"7".repeat(40)).unwrap();
        let mut marker = Marker::born(1, 2, 3, replid);
        (marker.began, marker.since, marker.epoch) = (Began::Empty, 1_000, 5);
        marker.losses = Losses::default().and(Loss { from: 0, began: 1_000, to: 1_000 });
        let (marker, process) = (Some(marker), marker.process);
        let (is_empty, note, evicted, micros) = (false, None, 0, 90_000_000);
        let (stayed, disturbed) = (false, false);
        let shown =
            Shown { marker, is_empty, note, replid, process, evicted, micros, stayed, disturbed };
        let looked = Looked { text: String::new(), shown };
        assert_eq!(used(&looked, Some(5), false).ok(), Some(Some(1_000)));
        for is_lost in [false, true] {
            let refused = used(&looked, Some(6), is_lost).map_err(|refusal| refusal.kind);
            assert_eq!(refused.err(), Some(Kind::Changed));
        }
    }

    #[test]
    fn the_exit_code_says_the_worst() {
        let of = |all: &[Init]| {
            let nodes = all.iter().map(|i| ("n".to_owned(), i.clone())).collect();
            Initialised { nodes }.exit_code()
        };
        let marked = Init::Marked { at: "a:1".into(), replicas: 0, note: None };
        let left = Init::Left { at: "a:1".into() };
        assert_eq!(of(std::slice::from_ref(&marked)), 0);
        assert_eq!(of(&[left.clone(), Init::Refused("x".into())]), 2);
        assert_eq!(of(&[left, Init::Unreachable("x".into())]), 69);
    }
}
