//! Counters of `INFO` that tell whether a server followed another one, or evicted keys.

use crate::Assumption;
use crate::ask::{back_up, calls, eval, follow, info, pause, replica, until};
use crate::server::Server;

pub(crate) const ALL: &[Assumption] = &[
    Assumption::new(
        "quarantine 19",
        "total_net_repl_input_bytes of a lone master, after two renames",
        "0, 0",
        input_of_a_lone_master,
    ),
    Assumption::new(
        "quarantine 19",
        "total_net_repl_input_bytes after A, B, A; after CONFIG RESETSTAT; after a dead master \
         and back",
        "more, 0, 0",
        input_of_a_detour,
    ),
    Assumption::new(
        "quarantine 19",
        "calls of replicaof and slaveof after REPLICAOF there, SLAVEOF NO ONE in MULTI, and one \
         that is refused",
        "replicaof 1, slaveof 1",
        detours_are_counted,
    ),
    Assumption::new(
        "quarantine 19",
        "calls of config|resetstat before, after one, after a second; of replicaof after it",
        "none, 1, 1, none",
        resetstat,
    ),
    Assumption::new(
        "quarantine 19",
        "a script cannot call REPLICAOF, SLAVEOF and CONFIG RESETSTAT",
        "refused, refused, refused",
        not_from_scripts,
    ),
    Assumption::new(
        "quarantine 19",
        "calls in a script count (set), and those of a call that is refused (get with two keys) \
         not",
        "set 2, get 0",
        calls_in_scripts,
    ),
    Assumption::new(
        "sentinel 7",
        "evicted_keys under volatile-lru, after it; key without a TTL; after CONFIG RESETSTAT",
        "more, there, 0",
        evicted,
    ),
    Assumption::new(
        "quarantine 19",
        "calls of failover, replicaof and slaveof at a master that FAILOVER made a replica",
        "failover 1, replicaof none, slaveof none",
        failover,
    ),
    Assumption::new(
        "quarantine 19",
        "total_net_repl_input_bytes of a server that loaded a copy of 1 MB from the socket",
        "more than the copy",
        diskless,
    ),
    Assumption::new(
        "quarantine 21",
        "evicted_keys before a restart with the same data, and after it",
        "more, 0",
        evicted_and_restarted,
    ),
    Assumption::new(
        "quarantine 21",
        "evicted_keys of a master, as a replica, and as a master again",
        "more, more, more",
        evicted_and_demoted,
    ),
    Assumption::new(
        "quarantine 21",
        "keys that a master evicts, at its replica; the replica's evicted_keys",
        "missing, 0",
        evicted_at_a_replica,
    ),
];

fn input(server: &Server) -> &'static str {
    match info(server, "total_net_repl_input_bytes").as_str() {
        "" => "missing",
        "0" => "0",
        _ => "more",
    }
}

fn input_of_a_lone_master() -> String {
    let server = Server::start(&["--repl-backlog-ttl", "1"]);
    let before = input(&server);
    back_up(&server);
    pause(3_000);
    format!("{before}, {}", input(&server))
}

fn input_of_a_detour() -> String {
    let (server, other) = (Server::start(&[]), Server::start(&[]));
    follow(&server, &other);
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    let followed = input(&server);
    server.cli(&["CONFIG", "RESETSTAT"]);
    let reset = input(&server);
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    pause(500);
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    format!("{followed}, {reset}, {}", input(&server))
}

fn detours_are_counted() -> String {
    let (server, other) = (Server::start(&[]), Server::start(&[]));
    follow(&server, &other);
    server.session("MULTI\nSLAVEOF NO ONE\nEXEC\n");
    server.cli(&["REPLICAOF", "127.0.0.1"]);
    format!("replicaof {}, slaveof {}", calls(&server, "replicaof"), calls(&server, "slaveof"))
}

