//! Wrong settings of data servers and Sentinels, one after the other on one good group.

use crate::bench::Bench;
use crate::doctor::Patient;
use crate::doctor::Verdict::{Error, Info, Warning};
use crate::lab::{NAME, ok};
use crate::support::group::{Groups, cli};

/// A group, and what its parts are called.
pub(crate) struct Ward {
    pub(crate) groups: Groups,
    pub(crate) name: String,
    /// The first is the master.
    pub(crate) servers: Vec<String>,
    pub(crate) sentinels: Vec<String>,
}

impl Ward {
    /// As `sentinel-conf/up` makes it, with Sentinels that ask for INFO more often.
    pub(crate) fn new() -> Self {
        let groups = Groups::up_with(1, 5_000, 2, &["--prefix", NAME]);
        let (servers, sentinels) = (groups.servers(0), groups.sentinels(0));
        for at in &sentinels {
            ok(at, &["SENTINEL", "DEBUG", "info-period", "300", "publish-period", "200"]);
        }
        Self { name: groups.name(0), groups, servers, sentinels }
    }

    pub(crate) fn patient(&self) -> Patient {
        Patient::group(&self.name, &self.sentinels)
    }

    /// The subject of findings about a data server.
    pub(crate) fn server(&self, i: usize) -> String {
        format!("{} {}", self.name, self.servers[i])
    }

    /// The subject of findings about a Sentinel.
    pub(crate) fn sentinel(&self, i: usize) -> String {
        format!("{} Sentinel {}", self.name, self.sentinels[i])
    }

    /// `CONFIG SET` on one server.
    pub(crate) fn set(&self, i: usize, name: &str, value: &str) {
        ok(&self.servers[i], &["CONFIG", "SET", name, value]);
    }

    /// `SENTINEL SET` on one Sentinel.
    pub(crate) fn tell(&self, i: usize, name: &str, value: &str) {
        ok(&self.sentinels[i], &["SENTINEL", "SET", &self.name, name, value]);
    }
}

#[test]
fn settings_of_data_servers() {
    let ward = Ward::new();
    let bench = Bench::new(ward.patient());
    guard(&ward, &bench);
    disks(&ward, &bench);
    memory(&ward, &bench);
    links(&ward, &bench);
}

/// 1, 3: the min-replicas guard.
fn guard(ward: &Ward, bench: &Bench) {
    let set_all = |name: &str, value: &str| (0..3).for_each(|i| ward.set(i, name, value));
    bench.exactly(
        "a lag above down-after",
        &[0, 1, 2].map(|i| ("min-replicas-lag", Error, ward.server(i))),
        || set_all("min-replicas-max-lag", "10"),
        || set_all("min-replicas-max-lag", "2"),
    );
}

/// 11, 12: what a restart leaves.
fn disks(ward: &Ward, bench: &Bench) {
    let report = bench.exactly(
        "no persistence",
        &[("persistence", Error, ward.server(1))],
        || ward.set(1, "appendonly", "no"),
        || ward.set(1, "appendonly", "yes"),
    );
    let (host, port) = ward.servers[1].rsplit_once(':').expect("host:port");
    let mend = &report.of("persistence", &ward.server(1)).mend;
    assert_eq!(mend[0], format!("redis-cli -h {host} -p {port} CONFIG SET appendonly yes"));
    let both = |append: &str, save: &str| {
        ward.set(1, "appendonly", append);
        ward.set(1, "save", save);
    };
    bench.exactly(
        "snapshots alone",
        &[("persistence", Warning, ward.server(1))],
        || both("no", "3600 1"),
        || both("yes", ""),
    );
    // A snapshot cannot take the place of a directory.
    let file = cli(&ward.servers[1], &["CONFIG", "GET", "dir"]);
    let file = format!("{}/dump.rdb", file.lines().last().expect("a directory"));
    bench.exactly(
        "snapshots that fail",
        &[("persistence", Error, ward.server(1))],
        || {
            let _ = std::fs::remove_file(&file);
            std::fs::create_dir(&file).unwrap();
            both("no", "3600 1");
            cli(&ward.servers[1], &["BGSAVE"]);
        },
        || {
            std::fs::remove_dir(&file).unwrap();
            cli(&ward.servers[1], &["BGSAVE"]);
            both("yes", "");
        },
    );
    bench.exactly(
        "an append-only file left to the kernel",
        &[("appendfsync", Warning, ward.server(2))],
        || ward.set(2, "appendfsync", "no"),
        || ward.set(2, "appendfsync", "everysec"),
    );
}

