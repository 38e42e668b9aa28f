//! Tests of the doctor with wrong settings of data servers and Sentinels. The test changes one
//! setting after the other on one good group.

use std::process::Command;

use crate::bench::Bench;
use crate::doctor::Patient;
use crate::doctor::Verdict::{Error, Fine, Unknown, Warning};
use crate::lab::{NAME, ok};
use crate::support::group::{Groups, cli};
use crate::support::server::Server;

/// A group, and the names and addresses of its parts.
pub(crate) struct Ward {
    pub(crate) groups: Groups,
    pub(crate) name: String,
    /// The data servers. The first server is the master.
    pub(crate) servers: Vec<String>,
    pub(crate) sentinels: Vec<String>,
}

impl Ward {
    /// Starts a group with `sentinel-conf/up`. Its Sentinels request INFO more often than usual.
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

    /// Returns the subject of findings about a data server.
    pub(crate) fn server(&self, i: usize) -> String {
        format!("{} {}", self.name, self.servers[i])
    }

    /// Returns the subject of findings about a Sentinel.
    pub(crate) fn sentinel(&self, i: usize) -> String {
        format!("{} Sentinel {}", self.name, self.sentinels[i])
    }

    /// Runs `CONFIG SET` on one data server.
    pub(crate) fn set(&self, i: usize, name: &str, value: &str) {
        ok(&self.servers[i], &["CONFIG", "SET", name, value]);
    }

    /// Runs `SENTINEL SET` on one Sentinel.
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
    names(&ward, &bench);
}

/// Tests the checks `min-replicas` and `replica-priority`: the setting `min-replicas-to-write` of
/// the servers, and the priorities of the replicas for a promotion.
fn guard(ward: &Ward, bench: &Bench) {
    let set_all = |name: &str, value: &str| (0..3).for_each(|i| ward.set(i, name, value));
    for i in 0..3 {
        let off = [("min-replicas", Error, ward.server(i))];
        bench.healed("a server without the guard", &off, || {
            ward.set(i, "min-replicas-to-write", "0");
        });
    }
    bench.healed(
        "a lag above down-after",
        &[0, 1, 2].map(|i| ("min-replicas", Error, ward.server(i))),
        || set_all("min-replicas-max-lag", "10"),
    );
    bench.healed(
        "a preferred replica",
        &[("replica-priority", Warning, ward.name.clone())],
        || ward.set(1, "replica-priority", "10"),
    );
    bench.healed(
        "no replica that may be promoted",
        &[("replica-priority", Error, ward.name.clone())],
        || [1, 2].iter().for_each(|i| ward.set(*i, "replica-priority", "0")),
    );
}

/// Tests the check `persistence`: the data that are left after a restart.
fn disks(ward: &Ward, bench: &Bench) {
    let report = bench.healed("no persistence", &[("persistence", Error, ward.server(1))], || {
        ward.set(1, "appendonly", "no");
    });
    let (host, port) = ward.servers[1].rsplit_once(':').expect("host:port");
    let mend = &report.of("persistence", &ward.server(1)).fix;
    assert_eq!(mend[0], format!("redis-cli -h {host} -p {port} CONFIG SET appendonly yes"));
    let both = |append: &str, save: &str| {
        ward.set(1, "appendonly", append);
        ward.set(1, "save", save);
    };
    bench.healed("snapshots alone", &[("persistence", Warning, ward.server(1))], || {
        both("no", "3600 1");
    });
    // Redis cannot write a snapshot in the place of a directory, so the snapshot fails.
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
    bench.healed(
        "an append-only file left to the kernel",
        &[("persistence", Warning, ward.server(2))],
        || ward.set(2, "appendfsync", "no"),
    );
}

/// Tests the check `refused` with settings that make the server evict keys.
fn memory(ward: &Ward, bench: &Bench) {
    let both = |policy: &str, limit: &str| {
        ward.set(0, "maxmemory-policy", policy);
        ward.set(0, "maxmemory", limit);
    };
    bench.exactly(
        "an evicting policy",
        &[("refused", Error, ward.server(0))],
        || both("allkeys-lru", "100mb"),
        || both("noeviction", "0"),
    );
    // A memory limit without an eviction policy evicts nothing, so it is no fault.
    bench.exactly("a limit", &[], || both("noeviction", "100mb"), || both("noeviction", "0"));
}

