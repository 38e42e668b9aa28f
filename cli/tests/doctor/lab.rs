//! Small Sentinel groups that can be wrong in any way: boxes on loopback addresses of their own,
//! any number of Sentinels, and proxies in front of the data servers.

use std::time::{Duration, Instant};

use crate::support::group::cli;
use crate::support::proxy::Proxy;
use crate::support::server::Server;

/// The group's name at its Sentinels.
pub(crate) const NAME: &str = "orders";
/// Longest wait for something that the servers do by themselves.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// As in `sentinel-conf/templates/redis.conf`.
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

/// What is to be built.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// Data servers.
    pub(crate) servers: usize,
    pub(crate) sentinels: usize,
    pub(crate) quorum: usize,
    /// A loopback address for each box, instead of 127.0.0.1 for all.
    pub(crate) boxes: bool,
    /// Every data server is known to all others by its proxy's address.
    pub(crate) proxies: bool,
    /// Given to all data servers.
    pub(crate) server_args: &'static [&'static str],
    /// Given to all Sentinels.
    pub(crate) sentinel_args: &'static [&'static str],
    /// The data servers' password, for the Sentinels too.
    pub(crate) auth_pass: Option<&'static str>,
    /// The Sentinels' own.
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

/// A master, its replicas, and Sentinels; all are ended on drop.
pub(crate) struct Lab {
    plan: Plan,
    /// The first is the master.
    pub(crate) servers: Vec<Server>,
    pub(crate) sentinels: Vec<Server>,
    /// In front of each server, if the plan says so.
    pub(crate) proxies: Vec<Proxy>,
}

impl Lab {
    /// Returns when every Sentinel sees everything well.
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
        assert_eq!(lab.ask(0, &["SET", MARKER, &marker(&info, 0, 0, 0)]), "OK");
        lab
    }

    /// Where clients and Sentinels meet a data server.
    pub(crate) fn known_as(&self, i: usize) -> String {
        self.proxies.get(i).map_or_else(|| self.servers[i].addr(), Proxy::addr)
    }

    /// `host:port` of the Sentinels.
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

    /// Another Sentinel of the group.
    pub(crate) fn add_sentinel(&mut self, host: &str) {
        let args = [&["sentinel.conf"], self.plan.sentinel_args].concat();
        self.sentinels.push(Server::start_on(host, "redis-sentinel", &args));
        let i = self.sentinels.len() - 1;
        let say = |text: &[&str]| assert_eq!(self.say(i, text), "OK", "{text:?}");
        // Only quicker than usual in what it looks at and tells, not in what it decides.
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

    /// Waits until every Sentinel knows all others and the replicas, and finds nobody down.
    pub(crate) fn settle(&self) {
        wait_for("Sentinels that know and see everybody", || {
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

    /// A command to a data server.
    pub(crate) fn ask(&self, i: usize, command: &[&str]) -> String {
        authenticated(&self.servers[i], self.plan.auth_pass, command)
    }

    /// A command to a Sentinel.
    pub(crate) fn say(&self, i: usize, command: &[&str]) -> String {
        authenticated(&self.sentinels[i], self.plan.sentinel_pass, command)
    }
}

fn authenticated(server: &Server, password: Option<&str>, command: &[&str]) -> String {
    let login = password.map(|p| ["--no-auth-warning", "-a", p]);
    let login = login.as_ref().map_or(&[][..], |l| &l[..]);
    server.cli(&[login, command].concat())
}

/// Where palisade keeps what a server says of itself.
pub(crate) const MARKER: &str = "palisade:generation";

/// The marker of the server with this `INFO replication`: since when its data are known, for how
/// long it grants nothing then, and until when that length stays, in ms.
pub(crate) fn marker(info: &str, since: u64, length: u64, agreed: u64) -> String {
    let id = info.lines().find_map(|l| l.strip_prefix("master_replid:")).expect("a history");
    format!("{} {since:013} {:016} {length:09} {agreed:013} {:013} n", id.trim_end(), 0, 0)
}

fn local() -> String {
    "127.0.0.1".to_owned()
}

/// Asks until it is so.
pub(crate) fn wait_for(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs one command and expects `OK`.
pub(crate) fn ok(addr: &str, command: &[&str]) {
    assert_eq!(cli(addr, command), "OK", "{command:?} at {addr}");
}
