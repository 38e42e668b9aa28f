//! Deployments for `nemesis ordinary`: real servers on loopback, and the ordinary events (restarts,
//! crashes, handovers and others) on them.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use palisade::idempotency::Status;
use palisade::node::ClusterNode;
use palisade::{Durability, RedisNode, Redlock, SentinelNode};
use palisade_ops::{Deployment, HandedOver, Handover, KeyState, Records, Select, init};
use tokio::task::block_in_place;
use tokio::time::sleep;

use super::cluster::Cluster;
use super::event::Happening;
use super::server::Server;
use crate::groups::{Group, Groups, Member, ask, back_up};
use crate::names::names;
use crate::switch::Switch;
use crate::world::{Failure, signal, words};

/// Downtime of a killed server.
const AWAY: Duration = Duration::from_secs(10);
/// Age of a backup at its restoration. It is longer than the loss of data that the requests accept.
const OLD: Duration = Duration::from_secs(25);
/// Limit for the length of a list of stored keys. A run has fewer keys.
const KEYS_MAX: usize = 100_000;
/// Maximum time from SIGTERM to the end of a server.
const ENDS: Duration = Duration::from_secs(10);
/// Time for which an address leads to another's server: longer than a lease.
const ELSEWHERE: Duration = Duration::from_secs(20);
/// Time at the second master before the first one returns: longer than a quarantine.
const REPLACED: Duration = Duration::from_secs(30);
/// L of a name: time for which a service would let a replaced primary go on. Here it is killed.
const WINDOW: Duration = Duration::from_secs(4);
/// Time after which the servers of a cluster replace a silent master. L is 11 s.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
/// All keys of a cluster are in one slot, as an event happens to one shard only.
const PREFIX: &str = "{orders}:";
/// Maximum time for a step that Sentinels make.
const STEP: Duration = Duration::from_secs(60);

names! {
    /// A kind of deployment. Each kind is a row of the tables that `nemesis ordinary` prints, in
    /// this order.
    pub(super) enum Kind {
        Server = "one server",
        ServerAof = "one server with AOF",
        ServerAlways = "one server with AOF, always",
        ServerDurable = "one server, durable",
        Named = "one name, one replica",
        Group = "one group",
        GroupAll = "one group, AllReplicas",
        Servers = "three servers",
        Groups = "three groups",
        Cluster = "one cluster",
    }
}

impl Kind {
    pub(super) fn has_replicas(self) -> bool {
        matches!(self, Self::Group | Self::GroupAll | Self::Groups)
    }

    fn nodes(self) -> usize {
        if matches!(self, Self::Servers | Self::Groups) { 3 } else { 1 }
    }

    pub(super) fn durability(self) -> Durability {
        if self == Self::GroupAll { Durability::AllReplicas } else { Durability::Primary }
    }

    /// Returns the command-line arguments of a single server. The snapshot settings are the
    /// defaults of a server without a configuration file.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Server => &["--save", "3600 1 300 100 60 10000"],
            Self::ServerAlways | Self::ServerDurable => {
                &["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
            }
            _ => &["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"],
        }
    }
}

/// A running deployment. Its servers end when this value is dropped, or when this process ends.
pub(super) struct Fleet {
    kind: Kind,
    lone: Vec<Server>,
    /// Address of the first lone server, if it can lead elsewhere.
    address: Option<Switch>,
    /// The replica of the first lone server, which a service promotes in its place.
    replica: Option<Server>,
    groups: Option<Groups>,
    cluster: Option<Cluster>,
}

