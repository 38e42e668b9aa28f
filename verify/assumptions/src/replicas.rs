//! What `WAIT` and `INFO replication` say about replicas.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::Assumption;
use crate::ask::{calls, eval, follow, info, pause, replica, until};
use crate::server::Server;

pub(crate) const ALL: &[Assumption] = &[
    Assumption::new(
        "durability 2",
        "WAIT as the first command of a connection, and behind a GET, while the only replica is \
         frozen",
        "1, 1",
        wait_behind_nothing,
    )
    .except(&[("redis 7.0", "1, 0")]),
    Assumption::new(
        "durability 2",
        "WAIT behind a write of its own connection, while the only replica is frozen",
        "0",
        wait_behind_a_write,
    ),
    Assumption::new(
        "durability 2",
        "WAIT behind a later write of its connection confirms an earlier write of another one",
        "1, there",
        wait_for_another,
    ),
    Assumption::new(
        "durability 3",
        "WAIT only counts: of one replica that is frozen and a stranger, it says",
        "1",
        wait_counts,
    ),
    Assumption::new(
        "durability 3",
        "a replica with priority 0 counts for WAIT and for min-replicas",
        "WAIT 1, good 1",
        priority_zero,
    ),
    Assumption::new(
        "durability 3",
        "INFO replication around a WAIT names each replica's address and confirmed offset",
        "one with all, one with less",
        offsets,
    ),
    Assumption::new(
        "durability 4",
        "a master that is demoted and promoted again within a WAIT: its process, its id",
        "run_id kept, replid new",
        demoted_and_promoted,
    ),
    Assumption::new(
        "durability 4",
        "a WAIT under way when its server becomes a replica ends with an error",
        "UNBLOCKED",
        wait_at_a_demotion,
    ),
    Assumption::new(
        "sentinel 5",
        "lag of a replica: 0 or 1 in sync; while it is frozen it grows; the line is `online`",
        "at most 1, at least 3, online",
        lag,
    ),
    Assumption::new(
        "sentinel 5",
        "a replica that loads a copy is not `online`, and so is not a good one",
        "no line is online, good 0",
        loading,
    ),
    Assumption::new(
        "quarantine 19",
        "a replica's write is refused, and REPLICAOF by hand is counted at it",
        "READONLY, replicaof 1",
        by_hand,
    ),
    Assumption::new(
        "quarantine 21",
        "a replica over maxmemory with volatile-lru: evicted_keys; once promoted: evicted_keys, \
         key without a TTL",
        "0; 2000, there",
        evicts_once_promoted,
    ),
];

/// Returns the last line of what commands on one connection answered.
fn last(server: &Server, commands: &str) -> String {
    let replies = server.session(commands);
    replies.trim_end().lines().last().unwrap_or_default().to_owned()
}

/// Sends commands on a connection of their own, without anything before them. Returns the last
/// number of the answers.
fn raw(server: &Server, commands: &str) -> String {
    let mut stream = TcpStream::connect(server.addr()).expect("it listens");
    stream.write_all(commands.as_bytes()).expect("it reads");
    pause(1_500);
    let mut bytes = [0; 512];
    let n = stream.read(&mut bytes).expect("it answers");
    let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
    let number = text.lines().last().and_then(|l| l.strip_prefix(':'));
    number.map_or_else(|| text.trim().to_owned(), ToOwned::to_owned)
}

fn frozen() -> (Server, Server) {
    let master = Server::start(&[]);
    let other = replica(&master, &[]);
    master.cli(&["SET", "before", "1"]);
    until("the replica to have it", || other.cli(&["GET", "before"]) == "1");
    pause(1_200);
    other.freeze();
    (master, other)
}

fn wait_behind_nothing() -> String {
    let (master, other) = frozen();
    master.cli(&["SET", "k", "v"]);
    let first = raw(&master, "WAIT 1 500\r\n");
    let second = raw(&master, "GET k\r\nWAIT 1 500\r\n");
    other.resume();
    format!("{first}, {second}")
}

fn wait_behind_a_write() -> String {
    let (master, other) = frozen();
    let seen = last(&master, "SET k v\nWAIT 1 500\n");
    other.resume();
    seen
}

fn wait_for_another() -> String {
    let master = Server::start(&[]);
    let other = replica(&master, &[]);
    master.cli(&["SET", "first", "v"]);
    let seen = last(&master, "SET barrier 1\nWAIT 1 2000\n");
    let there = if other.cli(&["GET", "first"]) == "v" { "there" } else { "missing" };
    format!("{seen}, {there}")
}

fn wait_counts() -> String {
    let (master, other) = frozen();
    let _stranger = replica(&master, &[]);
    let seen = last(&master, "SET k v\nWAIT 2 1000\n");
    other.resume();
    seen
}

