//! Finds the server of each node that an operation may write to.

use std::collections::BTreeSet;

use futures_util::future::join_all;

use super::deployment::Access;
use super::facts::{Group, Role, Sentinel, Server, Unread, flagged, join, place};
use super::gather::conn::{Conn, fields};
use super::{Deployment, gather};
use palisade::ConfigError;
use palisade::error::NodeFault;
use palisade::internal::Endpoint;
use palisade::internal::{SENTENCE_MAX, Secrets, objection, unsupported};

pub(super) struct Found {
    /// The name of the group, or `node` and the address of the server.
    pub(super) node: String,
    pub(super) master: Result<Master, Absent>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    Unreachable(String),
    Refused(String),
}

impl Absent {
    pub(super) fn why(self) -> String {
        match self {
            Self::Unreachable(why) | Self::Refused(why) => why,
        }
    }

    /// The text may contain text from servers.
    fn clean(self, secrets: &Secrets) -> Self {
        let clean = |text: &str| secrets.sentence(text, SENTENCE_MAX);
        match self {
            Self::Unreachable(why) => Self::Unreachable(clean(&why)),
            Self::Refused(why) => Self::Refused(clean(&why)),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Master {
    /// `host:port`. In a group, the address that the Sentinels report.
    pub(super) at: String,
    pub(super) target: Endpoint,
    /// That follow this server: by [`find`] all that are known.
    pub(super) replicas: Vec<String>,
    /// It gets a new replication id as soon as its first replica connects.
    pub(super) without_backlog: bool,
    pub(super) run_id: String,
    /// In which a majority of the Sentinels names the server; `None` for a lone server.
    pub(super) epoch: Option<u64>,
    /// Each known Sentinel once; none of a lone server.
    pub(super) sentinels: Vec<String>,
    /// Also those without an address here.
    pub(super) known: usize,
    pub(super) hand: String,
    /// Why this server or a replica may delete locks and keys, or a replica did. [`find`] looks at
    /// the replicas, too.
    pub(super) evicts: Option<String>,
    /// Its last writes are only in memory.
    pub(super) appends_nothing: bool,
    /// By its settings the server is empty after a restart.
    pub(super) keeps_nothing: bool,
}

/// The replicas of a group must be connected and online.
pub(super) async fn find(deployment: &Deployment) -> Result<(Access, Vec<Found>), ConfigError> {
    find_with(deployment, true).await
}

/// Replicas may be missing.
pub(super) async fn find_masters(
    deployment: &Deployment,
) -> Result<Vec<(String, Result<Master, String>)>, ConfigError> {
    let (_, found) = find_with(deployment, false).await?;
    Ok(found.into_iter().map(|one| (one.node, one.master.map_err(Absent::why))).collect())
}

/// A master whose last writes are not on its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InMemory {
    /// Address of the server: `host:port`, as the Sentinels report it, or the path of a socket.
    pub at: String,
    /// What the server lacks, and what has to happen so that the last writes are lost, as the end
    /// of a sentence that begins with its address.
    pub why: String,
    /// Command line by which a person has the server save its data. It has no password. `None` if
    /// the server does that by itself in two seconds.
    pub save: Option<String>,
}

/// Returns the masters that may lose what was written to them just now: those without an
/// append-only file, and those whose file does not reach the disk with each write. Masters that
/// could not be read are left out, and those of clusters.
///
/// # Errors
/// [`ConfigError`] if a setting is invalid.
///
/// # Cancellation safety
/// The function only reads.
pub async fn in_memory(deployment: &Deployment) -> Result<Vec<InMemory>, ConfigError> {
    let (_, deployment) = &deployment.clusters()?;
    if deployment.is_empty() {
        return Ok(Vec::new());
    }
    let masters = find_masters(deployment).await?.into_iter().filter_map(|(_, read)| read.ok());
    let read = masters.map(|master| async move {
        let sync = if master.appends_nothing { None } else { master.appendfsync(deployment).await };
        unsaved(&master, sync.as_deref())
    });
    Ok(join_all(read).await.into_iter().flatten().collect())
}

fn unsaved(master: &Master, appendfsync: Option<&str>) -> Option<InMemory> {
    let (why, save) = match appendfsync {
        _ if master.appends_nothing => {
            let why = "has no append-only file: if it crashes before its next snapshot";
            (why.to_owned(), Some("BGSAVE"))
        }
        Some("always") => return None,
        Some("everysec") => {
            let why = "writes its append-only file to disk each second: if its machine loses power \
                       within two seconds";
            (why.to_owned(), None)
        }
        other => {
            let sync = other.filter(|sync| *sync == "no").unwrap_or("unknown");
            let why = format!(
                "may write its append-only file to disk half a minute late (appendfsync {sync}): \
                 if its machine loses power before that"
            );
            (why, Some("BGREWRITEAOF"))
        }
    };
    let save = save.map(|command| format!("{} {command}", master.hand));
    Some(InMemory { at: master.at.clone(), why, save })
}

async fn find_with(
    deployment: &Deployment,
    whole: bool,
) -> Result<(Access, Vec<Found>), ConfigError> {
    let access = deployment.access()?;
    let (groups, nodes) = if whole {
        gather::everything(deployment, &access, None).await
    } else {
        gather::masters(deployment, &access).await
    };
    let mut found: Vec<Found> = Vec::new();
    for (group, login) in groups.iter().zip(&access.groups) {
        let master = of_group(group).and_then(|server| {
            let target = login.data.at(deployment.reach(&server.at));
            let (epochs, known) = (epochs(group, &server.at), known(group));
            let epoch = agreed_epoch(&epochs, known);
            let named = |replicas| Master {
                epoch,
                sentinels: sentinels(group, deployment),
                known,
                evicts: evicting(&group.servers),
                ..master(server, target, replicas)
            };
            if !whole {
                return Ok(named(online(server)));
            }
            if epoch.is_none() && epochs.len() > known / 2 {
                let why = "the Sentinels that name it differ in its config-epoch, as while a \
                           failover spreads: try again; `palisade doctor` names one that stays \
                           behind";
                return Err(Absent::Refused(format!("{}: {why}", server.at)));
            }
            let replicas = following(server, &known_replicas(group))?;
            if replicas.is_empty() {
                let why = "no replica follows it yet, and the server takes a new replication id \
                           when the first one connects; attach the replicas first";
                return Err(Absent::Refused(format!("{}: {why}", server.at)));
            }
            Ok(named(replicas))
        });
        found.push(Found { node: group.name.clone(), master });
    }
    for (server, lone) in nodes.iter().zip(&access.lone) {
        let ready = is_master(server).and_then(|()| {
            let follow = if whole { following(server, &BTreeSet::new())? } else { online(server) };
            let evicts = evicting(std::slice::from_ref(server));
            Ok(Master { evicts, ..master(server, lone.target.clone(), follow) })
        });
        found.push(Found { node: format!("node {}", server.at), master: ready });
    }
    let secrets = access.secrets();
    for one in &mut found {
        one.master = one.master.clone().map_err(|absent| absent.clean(&secrets));
    }
    Ok((access, found))
}

/// The server must report the role of a master itself, and must not be down.
fn of_group(group: &Group) -> Result<&Server, Absent> {
    let server = named(group)?;
    is_master(server)?;
    Ok(server)
}

/// By a majority of the Sentinels, none of which sees it as down.
pub(super) fn named(group: &Group) -> Result<&Server, Absent> {
    let heard: Vec<&Sentinel> = group.heard().collect();
    if heard.is_empty() {
        let why = group.sentinels.iter().filter_map(|s| s.reached.clone().err());
        let why: Vec<String> = why.collect();
        return Err(Absent::Unreachable(format!("no Sentinel: {}", why.join("; "))));
    }
    let known = known(group);
    let Some(at) = group.master_at() else {
        let unread = heard.iter().find_map(|s| Some((&s.at, s.master.as_ref().err()?)));
        let why = match unread {
            Some((at, why)) => format!("no Sentinel names a master: {at}: {why}"),
            None => "no master is named by a majority of the Sentinels".to_owned(),
        };
        return Err(Absent::Refused(why));
    };
    let voices = heard.iter().filter(|s| s.master_at().as_ref() == Some(&at)).count();
    if voices < known / 2 + 1 {
        let why = format!("only {voices} of {known} Sentinels name {at}; a majority is needed");
        return Err(Absent::Refused(why));
    }
    let down =
        |s: &&&Sentinel| s.master.iter().any(|m| flagged(m, "s_down") || flagged(m, "o_down"));
    if let Some(s) = heard.iter().find(down) {
        return Err(Absent::Refused(format!("Sentinel {} sees {at} as down", s.at)));
    }
    group.master().ok_or_else(|| Absent::Refused(format!("{at} was not examined")))
}

/// Also those that nobody can reach.
fn known(group: &Group) -> usize {
    let others = group.heard().filter_map(|s| s.counts().ok()).map(|(_, others)| others);
    let reported = others.max().map_or(0, |others| usize::try_from(others).unwrap_or(usize::MAX));
    reported.saturating_add(1).max(group.sentinels.len())
}

/// One that was named by two addresses is at the first.
fn sentinels(group: &Group, deployment: &Deployment) -> Vec<String> {
    let mut ids = BTreeSet::new();
    let once =
        group.sentinels.iter().filter(|s| s.id.as_ref().ok().is_none_or(|id| ids.insert(id)));
    let reached =
        |s: &Sentinel| if s.given { s.at.clone() } else { deployment.reach(&s.at).into() };
    once.map(reached).collect()
}

fn epochs(group: &Group, at: &str) -> Vec<u64> {
    let naming = group.heard().filter(|s| s.master_at().as_deref() == Some(at));
    let fields = naming.filter_map(|s| s.master.as_ref().ok());
    fields.filter_map(|fields| fields.get("config-epoch")?.parse().ok()).collect()
}

/// As clients decide (sentinel 1).
pub(super) fn agreed_epoch(epochs: &[u64], known: usize) -> Option<u64> {
    let voices = |epoch| epochs.iter().filter(|other| **other == epoch).count();
    epochs.iter().copied().find(|epoch| voices(*epoch) > known / 2)
}

/// Also at its promotion, which sets no counter back.
fn evicting(servers: &[Server]) -> Option<String> {
    servers.iter().find_map(|server| {
        if matches!(server.role, Ok(Role::Replica { .. }))
            && !server.allows_eviction
            && let Ok(keys) = server.info("evicted_keys")
            && keys != "0"
        {
            return Some(format!(
                "{} has deleted {keys} keys because its memory was full, so after its promotion \
                 all would count as lost: stop this replica, delete its data files and start it, \
                 so that it copies everything anew (a restart alone only hides what is gone)",
                server.at
            ));
        }
        let refusal = objection(&server.info_text().ok()?, server.allows_eviction)?;
        let is_that = refusal.fault() == NodeFault::Eviction;
        let why = || format!("{} may delete locks and keys: {}", server.at, refusal.detail());
        is_that.then(why)
    })
}

pub(super) fn is_usable(server: &Server) -> Result<(), Absent> {
    let unreachable = |why: &str| Absent::Unreachable(format!("{}: {why}", server.at));
    server.reached.as_ref().map_err(|why| unreachable(why))?;
    let info = match (&server.info, server.info_text()) {
        (Err(Unread::Failed(why)), _) => return Err(unreachable(why)),
        (_, Err(why)) => {
            let right = "allow this user +info (least rights: users-data.acl in sentinel-conf)";
            return Err(Absent::Refused(format!("{}: {why}; {right}", server.at)));
        }
        (_, Ok(info)) => info,
    };
    match unsupported(&info) {
        Some(e) => Err(Absent::Refused(format!("{}: {}", server.at, e.detail()))),
        None => Ok(()),
    }
}

fn is_master(server: &Server) -> Result<(), Absent> {
    is_usable(server)?;
    match &server.role {
        Ok(Role::Master) => Ok(()),
        Ok(Role::Replica { master }) => {
            let why = format!("{} is a replica of {master}: name the master instead", server.at);
            Err(Absent::Refused(why))
        }
        Ok(Role::Sentinel) => {
            Err(Absent::Refused(format!("{} is a Sentinel, not a data server", server.at)))
        }
        Err(why) => Err(Absent::Refused(format!("{}: {why}", server.at))),
    }
}

fn known_replicas(group: &Group) -> BTreeSet<String> {
    group.heard().filter_map(|s| s.replicas.as_ref().ok()).flatten().filter_map(place).collect()
}

fn online(server: &Server) -> Vec<String> {
    let mut online = Vec::new();
    for line in server.replica_lines() {
        let field = |name| line.get(name).copied().unwrap_or_default();
        if field("state") == "online" {
            online.push(join(field("ip"), field("port")));
        }
    }
    online
}

/// Fails if a replica is not online, or if a Sentinel reports one that is not connected.
fn following(server: &Server, known: &BTreeSet<String>) -> Result<Vec<String>, Absent> {
    let refused = |why: String| Err(Absent::Refused(format!("{}: {why}", server.at)));
    for line in server.replica_lines() {
        let field = |name| line.get(name).copied().unwrap_or_default();
        if field("port") == "0" {
            let tls = "listens by TLS only and lacks `tls-replication yes`; set that there";
            return refused(format!("its replica {} announces port 0: it {tls}", field("ip")));
        }
        if field("state") != "online" {
            let (at, state) = (join(field("ip"), field("port")), field("state"));
            return refused(format!("its replica {at} does not follow yet ({state})"));
        }
    }
    let online = online(server);
    if let Some(absent) = known.iter().find(|at| !online.contains(at)) {
        let why = format!(
            "its replica {absent} is not attached: start it, or have every Sentinel forget it \
             (SENTINEL RESET)"
        );
        return refused(why);
    }
    Ok(online)
}

fn master(server: &Server, target: Endpoint, replicas: Vec<String>) -> Master {
    Master {
        at: server.at.clone(),
        target,
        replicas,
        without_backlog: server.info("repl_backlog_active") == Ok("0"),
        run_id: server.info("run_id").unwrap_or_default().to_owned(),
        epoch: None,
        sentinels: Vec::new(),
        known: 0,
        hand: server.hand.clone(),
        evicts: None,
        appends_nothing: server.info("aof_enabled") == Ok("0"),
        keeps_nothing: server.info("aof_enabled") == Ok("0") && server.setting("save") == Ok(""),
    }
}

impl Master {
    pub(super) async fn open(&self, deployment: &Deployment) -> Result<Conn, String> {
        open(&self.target, deployment).await
    }

    /// `None` if that could not be read.
    async fn appendfsync(&self, deployment: &Deployment) -> Option<String> {
        let conn = self.open(deployment).await.ok()?;
        let setting = conn.query("CONFIG GET appendfsync", "CONFIG", fields).await.ok()?;
        setting.get("appendfsync").cloned()
    }
}

/// All requests of the connection end after the deployment's time-out.
pub(super) async fn open(target: &Endpoint, deployment: &Deployment) -> Result<Conn, String> {
    let until = tokio::time::Instant::now() + deployment.within();
    Conn::open(target, until).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_counts_if_a_majority_of_the_known_sentinels_reports_it() {
        for (epochs, known, agreed) in [
            (vec![9, 1, 1], 3, Some(1)),
            (vec![9, 1], 3, None),
            (vec![2, 1, 2], 3, Some(2)),
            (vec![9], 3, None),
            (vec![9, 9], 4, None),
            (vec![9, 9, 4, 5], 5, None),
            (vec![5, 9, 5, 5], 5, Some(5)),
            (vec![7], 1, Some(7)),
            (Vec::new(), 1, None),
        ] {
            assert_eq!(agreed_epoch(&epochs, known), agreed, "{epochs:?} of {known}");
        }
    }

    #[test]
    fn a_replica_that_announces_port_0_is_told_what_it_lacks() {
        let line = "ip=10.0.0.2,port=0,state=online,offset=1000,lag=0";
        let info = [("slave0".to_owned(), line.to_owned())].into();
        let master = Server::unreached("10.0.0.1:6379".to_owned(), true, String::new());
        let master = Server { info: Ok(info), ..master };
        let refused = following(&master, &BTreeSet::new()).unwrap_err();
        let why = "10.0.0.1:6379: its replica 10.0.0.2 announces port 0: it listens by TLS only \
                   and lacks `tls-replication yes`; set that there";
        assert_eq!(refused, Absent::Refused(why.to_owned()));
    }
}