fn resetstat() -> String {
    let server = Server::start(&[]);
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    let before = calls(&server, "config|resetstat");
    server.cli(&["CONFIG", "RESETSTAT"]);
    let once = calls(&server, "config|resetstat");
    server.cli(&["CONFIG", "RESETSTAT"]);
    let twice = calls(&server, "config|resetstat");
    format!("{before}, {once}, {twice}, {}", calls(&server, "replicaof"))
}

fn not_from_scripts() -> String {
    let server = Server::start(&[]);
    let tries = ["'REPLICAOF', 'NO', 'ONE'", "'SLAVEOF', 'NO', 'ONE'", "'CONFIG', 'RESETSTAT'"];
    let outcome = |words: &str| {
        let reply = eval(&server, &format!("return redis.call({words})"));
        if reply.contains("not allowed from script") { "refused".to_owned() } else { reply }
    };
    tries.map(outcome).join(", ")
}

fn calls_in_scripts() -> String {
    let server = Server::start(&[]);
    eval(&server, "redis.call('SET', 'a', '1'); redis.call('SET', 'b', '1')");
    eval(&server, "return redis.pcall('GET', 'a', 'b')");
    format!("set {}, get {}", calls(&server, "set"), calls(&server, "get"))
}

fn evictions(server: &Server) -> &'static str {
    match info(server, "evicted_keys").as_str() {
        "0" => "0",
        _ => "more",
    }
}

/// Has the server evict keys with a TTL, and then lifts the limit.
fn evict(server: &Server) {
    eval(server, "for n = 1, 2000 do redis.call('SET', 'k' .. n, 'v', 'PX', '600000') end");
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru", "maxmemory", "1"]);
    server.cli(&["SET", "more", "1"]);
    until("all of them to be evicted", || info(server, "evicted_keys") == "2000");
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
}

fn evicted() -> String {
    let server = Server::start(&[]);
    server.cli(&["SET", "marker", "m"]);
    evict(&server);
    let counted = evictions(&server);
    let there = if server.cli(&["EXISTS", "marker"]) == "1" { "there" } else { "missing" };
    server.cli(&["CONFIG", "RESETSTAT"]);
    format!("{counted}, {there}, {}", info(&server, "evicted_keys"))
}

fn failover() -> String {
    let server = Server::start(&[]);
    let _other = replica(&server, &[]);
    server.cli(&["FAILOVER", "TIMEOUT", "30000"]);
    until("the master to follow", || info(&server, "master_link_status") == "up");
    let counted = ["failover", "replicaof", "slaveof"];
    counted.map(|name| format!("{name} {}", calls(&server, name))).join(", ")
}

fn diskless() -> String {
    let from = ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"];
    let other = Server::start(&[&from[..], &["--rdbcompression", "no"]].concat());
    eval(&other, "redis.call('SET', 'large', string.rep('x', 1000000))");
    let server = replica(&other, &["--repl-diskless-load", "swapdb"]);
    match info(&server, "total_net_repl_input_bytes").parse::<u64>() {
        Ok(bytes) if bytes > 1_000_000 => "more than the copy".to_owned(),
        bytes => format!("{bytes:?}"),
    }
}

fn evicted_and_restarted() -> String {
    let mut server = Server::start(&["--appendonly", "yes"]);
    evict(&server);
    let before = evictions(&server);
    server.restart();
    format!("{before}, {}", evictions(&server))
}

fn evicted_and_demoted() -> String {
    let (server, other) = (Server::start(&[]), Server::start(&[]));
    evict(&server);
    let before = evictions(&server);
    follow(&server, &other);
    let follows = evictions(&server);
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    format!("{before}, {follows}, {}", evictions(&server))
}

fn evicted_at_a_replica() -> String {
    let server = Server::start(&[]);
    let other = replica(&server, &[]);
    evict(&server);
    server.cli(&["SET", "last", "1"]);
    until("the replica to have the last write", || other.cli(&["EXISTS", "last"]) == "1");
    let has_none = info(&other, "db0").contains("expires=0");
    format!("{}, {}", if has_none { "missing" } else { "there" }, evictions(&other))
}