fn priority_zero() -> String {
    let master = Server::start(&["--min-replicas-to-write", "1"]);
    let _other = replica(&master, &["--replica-priority", "0"]);
    until("a good replica", || info(&master, "min_slaves_good_slaves") == "1");
    let seen = last(&master, "SET k v\nWAIT 1 2000\n");
    format!("WAIT {seen}, good {}", info(&master, "min_slaves_good_slaves"))
}

fn offsets() -> String {
    let (master, other) = frozen();
    let second = replica(&master, &[]);
    let replies = master.session("SET k v\nINFO replication\nWAIT 1 2000\nINFO replication\n");
    // As the library does: against the offset before the WAIT, which adds to it.
    let (before, text) = replies.split_at(replies.rfind("role:").expect("the second INFO"));
    let (_, length) = before.split_once("master_repl_offset:").expect("the first INFO");
    let length: u64 = length.split_whitespace().next().unwrap_or_default().parse().unwrap();
    let of = |server: &Server| {
        let line = text.lines().find(|l| l.contains(&format!("port={},", server.port())));
        let offset = line.and_then(|l| l.split("offset=").nth(1)?.split(',').next()?.parse().ok());
        match offset {
            Some(n) if n >= length => "all",
            Some(0_u64..) => "less",
            None => "nothing",
        }
    };
    let seen = format!("one with {}, one with {}", of(&second), of(&other));
    other.resume();
    seen
}

fn demoted_and_promoted() -> String {
    let (server, other) = (Server::start(&[]), Server::start(&[]));
    let (run, id) = (info(&server, "run_id"), info(&server, "master_replid"));
    follow(&server, &other);
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    let kept = crate::ask::kept;
    format!(
        "run_id {}, replid {}",
        kept(&run, &info(&server, "run_id")),
        kept(&id, &info(&server, "master_replid"))
    )
}

fn wait_at_a_demotion() -> String {
    let server = Server::start(&[]);
    let reply = std::thread::scope(|scope| {
        let asked = scope.spawn(|| last(&server, "SET k v\nWAIT 1 5000\n"));
        pause(500);
        server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
        asked.join().expect("it is answered")
    });
    if reply.contains("UNBLOCKED") { "UNBLOCKED".to_owned() } else { reply }
}

fn word(line: &str, name: &str) -> String {
    let value = line.split(name).nth(1).and_then(|l| l.split([',', '\r']).next());
    value.unwrap_or_default().trim().to_owned()
}

fn lag() -> String {
    let (master, other) = frozen();
    let line = || info(&master, "slave0");
    let fresh = word(&line(), "lag=");
    pause(4_000);
    let (old, state) = (word(&line(), "lag="), word(&line(), "state="));
    other.resume();
    let number = |text: &str| text.parse().unwrap_or(u32::MAX);
    let fresh = if number(&fresh) <= 1 { "at most 1".to_owned() } else { fresh };
    let old = if number(&old) >= 3 { "at least 3".to_owned() } else { old };
    format!("{fresh}, {old}, {state}")
}

fn loading() -> String {
    let args = ["--min-replicas-to-write", "1", "--repl-diskless-sync-delay", "5"];
    let master = Server::start(&args);
    let other = Server::start(&[]);
    other.cli(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    until("the replica to attach", || info(&master, "connected_slaves") == "1");
    let online = master.cli(&["INFO", "replication"]).contains("state=online");
    let lines = if online { "a line is online" } else { "no line is online" };
    format!("{lines}, good {}", info(&master, "min_slaves_good_slaves"))
}

fn by_hand() -> String {
    let (master, other) = (Server::start(&[]), Server::start(&[]));
    follow(&other, &master);
    let reply = other.cli(&["SET", "k", "v"]);
    format!(
        "{}, replicaof {}",
        reply.split(' ').next().unwrap_or_default(),
        calls(&other, "replicaof")
    )
}

fn evicts_once_promoted() -> String {
    let master = Server::start(&[]);
    let other = replica(&master, &[]);
    master.cli(&["SET", "marker", "m"]);
    eval(&master, "for n = 1, 2000 do redis.call('SET', 'k' .. n, 'v', 'PX', '6000000') end");
    until("the replica to have all", || other.cli(&["DBSIZE"]) == "2001");
    other.cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru", "maxmemory", "1"]);
    pause(500);
    let before = info(&other, "evicted_keys");
    other.cli(&["REPLICAOF", "NO", "ONE"]);
    until("the keys with a TTL to be gone", || other.cli(&["DBSIZE"]) == "1");
    let there = if other.cli(&["EXISTS", "marker"]) == "1" { "there" } else { "missing" };
    format!("{before}; {}, {there}", info(&other, "evicted_keys"))
}
