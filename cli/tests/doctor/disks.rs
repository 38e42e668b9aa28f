//! Tests of the doctor with a lone server whose disk accepts no more writes.

use std::fs;
use std::process::Command;

use crate::bench::Bench;
use crate::doctor::Patient;
use crate::doctor::Verdict::{Error, Fine, Info, Unknown, Warning};
use crate::lab::wait_for;
use crate::support::server::Server;

#[test]
fn files_that_cannot_be_written() {
    let server = Server::start(&["--appendonly", "yes"]);
    let bench = Bench::new(Patient::default().arg("--node").arg(&server.url()));
    let subject = format!("node {}", server.addr());
    let says = |line: &str| server.cli(&["INFO", "persistence"]).contains(line);
    let report = bench.exactly(
        "a full disk",
        &[("persistence", Error, subject.clone())],
        || {
            server.limit_files(Some(64));
            wait_for("a write that fails", || {
                server.cli(&["SET", "key", &"x".repeat(100)]);
                says("aof_last_write_status:err")
            });
        },
        || {
            server.limit_files(None);
            wait_for("a write that succeeds", || says("aof_last_write_status:ok"));
        },
    );
    assert!(report.of("persistence", &subject).message.contains("takes no writes"));
    // Redis cannot write a file in the place of a directory, so the rewriting of the append-only
    // file fails.
    let next = server.dir().join("appendonlydir/appendonly.aof.2.base.rdb");
    let rewrite = |status: &str| {
        server.cli(&["BGREWRITEAOF"]);
        wait_for("the rewriting to end", || says(&format!("aof_last_bgrewrite_status:{status}")));
    };
    bench.exactly(
        "an append-only file that only grows",
        &[("persistence", Warning, subject)],
        || {
            fs::create_dir(&next).unwrap();
            rewrite("err");
        },
        || {
            fs::remove_dir(&next).unwrap();
            rewrite("ok");
        },
    );
}

/// Redis replays the append-only file with the rights of the user `default`. If `default` may not
/// write, the writes of scripts are lost.
#[test]
fn a_user_default_that_may_not_write() {
    let users = "user default off ~* &* +@all\nuser admin on >pw ~* &* +@all\n";
    let args = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut server = Server::start_with_users(users, &args, ("admin", "pw"));
    let patient =
        Patient::default().arg("--node").arg(&server.url()).arg("--username").arg("admin");
    let bench = Bench::new(patient.secret("PALISADE_PASSWORD", "pw"));
    let subject = format!("node {}", server.addr());
    let report = bench.exactly(
        "a user default without rights",
        &[("aof-replay", Error, subject.clone())],
        || drop(server.cli(&["acl", "setuser", "default", "-@all"])),
        || drop(server.cli(&["acl", "setuser", "default", "+@all"])),
    );
    assert!(report.of("aof-replay", &subject).message.contains("loses every lock"));
    // The server really loses the data of which the check `aof-replay` warns. One script writes two
    // keys.
    for (rights, kept) in [("+@all", "2"), ("-@all", "0")] {
        server.cli(&["acl", "setuser", "default", rights]);
        assert_eq!(server.cli(&["acl", "save"]), "OK");
        server.cli(&["flushall"]);
        let script = "redis.call('set', 'a', '1') redis.call('set', 'b', '1')";
        server.cli(&["eval", script, "0"]);
        server.restart();
        let found = server.cli(&["exists", "a", "b"]);
        assert_eq!(found, kept, "default has {rights}");
    }
}

/// The doctor sees what the settings say now, where it may read them.
#[test]
fn a_server_that_was_declared_durable() {
    let server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let url = format!("{}?durable=true", server.url());
    let patient = || Patient::default().arg("--node").arg(&url);
    let subject = format!("node {}", server.addr());
    let set = |value: &str| assert_eq!(server.cli(&["CONFIG", "SET", "appendfsync", value]), "OK");
    let report = Bench::new(patient()).exactly(
        "a declaration that the settings contradict",
        &[("durable", Error, subject.clone())],
        || set("everysec"),
        || set("always"),
    );
    let found = report.of("durable", &subject);
    assert!(found.fix.iter().any(|line| line.ends_with("CONFIG SET appendfsync always")));
    assert_eq!(server.cli(&["ACL", "SETUSER", "default", "-config"]), "OK");
    let report = patient().examine();
    let found = report.of("durable", &subject);
    assert_eq!(found.verdict, Unknown, "{found:#?}");
    assert!(found.message.contains("only whoever runs the server can know"), "{found:#?}");
}

/// The doctor reports the length of the loss of data that a restart may have caused, and the
/// consequence for idempotency keys.
#[test]
fn a_server_that_was_restarted() {
    let mut server = Server::start(&["--appendonly", "yes"]);
    let of = format!("node {}", server.addr());
    let patient = || Patient::default().arg("--node").arg(&server.url());
    let mut init = Command::new(env!("CARGO_BIN_EXE_palisade"));
    assert!(init.args(["init", "--new", "--node", &server.url()]).status().unwrap().success());
    // The trial lock that the doctor takes here is the last write before the restart.
    assert_eq!(patient().examine().of("data-loss", &of).verdict, Fine);
    server.restart();
    let patient = || Patient::default().arg("--node").arg(&server.url());
    patient().examine();
    let report = patient().arg("--no-trial").examine();
    let found = report.of("data-loss", &of);
    assert_eq!(found.verdict, Info, "{found:#?}");
    assert!(found.message.starts_with("lost at most "), "{found:#?}");
    assert!(found.message.contains("accept_loss"), "{found:#?}");
}
