//! Questions to a server, and what an answer is called in the table.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::server::Server;

/// Maximum time for a state that is waited for.
const PATIENCE: Duration = Duration::from_secs(45);
const ZEROS: &str = "0000000000000000000000000000000000000000";

/// Returns the name and version of the servers, for example `redis 7.0.15`.
pub(crate) fn version() -> String {
    let server = Server::start(&[]);
    match info(&server, "valkey_version") {
        valkey if valkey.is_empty() => format!("redis {}", info(&server, "redis_version")),
        valkey => format!("valkey {valkey}"),
    }
}

/// Returns a field of `INFO everything`, or an empty text.
pub(crate) fn info(server: &Server, field: &str) -> String {
    field_of(&server.cli(&["INFO", "everything"]), field)
}

pub(crate) fn field_of(info: &str, field: &str) -> String {
    let line = info.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

pub(crate) fn replid(server: &Server) -> String {
    info(server, "master_replid")
}

/// Says what became of an identity.
pub(crate) fn kept(before: &str, after: &str) -> &'static str {
    match after {
        "" => "missing",
        _ if before == after => "kept",
        _ => "new",
    }
}

/// Says what the second replication id of a server is, where its first one was `before`.
pub(crate) fn second(server: &Server, before: &str) -> &'static str {
    let second = info(server, "master_replid2");
    if second == ZEROS {
        "zeros"
    } else if second == before {
        "the id before"
    } else {
        "another"
    }
}

/// Says what became of a server's replication id, and what the second one is.
pub(crate) fn ids(server: &Server, before: &str) -> String {
    format!("replid {}, replid2 {}", kept(before, &replid(server)), second(server, before))
}

pub(crate) fn eval(server: &Server, script: &str) -> String {
    server.cli(&["EVAL", script, "0"])
}

/// Waits until something is so. Panics if it does not come about.
pub(crate) fn until(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        sleep(Duration::from_millis(50));
    }
}

pub(crate) fn pause(millis: u64) {
    sleep(Duration::from_millis(millis));
}

/// Starts a replica of a server. Returns once it is in sync.
pub(crate) fn replica(of: &Server, args: &[&str]) -> Server {
    let server = Server::start(args);
    follow(&server, of);
    server
}

pub(crate) fn follow(server: &Server, of: &Server) {
    server.cli(&["REPLICAOF", "127.0.0.1", &of.port().to_string()]);
    until("a replica to be in sync", || {
        info(server, "master_link_status") == "up"
            && info(server, "master_port") == of.port().to_string()
    });
}

/// Copies a server's data as a backup does.
pub(crate) fn back_up(server: &Server) {
    let done = Command::new("redis-cli")
        .args(["-p", &server.port().to_string(), "--rdb", "-"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(done.is_ok_and(|status| status.success()), "redis-cli --rdb");
}

/// Returns what a server's line of command statistics says about its calls.
pub(crate) fn calls(server: &Server, command: &str) -> String {
    let line = info(server, &format!("cmdstat_{command}"));
    let calls = line.split(',').find_map(|word| word.strip_prefix("calls="));
    calls.unwrap_or("none").to_owned()
}
