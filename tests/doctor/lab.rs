//! Small Sentinel groups that can be wrong in any way: boxes on loopback addresses of their own,
//! any number of Sentinels, and proxies in front of the data servers.

use std::time::{Duration, Instant};

use crate::support::group::cli;
use crate::support::proxy::Proxy;
use crate::support::server::Server;

/// The group's name at its Sentinels.
pub(crate) const NAME: &str = "orders";
/// Longest wait for something that the servers do by themselves.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

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
    /// `SENTINEL SET` and `redis-cli` need them where there are passwords.
    pub(crate) auth_pass: Option<&'static str>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            sentinels: 3,
            quorum: 2,
            boxes: false,
            proxies: false,
            server_args: &[],
            sentinel_args: &[],
            auth_pass: None,
        }
    }
}

/// A master, two replicas, and Sentinels; all are ended on drop.
pub(crate) struct Lab {
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
            (0..3).map(|i| Server::start_on(&host(i), "redis-server", &args)).collect();
        let proxies = servers.iter().filter(|_| plan.proxies).map(|s| Proxy::to(&s.addr()));
        let mut lab = Self { proxies: proxies.collect(), servers, sentinels: Vec::new() };
        lab.join(plan);
        for i in 0..plan.sentinels {
            lab.add_sentinel(&host(i), plan);
        }
        lab.settle();
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

    fn join(&self, plan: &Plan) {
        for (i, proxy) in self.proxies.iter().enumerate() {
            let port = proxy.port().to_string();
            self.at(plan, i, &["CONFIG", "SET", "replica-announce-port", &port]);
        }
        let master = self.known_as(0);
        let (host, port) = master.rsplit_once(':').expect("host:port");
        for i in 1..self.servers.len() {
            self.at(plan, i, &["REPLICAOF", host, port]);
        }
        let ready = |i: usize| {
            let info = self.ask(plan, i, &["INFO", "replication"]);
            info.contains("connected_slaves:2") && info.matches("state=online").count() == 2
        };
        wait_for("two replicas online", || ready(0));
    }

    /// Another Sentinel of the group.
    pub(crate) fn add_sentinel(&mut self, host: &str, plan: &Plan) {
        let args = [&["sentinel.conf"], plan.sentinel_args].concat();
        let sentinel = Server::start_on(host, "redis-sentinel", &args);
        let master = self.known_as(0);
        let (host, port) = master.rsplit_once(':').expect("host:port");
        // Only quicker than usual in what it looks at and tells, not in what it decides.
        sentinel.cli(&["SENTINEL", "DEBUG", "info-period", "300", "publish-period", "200"]);
        let quorum = plan.quorum.to_string();
        assert_eq!(sentinel.cli(&["SENTINEL", "MONITOR", NAME, host, port, &quorum]), "OK");
        let set = ["SENTINEL", "SET", NAME, "down-after-milliseconds", "5000"];
        let more = ["failover-timeout", "15000", "parallel-syncs", "1"];
        assert_eq!(sentinel.cli(&[&set[..], &more].concat()), "OK");
        if let Some(password) = plan.auth_pass {
            assert_eq!(sentinel.cli(&["SENTINEL", "SET", NAME, "auth-pass", password]), "OK");
        }
        self.sentinels.push(sentinel);
    }

    /// Waits until every Sentinel knows all others and both replicas, and finds nobody down.
    pub(crate) fn settle(&self) {
        wait_for("Sentinels that know and see everybody", || {
            self.sentinels.iter().all(|s| self.sees_all(s))
        });
    }

    fn sees_all(&self, sentinel: &Server) -> bool {
        let list = |what| sentinel.cli(&["SENTINEL", what, NAME]);
        let (master, replicas, others) = (list("MASTER"), list("REPLICAS"), list("SENTINELS"));
        let all = [&*master, &*replicas, &*others].join("\n");
        let well = !["s_down", "disconnected", "link-status\nerr"].iter().any(|w| all.contains(w));
        well && replicas.matches("\nmaster-link-status\nok\n").count() == 2
            && others.matches("runid\n").count() == self.sentinels.len() - 1
            && !others.contains("runid\n\n")
    }

    fn at(&self, plan: &Plan, i: usize, command: &[&str]) {
        assert_eq!(self.ask(plan, i, command), "OK", "{command:?}");
    }

    fn ask(&self, plan: &Plan, i: usize, command: &[&str]) -> String {
        let login = plan.auth_pass.map(|p| ["--no-auth-warning", "-a", p]);
        let login = login.as_ref().map_or(&[][..], |l| &l[..]);
        self.servers[i].cli(&[login, command].concat())
    }
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