impl Fleet {
    /// Starts new servers for an event. They are not initialised yet.
    pub(super) async fn up(kind: Kind, what: Happening) -> Result<Self, Failure> {
        if kind.has_replicas() {
            let groups = Some(Groups::up(kind.nodes(), &["--no-marker"]).await?);
            let (lone, address, replica, cluster) = (Vec::new(), None, None, None);
            return Ok(Self { kind, lone, address, replica, groups, cluster });
        }
        if kind == Kind::Cluster {
            let start = || Cluster::start_with(3, 1, NODE_TIMEOUT, kind.arguments());
            let cluster = Some(block_in_place(start));
            let (lone, address, replica, groups) = (Vec::new(), None, None, None);
            return Ok(Self { kind, lone, address, replica, groups, cluster });
        }
        let start = || (0..kind.nodes()).map(|_| Server::start(kind.arguments())).collect();
        let lone: Vec<Server> = block_in_place(start);
        let address = match lone.first() {
            Some(first) if what == Happening::Elsewhere || kind == Kind::Named => {
                Some(Switch::to(&first.addr()).await?)
            }
            _ => None,
        };
        let replica = lone.first().filter(|_| kind == Kind::Named).map(|first| {
            let port = first.port().to_string();
            let args = [kind.arguments(), &["--replicaof", "127.0.0.1", &port]].concat();
            block_in_place(|| Server::start(&args))
        });
        let begun = Instant::now();
        // The primary takes a little longer than the replica to see it.
        while let Some(primary) = lone.first().filter(|_| replica.is_some())
            && !block_in_place(|| primary.cli(&["INFO", "replication"])).contains("state=online")
        {
            if begun.elapsed() > STEP {
                return Err("the replica does not follow".into());
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(Self { kind, lone, address, replica, groups: None, cluster: None })
    }

    pub(super) fn redlock(&self) -> Result<Redlock, Failure> {
        let mut builder = Redlock::builder();
        for (n, server) in self.lone.iter().enumerate() {
            let address = self.address.as_ref().filter(|_| n == 0);
            let url = address.map_or_else(|| server.url(), |a| format!("redis://{}", a.addr()));
            let window = if self.kind == Kind::Named { WINDOW } else { Duration::ZERO };
            let node = RedisNode::builder(url).failover_window(window);
            builder = builder.node(node.durable(self.kind == Kind::ServerDurable).build()?);
        }
        for group in self.groups.iter().flat_map(|g| &g.groups) {
            builder = builder.node(SentinelNode::new(&*group.name, group.sentinels.clone())?);
        }
        if let Some(cluster) = &self.cluster {
            builder = builder.prefix(PREFIX).node(ClusterNode::new(cluster.addresses())?);
        }
        Ok(builder.build()?)
    }

    /// Returns a deployment of the first `nodes` nodes, with the addresses that an operator would
    /// give to `palisade`.
    fn operated(&self, nodes: usize) -> Deployment {
        let lone = self.lone.iter().take(nodes);
        let all = lone.fold(Deployment::new(), |all, server| all.node(server.url()));
        let groups = self.groups.iter().flat_map(|g| &g.groups).take(nodes);
        let all = groups.fold(all, |all, group| all.node(group.url()));
        let cluster = self.cluster.as_ref().map(Cluster::addresses);
        cluster.iter().fold(all, |all, at| all.node(format!("cluster://{}", at.join(","))))
    }

    /// Initialises the servers, as `palisade init` does.
    pub(super) async fn init(&self) -> Result<(), Failure> {
        let done = init(&self.operated(usize::MAX), "").await?;
        if done.is_done() { Ok(()) } else { Err(done.to_string().into()) }
    }

    /// Makes the backup for the event `Backup`, and waits until it is old. Gives a replica the
    /// priority 0 for the event `Returning`, so that one server only can be promoted.
    pub(super) async fn prepare(&self, what: Happening) -> Result<(), Failure> {
        if what == Happening::Backup {
            let server = self.lone.first().ok_or("no server")?;
            block_in_place(|| copy(server, "backup"))?;
            sleep(OLD).await;
        }
        if what == Happening::Returning {
            let group = self.first_group()?;
            ask(&group.servers[2].addr, &["CONFIG", "SET", "replica-priority", "0"]).await;
            // The Sentinels ask for it every ten seconds.
            sleep(Duration::from_secs(12)).await;
        }
        Ok(())
    }

    /// Returns the keys of the namespace that have a result on the first node. `keys` are those
    /// that may have one.
    pub(super) async fn stored(
        &self,
        namespace: &str,
        keys: &[String],
    ) -> Result<BTreeSet<String>, Failure> {
        if self.cluster.is_some() {
            // The command that lists keys does not know clusters.
            let (redlock, mut stored) = (self.redlock()?, BTreeSet::new());
            let all = redlock.idempotency(namespace).at_most_once().build()?;
            for key in keys {
                if let Status::Stored(_) = all.key(key.as_str()).lookup::<String>().await? {
                    stored.insert(key.clone());
                }
            }
            return Ok(stored);
        }
        let records = Records::new(&self.operated(1), "", namespace)?;
        let (states, limit) = (vec![KeyState::Stored], Some(KEYS_MAX));
        let list = records.list(&Select { states, limit, ..Select::default() }).await?;
        match list.unread.first() {
            None if !list.more => Ok(list.keys.into_iter().map(|key| key.key).collect()),
            None => Err(format!("more than {KEYS_MAX} keys").into()),
            Some((node, why)) => Err(format!("{node} not read: {why}").into()),
        }
    }

    /// Performs an ordinary event (such as a restart) on the first server or group. A killed server
    /// is started again.
    pub(super) async fn happen(&mut self, what: Happening) -> Result<(), Failure> {
        match what {
            Happening::First => self.init().await,
            Happening::FirstWithoutInit => Ok(()),
            Happening::Restart => self.restart().await,
            Happening::Crash => self.crash().await,
            Happening::Planned => self.planned().await,
            Happening::ReplicaLost => {
                let groups = self.groups.as_ref().ok_or("a lone server has no replica")?;
                groups.break_("kill", &["--server", "a2"]).await?;
                sleep(AWAY).await;
                groups.break_("restart", &["--server", "a2"]).await
            }
            Happening::Backup => {
                let server = self.lone.first_mut().ok_or("no server")?;
                block_in_place(|| {
                    server.kill();
                    restore(server, "backup")?;
                    server.again();
                    Ok(())
                })
            }
            Happening::Emptied => {
                if let Some(groups) = &self.groups {
                    return groups.break_("flushall", &[]).await;
                }
                let server = self.lone.first_mut().ok_or("no server")?;
                block_in_place(|| server.restart_empty());
                Ok(())
            }
            Happening::BackedUp => {
                let server = self.lone.first().map(Server::addr);
                let master = match &self.groups {
                    Some(groups) => groups.master().await.map(|m| m.addr),
                    None => None,
                };
                back_up(&server.or(master).ok_or("no master")?).await
            }
            Happening::Returning => self.returning().await,
            Happening::Moved => self.moved(),
            Happening::Elsewhere => {
                let (address, home) = (self.address.as_ref(), self.lone.first());
                let (address, home) = address.zip(home).ok_or("no address")?;
                let foreign = block_in_place(|| Server::start(&["--appendonly", "yes"]));
                let made = init(&Deployment::new().node(foreign.url()), "").await?;
                if !made.is_done() {
                    return Err(made.to_string().into());
                }
                address.lead_to(&foreign.addr());
                sleep(ELSEWHERE).await;
                address.lead_to(&home.addr());
                Ok(())
            }
        }
    }

    fn first_group(&self) -> Result<&Group, Failure> {
        self.groups.as_ref().and_then(|g| g.groups.first()).ok_or("no group".into())
    }

    /// The master is frozen and another one promoted. The first one thaws, the promoted one dies,
    /// and the Sentinels promote the first one, which never learnt that it was replaced.
    async fn returning(&self) -> Result<(), Failure> {
        let groups = self.groups.as_ref().ok_or("no group")?;
        let first = groups.master().await.ok_or("no master")?;
        signal(first.pid, "STOP");
        let promoted = until_master(groups, |m| m.addr != first.addr).await;
        sleep(REPLACED).await;
        signal(first.pid, "CONT");
        sleep(Duration::from_millis(1_500)).await;
        let promoted = promoted?;
        signal(promoted.pid, "KILL");
        until_master(groups, |m| m.addr == first.addr).await?;
        // All replicas have to be there again for `AllReplicas`.
        sleep(AWAY).await;
        groups.break_("restart", &["--server", &promoted.id]).await
    }

    /// Moves the slot of all keys to another master.
    fn moved(&self) -> Result<(), Failure> {
        let cluster = self.cluster.as_ref().ok_or("no cluster")?;
        block_in_place(|| {
            let slot = cluster.slot(PREFIX);
            let from = cluster.owner(slot);
            cluster.move_slot(slot, from, (from + 1) % 3);
        });
        Ok(())
    }

    /// Returns the cluster, and the master that has all keys.
    fn shard(&mut self) -> Option<(&mut Cluster, usize)> {
        let cluster = self.cluster.as_mut()?;
        let master = block_in_place(|| cluster.owner(cluster.slot(PREFIX)));
        Some((cluster, master))
    }

    /// Restarts the first server, as `systemctl restart` does. With groups, restarts the first
    /// server of the first group.
    async fn restart(&mut self) -> Result<(), Failure> {
        if let Some(groups) = &self.groups {
            let master = &groups.groups[0].servers[0];
            end(master.pid).await?;
            return groups.break_("restart", &["--server", &master.id]).await;
        }
        if let Some((cluster, master)) = self.shard() {
            end(cluster.servers[master].pid()).await?;
            block_in_place(|| cluster.servers[master].restart());
            return Ok(());
        }
        let server = self.lone.first_mut().ok_or("no server")?;
        end(server.pid()).await?;
        block_in_place(|| server.restart());
        Ok(())
    }

    async fn crash(&mut self) -> Result<(), Failure> {
        if let Some(groups) = &self.groups {
            groups.break_("kill", &["--server", "a1"]).await?;
            sleep(AWAY).await;
            return groups.break_("restart", &["--server", "a1"]).await;
        }
        if let Some((cluster, master)) = self.shard() {
            block_in_place(|| cluster.servers[master].kill());
            until_master_of(&cluster.servers[master + 3]).await?;
            sleep(AWAY).await;
            block_in_place(|| cluster.servers[master].again());
            return Ok(());
        }
        let server = self.lone.first_mut().ok_or("no server")?;
        block_in_place(|| server.kill());
        sleep(AWAY).await;
        if let Some((name, replica)) = self.address.as_ref().zip(self.replica.take()) {
            // As a service does.
            if block_in_place(|| replica.cli(&["REPLICAOF", "NO", "ONE"])) != "OK" {
                return Err("the replica is not promoted".into());
            }
            name.lead_to(&replica.addr());
            *server = replica;
            return Ok(());
        }
        block_in_place(|| server.again());
        Ok(())
    }

    /// Performs a planned handover of the first node, as `palisade handover` does.
    async fn planned(&mut self) -> Result<(), Failure> {
        if let Some((cluster, master)) = self.shard() {
            let replica = &cluster.servers[master + 3];
            let answer = block_in_place(|| replica.cli(&["cluster", "failover"]));
            if answer != "OK" {
                return Err(format!("CLUSTER FAILOVER: {answer}").into());
            }
            return until_master_of(replica).await;
        }
        let handover = Handover::new(self.operated(1));
        let done = if self.groups.is_some() {
            handover.group(|_| ()).await?
        } else {
            let restart = async { self.restart().await.map_err(|e| e.to_string()) };
            handover.lone(restart, |_| ()).await?
        };
        match done {
            HandedOver::Done { .. } => Ok(()),
            other => Err(other.to_string().into()),
        }
    }
}

/// Waits until a replica of a cluster has taken its master's place.
async fn until_master_of(replica: &Server) -> Result<(), Failure> {
    let begun = Instant::now();
    while !block_in_place(|| replica.cli(&["role"])).starts_with("master") {
        if begun.elapsed() > STEP {
            return Err(format!("{} is not promoted", replica.addr()).into());
        }
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

async fn until_master(groups: &Groups, is: impl Fn(&Member) -> bool) -> Result<Member, Failure> {
    let begun = Instant::now();
    loop {
        if let Some(master) = groups.master().await.filter(&is) {
            return Ok(master);
        }
        if begun.elapsed() > STEP {
            return Err("the Sentinels did not name the master that was waited for".into());
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Makes a backup of a running server: copies its snapshot and its append-only file.
fn copy(server: &Server, to: &str) -> Result<(), Failure> {
    if server.cli(&["CONFIG", "GET", "appendonly"]).ends_with("no") {
        server.cli(&["SAVE"]);
    }
    fs::create_dir_all(server.dir().join(to))?;
    shell(
        server,
        &format!("for f in dump.rdb appendonlydir; do test -e $f && cp -a $f {to}/; done"),
    )
}

/// Replaces the data of a stopped server by a backup.
fn restore(server: &Server, from: &str) -> Result<(), Failure> {
    shell(server, &format!("rm -rf dump.rdb appendonlydir; cp -a {from}/* ."))
}

fn shell(server: &Server, script: &str) -> Result<(), Failure> {
    let script = format!("{script}; true");
    let out = Command::new("sh").arg("-c").arg(script).current_dir(server.dir()).output()?;
    if out.stderr.is_empty() { Ok(()) } else { Err(words(&out.stderr).into()) }
}

async fn end(pid: u32) -> Result<(), Failure> {
    signal(pid, "TERM");
    let begun = Instant::now();
    loop {
        // A server that has ended remains in /proc as a zombie until its parent process waits for
        // it.
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if state.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('Z')) {
            return Ok(());
        }
        if begun.elapsed() > ENDS {
            return Err(format!("server {pid} did not end within {ENDS:?}").into());
        }
        sleep(Duration::from_millis(10)).await;
    }
}
