//! Small Sentinel groups that tests start and then break. Each machine of a group can have its own
//! loopback address. A group has any number of Sentinels. The data servers can have proxies in
//! front of them.

use palisade::internal::lineage::{Marker, ReplicationId};
use std::time::{Duration, Instant};

use crate::support::group::cli;
use crate::support::proxy::Proxy;
use crate::support::server::Server;

pub(crate) const NAME: &str = "orders";
/// Maximum wait for a change that the servers make by themselves.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Server arguments, as in `sentinel-conf/templates/redis.conf`.
const SERVER: &[&str] = &[
    "--min-replicas-to-write",
    "1",
    "--min-replicas-max-lag",
    "2",
    "--repl-diskless-sync-delay",
    "0",
    "--repl-backlog-size",
    "64mb",
    "--repl-backlog-ttl",
    "0",
    "--appendonly",
    "yes",
    "--maxmemory-policy",
    "noeviction",
];

/// The shape and the settings of a group.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// Number of data servers.
    pub(crate) servers: usize,
    pub(crate) sentinels: usize,
    pub(crate) quorum: usize,
    /// If true, each machine has its own loopback address. Otherwise all machines have 127.0.0.1.
    pub(crate) boxes: bool,
    /// If true, every data server has a proxy. The other servers and Sentinels have only the
    /// address of the proxy.
    pub(crate) proxies: bool,
    /// Arguments of all data servers.
    pub(crate) server_args: &'static [&'static str],
    /// Arguments of all Sentinels.
    pub(crate) sentinel_args: &'static [&'static str],
    /// Password of the data servers. The Sentinels use it, too.
    pub(crate) auth_pass: Option<&'static str>,
    /// Password of the Sentinels themselves.
    pub(crate) sentinel_pass: Option<&'static str>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            servers: 3,
            sentinels: 3,
            quorum: 2,
            boxes: false,
            proxies: false,
            server_args: &[],
            sentinel_args: &[],
            auth_pass: None,
            sentinel_pass: None,
        }
    }
}

/// A master, its replicas, and Sentinels. Dropping the value ends all these servers.
pub(crate) struct Lab {
    plan: Plan,
    /// The data servers. The first server is the master.
    pub(crate) servers: Vec<Server>,
    pub(crate) sentinels: Vec<Server>,
    /// The proxy of each data server; empty without proxies.
    pub(crate) proxies: Vec<Proxy>,
}

impl Lab {
    /// Starts the servers and the Sentinels. Returns when every Sentinel reports all servers, and
    /// none as down.
    pub(crate) fn up(plan: &Plan) -> Self {
        let host = |i: usize| if plan.boxes { format!("127.0.0.{}", i + 2) } else { local() };
        let args = [SERVER, plan.server_args].concat();
        let servers: Vec<_> =
            (0..plan.servers).map(|i| Server::start_on(&host(i), "redis-server", &args)).collect();
        let proxies = servers.iter().filter(|_| plan.proxies).map(|s| Proxy::to(&s.addr()));
        let proxies = proxies.collect();
        let mut lab = Self { plan: *plan, proxies, servers, sentinels: Vec::new() };
        lab.join();
        for i in 0..plan.sentinels {
            lab.add_sentinel(&host(i));
        }
        lab.settle();
        let info = lab.ask(0, &["INFO", "replication"]);
        assert_eq!(lab.ask(0, &["SET", MARKER, &marker(&info, 0, 0)]), "OK");
        lab
    }

    /// Returns the address at which clients and Sentinels reach a data server.
    pub(crate) fn known_as(&self, i: usize) -> String {
        self.proxies.get(i).map_or_else(|| self.servers[i].addr(), Proxy::addr)
    }