/// Tests the checks `replicas` and `two-masters`: the replicas and their links to the master.
fn links(ward: &Ward, bench: &Bench) {
    bench.healed("a replica that takes writes", &[("replicas", Warning, ward.server(2))], || {
        ward.set(2, "replica-read-only", "no");
    });
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
    bench.healed("a second master", &[("two-masters", Error, ward.name.clone())], || {
        ok(&ward.servers[1], &["REPLICAOF", "NO", "ONE"]);
    });
}

/// Tests the check `history-rename`: a server whose counters were reset cannot prove that a rename
/// of its data lost nothing.
fn names(ward: &Ward, bench: &Bench) {
    bench.healed("a rename without proof", &[("history-rename", Warning, ward.server(0))], || {
        ok(&ward.servers[0], &["CONFIG", "RESETSTAT"]);
        ward.set(0, "repl-backlog-ttl", "3600");
    });
}

#[test]
fn a_lone_server_that_a_backup_renames() {
    let server = Server::start(&["--appendonly", "yes"]);
    let patient = Patient::default().arg("--node").arg(&server.url()).arg("--no-trial");
    let subject = format!("node {}", server.addr());
    let verdict = || patient.examine().of("history-rename", &subject).verdict;
    assert_eq!(verdict(), Fine, "it proves that nothing was lost");
    ok(&server.addr(), &["CONFIG", "RESETSTAT"]);
    let report = patient.examine();
    let found = report.of("history-rename", &subject);
    assert_eq!(found.verdict, Warning, "{found:#?}");
    for command in found.fix.iter().filter(|command| !command.contains("CONFIG REWRITE")) {
        let out = Command::new("timeout").args(["20", "sh", "-c", command]).output().unwrap();
        assert!(out.status.success(), "{command}: {out:?}");
    }
    assert_eq!(verdict(), Fine);
}

#[test]
fn settings_of_sentinels() {
    let ward = Ward::new();
    let bench = Bench::new(ward.patient());
    let report = bench.healed(
        "the default of three minutes",
        &[("sentinel-times", Warning, ward.sentinel(1))],
        || ward.tell(1, "failover-timeout", "180000"),
    );
    let (host, port) = ward.sentinels[1].rsplit_once(':').expect("host:port");
    let mend = &report.of("sentinel-times", &ward.sentinel(1)).fix[0];
    let set = format!("SENTINEL SET {} failover-timeout 15000", ward.name);
    assert_eq!(*mend, format!("redis-cli -h {host} -p {port} {set}"));
    let tell_all = |name: &str, value: &str| (0..3).for_each(|i| ward.tell(i, name, value));
    bench.healed(
        "one Sentinel is enough to call the master down",
        &[0, 1, 2].map(|i| ("quorum", Error, ward.sentinel(i))),
        || tell_all("quorum", "1"),
    );
    bench.healed(
        "a down-after that differs",
        &[("sentinel-disagreement", Error, ward.name.clone())],
        || ward.tell(2, "down-after-milliseconds", "6000"),
    );
    // After such a short `down-after-milliseconds` a replica is promoted before the setting
    // `min-replicas-max-lag` stops the old master. So each server has an error, too.
    let hasty = [0, 1, 2].map(|i| ("sentinel-times", Warning, ward.sentinel(i)));
    let late = [0, 1, 2].map(|i| ("min-replicas", Error, ward.server(i)));
    bench.exactly(
        "a hasty down-after",
        &[hasty, late].concat(),
        || tell_all("down-after-milliseconds", "1500"),
        || tell_all("down-after-milliseconds", "5000"),
    );
    lost(&ward, &bench);
}

/// Tests the check `sentinel-disagreement`: two of three Sentinels are lost. So no failover is
/// possible, and the third Sentinel reports this. The doctor does not connect to servers that only
/// this Sentinel reports.
fn lost(ward: &Ward, bench: &Bench) {
    bench.exactly(
        "Sentinels that are lost",
        &[
            ("sentinel-disagreement", Error, ward.sentinel(0)),
            ("unreachable", Error, ward.sentinel(1)),
            ("unreachable", Error, ward.sentinel(2)),
            ("unreachable", Unknown, ward.name.clone()),
        ],
        || {
            for id in ["sa2", "sa3"] {
                ward.groups.break_("freeze", 0, &["--server", id]);
            }
        },
        || {
            ward.groups.break_("resume", 0, &[]);
            for at in &ward.sentinels {
                ok(at, &["SENTINEL", "DEBUG", "tilt-period", "100"]);
            }
        },
    );
}