/// 17: eviction.
fn memory(ward: &Ward, bench: &Bench) {
    let both = |policy: &str, limit: &str| {
        ward.set(0, "maxmemory-policy", policy);
        ward.set(0, "maxmemory", limit);
    };
    bench.exactly(
        "an evicting policy without a limit",
        &[("eviction", Warning, ward.server(0))],
        || both("volatile-lru", "0"),
        || both("noeviction", "0"),
    );
    bench.exactly(
        "an evicting policy",
        &[("eviction", Error, ward.server(0))],
        || both("allkeys-lru", "100mb"),
        || both("noeviction", "0"),
    );
    // A limit alone evicts nothing.
    bench.exactly("a limit", &[], || both("noeviction", "100mb"), || both("noeviction", "0"));
}

/// 21, 23: replicas and their links.
fn links(ward: &Ward, bench: &Bench) {
    bench.exactly(
        "a replica that takes writes",
        &[("replicas", Warning, ward.server(2))],
        || ward.set(2, "replica-read-only", "no"),
        || ward.set(2, "replica-read-only", "yes"),
    );
    let login = |user: &str, password: &str| {
        let at = &ward.servers[1];
        ok(at, &["CONFIG", "SET", "masteruser", user, "masterauth", password]);
        cli(at, &["CLIENT", "KILL", "TYPE", "master"]);
    };
    bench.exactly(
        "a replica that cannot log in at its master",
        &[("replicas", Warning, ward.server(1))],
        || login("nobody", "wrong"),
        || login("", ""),
    );
    let (host, port) = ward.servers[0].rsplit_once(':').expect("host:port");
    bench.exactly(
        "a second master",
        &[("two-masters", Error, ward.name.clone())],
        || ok(&ward.servers[1], &["REPLICAOF", "NO", "ONE"]),
        // The Sentinels would do it, too, after some seconds.
        || ok(&ward.servers[1], &["REPLICAOF", host, port]),
    );
    bench.exactly(
        "a small backlog",
        &[("replication-buffers", Info, ward.server(0))],
        || ward.set(0, "repl-backlog-size", "1mb"),
        || ward.set(0, "repl-backlog-size", "64mb"),
    );
    bench.exactly(
        "a small buffer for replicas",
        &[("replication-buffers", Info, ward.server(2))],
        || ward.set(2, "client-output-buffer-limit", "replica 1mb 1mb 1"),
        || ward.set(2, "client-output-buffer-limit", "replica 256mb 64mb 60"),
    );
}

#[test]
fn settings_of_sentinels() {
    let ward = Ward::new();
    let bench = Bench::new(ward.patient());
    let report = bench.exactly(
        "the default of three minutes",
        &[("failover-timeout", Warning, ward.sentinel(1))],
        || ward.tell(1, "failover-timeout", "180000"),
        || ward.tell(1, "failover-timeout", "15000"),
    );
    let (host, port) = ward.sentinels[1].rsplit_once(':').expect("host:port");
    let mend = &report.of("failover-timeout", &ward.sentinel(1)).mend[0];
    let set = format!("SENTINEL SET {} failover-timeout 15000", ward.name);
    assert_eq!(*mend, format!("redis-cli -h {host} -p {port} {set}"));
    // A process that stood still for more than two seconds does not trust its clock.
    bench.exactly(
        "a Sentinel in TILT",
        &[("tilt", Warning, ward.sentinel(0))],
        || {
            ok(&ward.sentinels[0], &["SENTINEL", "DEBUG", "tilt-period", "60000"]);
            ward.groups.break_("freeze", 0, &["--server", "sa1"]);
            std::thread::sleep(std::time::Duration::from_millis(2_500));
            ward.groups.break_("resume", 0, &["--server", "sa1"]);
        },
        || ok(&ward.sentinels[0], &["SENTINEL", "DEBUG", "tilt-period", "100"]),
    );
}
