//! Expiry of keys, at the server itself and at its replicas.

use crate::Assumption;
use crate::ask::{eval, pause, replica, until};
use crate::server::Server;

pub(crate) const ALL: &[Assumption] = &[
    Assumption::new(
        "quarantine 6",
        "SET … PX and PEXPIRE are written to the AOF as absolute times",
        "PXAT, PEXPIREAT",
        absolute,
    ),
    Assumption::new(
        "quarantine 6",
        "a replica hides a key that is over by its own clock, also while its master is frozen",
        "GET '', PTTL -2",
        hidden_at_a_replica,
    ),
    Assumption::new(
        "quarantine 6",
        "a key that is over is over at a replica which is promoted, and can be set there",
        "EXISTS 0, SET OK",
        over_at_a_promoted_one,
    ),
    Assumption::new(
        "quarantine 6",
        "a key that is over while its server is frozen is over when it thaws, before anything else",
        "GET ''",
        over_after_a_freeze,
    ),
    Assumption::new(
        "quarantine 13",
        "keys with a lease that are over while a server is down do not come back with its AOF",
        "EXISTS 0",
        over_while_down,
    ),
];

fn absolute() -> String {
    let server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    eval(&server, "redis.call('SET', 'k', 'v', 'PX', '60000') redis.call('PEXPIRE', 'k', '90000')");
    let mut text = String::new();
    for file in std::fs::read_dir(server.dir().join("appendonlydir")).expect("an AOF").flatten() {
        let bytes = std::fs::read(file.path()).expect("it is there");
        text.push_str(&String::from_utf8_lossy(&bytes).to_uppercase());
    }
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let words = ["PXAT", "PEXPIREAT", "PX", "PEXPIRE"];
    let there: Vec<_> = words.into_iter().filter(|w| lines.contains(w)).collect();
    there.join(", ")
}

fn hidden_at_a_replica() -> String {
    let master = Server::start(&[]);
    let other = replica(&master, &[]);
    master.cli(&["SET", "k", "v", "PX", "1500"]);
    until("the replica to have it", || other.cli(&["GET", "k"]) == "v");
    master.freeze();
    pause(2_000);
    let seen = format!("GET '{}', PTTL {}", other.cli(&["GET", "k"]), other.cli(&["PTTL", "k"]));
    master.resume();
    seen
}

fn over_at_a_promoted_one() -> String {
    let master = Server::start(&[]);
    let other = replica(&master, &[]);
    master.cli(&["SET", "k", "v", "PX", "1500"]);
    until("the replica to have it", || other.cli(&["GET", "k"]) == "v");
    master.freeze();
    pause(2_000);
    other.cli(&["REPLICAOF", "NO", "ONE"]);
    let there = other.cli(&["EXISTS", "k"]);
    let set = other.cli(&["SET", "k", "w", "NX"]);
    master.resume();
    format!("EXISTS {there}, SET {set}")
}

fn over_after_a_freeze() -> String {
    let server = Server::start(&[]);
    server.cli(&["SET", "k", "v", "PX", "1000"]);
    server.freeze();
    let seen = std::thread::scope(|scope| {
        let asked = scope.spawn(|| eval(&server, "return redis.call('GET', 'k')"));
        pause(1_500);
        server.resume();
        asked.join().expect("it is answered")
    });
    format!("GET '{seen}'")
}

fn over_while_down() -> String {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    server.cli(&["SET", "k", "v", "PX", "1000"]);
    server.kill();
    pause(1_200);
    server.again();
    format!("EXISTS {}", server.cli(&["EXISTS", "k"]))
}