    /// Returns the addresses of the Sentinels as `host:port`.
    pub(crate) fn sentinel_addrs(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::addr).collect()
    }

    fn replicas(&self) -> usize {
        self.servers.len() - 1
    }

    fn join(&self) {
        for (i, proxy) in self.proxies.iter().enumerate() {
            let port = proxy.port().to_string();
            assert_eq!(self.ask(i, &["CONFIG", "SET", "replica-announce-port", &port]), "OK");
        }
        let master = self.known_as(0);
        let (host, port) = master.rsplit_once(':').expect("host:port");
        for i in 1..self.servers.len() {
            assert_eq!(self.ask(i, &["REPLICAOF", host, port]), "OK");
        }
        wait_for("replicas online", || {
            let info = self.ask(0, &["INFO", "replication"]);
            info.matches("state=online").count() == self.replicas()
        });
    }

    /// Starts another Sentinel of the group.
    pub(crate) fn add_sentinel(&mut self, host: &str) {
        let args = [&["sentinel.conf"], self.plan.sentinel_args].concat();
        self.sentinels.push(Server::start_on(host, "redis-sentinel", &args));
        let i = self.sentinels.len() - 1;
        let say = |text: &[&str]| assert_eq!(self.say(i, text), "OK", "{text:?}");
        // These settings make the Sentinel request and publish information more often. Its
        // decisions stay the same.
        say(&["SENTINEL", "DEBUG", "info-period", "300", "publish-period", "200"]);
        let master = self.known_as(0);
        let (host, port) = master.rsplit_once(':').expect("host:port");
        let quorum = self.plan.quorum.to_string();
        say(&["SENTINEL", "MONITOR", NAME, host, port, &quorum]);
        say(&["SENTINEL", "SET", NAME, "down-after-milliseconds", "5000"]);
        say(&["SENTINEL", "SET", NAME, "failover-timeout", "15000"]);
        if let Some(password) = self.plan.auth_pass {
            say(&["SENTINEL", "SET", NAME, "auth-pass", password]);
        }
    }

    /// Waits until every Sentinel has found all other Sentinels and all replicas, and none of them
    /// is down.
    pub(crate) fn settle(&self) {
        wait_for("Sentinels that know and see all others", || {
            (0..self.sentinels.len()).all(|i| self.sees_all(i))
        });
    }

    fn sees_all(&self, i: usize) -> bool {
        let list = |what| self.say(i, &["SENTINEL", what, NAME]);
        let (master, replicas, others) = (list("MASTER"), list("REPLICAS"), list("SENTINELS"));
        let all = [&*master, &*replicas, &*others].join("\n");
        let well = !["s_down", "disconnected"].iter().any(|w| all.contains(w));
        well && replicas.matches("\nmaster-link-status\nok\n").count() == self.replicas()
            && replicas.matches("\nrunid\n").count() == self.replicas()
            && others.matches("\nrunid\n").count() == self.sentinels.len() - 1
            && !others.contains("runid\n\n")
    }

    /// Runs a command on a data server.
    pub(crate) fn ask(&self, i: usize, command: &[&str]) -> String {
        authenticated(&self.servers[i], self.plan.auth_pass, command)
    }

    /// Runs a command on a Sentinel.
    pub(crate) fn say(&self, i: usize, command: &[&str]) -> String {
        authenticated(&self.sentinels[i], self.plan.sentinel_pass, command)
    }
}

fn authenticated(server: &Server, password: Option<&str>, command: &[&str]) -> String {
    let login = password.map(|p| ["--no-auth-warning", "-a", p]);
    let login = login.as_ref().map_or(&[][..], |l| &l[..]);
    server.cli(&[login, command].concat())
}

/// Key of the marker, in which palisade stores the history of a server's data.
pub(crate) const MARKER: &str = "palisade:generation";

/// Returns a marker for the server with this `INFO replication`. `since` is the time from which the
/// server's data are complete, `length` the length of the quarantine, both in ms.
pub(crate) fn marker(info: &str, since: u64, length: u64) -> String {
    let id = info.lines().find_map(|l| l.strip_prefix("master_replid:")).expect("a history");
    let born = Marker::born(1, 2, 3, ReplicationId::parse(id.trim_end()).expect("an id"));
    Marker { since, quarantine: length, written: since, ..born }.to_string()
}

fn local() -> String {
    "127.0.0.1".to_owned()
}

/// Waits until `so` returns true.
pub(crate) fn wait_for(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs one command and expects the reply `OK`.
pub(crate) fn ok(addr: &str, command: &[&str]) {
    assert_eq!(cli(addr, command), "OK", "{command:?} at {addr}");
}
