//! Refusals of writes: that they come before anything took effect, and what goes on all the same.

use crate::Assumption;
use crate::ask::{eval, info, pause, replica, until};
use crate::server::Server;

pub(crate) const ALL: &[Assumption] = &[
    Assumption::new(
        "sentinel 8",
        "NOREPLICAS: the first write of a script is refused, and nothing took effect",
        "NOREPLICAS, 0 keys",
        noreplicas,
    ),
    Assumption::new(
        "sentinel 8",
        "READONLY: the first write of a script is refused, and nothing took effect",
        "READONLY, 0 keys",
        readonly,
    ),
    Assumption::new(
        "sentinel 8",
        "out of memory: the first write of a script is refused, and nothing took effect",
        "OOM, 0 keys",
        oom,
    ),
    Assumption::new(
        "sentinel 8",
        "MISCONF: the first write of a script is refused, and nothing took effect",
        "MISCONF, 0 keys",
        misconf,
    ),
    Assumption::new(
        "sentinel 8",
        "memory that runs out in the middle of a script does not stop it",
        "all 100 keys",
        oom_in_the_middle,
    ),
    Assumption::new(
        "sentinel 8",
        "at maxmemory a script whose first write needs no memory (PEXPIRE) may SET after it",
        "written",
        oom_after_a_first_write,
    ),
    Assumption::new(
        "sentinel 7",
        "at maxmemory with noeviction a script may PEXPIRE and DEL; SET and HSET are refused",
        "PEXPIRE 1, DEL 1, SET OOM, HSET OOM",
        allowed_at_oom,
    ),
    Assumption::new(
        "sentinel 5",
        "a master that thaws executes a buffered script, while its INFO says that the replica lags",
        "written, lag 3 or more",
        thawed,
    ),
    Assumption::new(
        "sentinel 4",
        "a frozen master's replica acknowledges for 3 s, then stops; after the thaw its lag is",
        "0 or 1, written",
        buffered_acknowledgements,
    ),
    Assumption::new(
        "sentinel 4",
        "a master whose replica is gone refuses writes at the latest after max-lag + 2 s",
        "in time",
        silent_in_time,
    ),
];

const TWO: &str = "redis.call('SET', 'a', '1') redis.call('SET', 'b', '1')";

fn refused(server: &Server) -> String {
    let reply = eval(server, TWO);
    let reply = reply.trim_start_matches("(error) ").trim_start_matches("ERR ");
    // Servers differ in the words around it.
    let known = ["NOREPLICAS", "READONLY", "OOM", "MISCONF"];
    let kind = known.into_iter().find(|k| reply.contains(k)).unwrap_or(reply);
    format!("{kind}, {} keys", server.cli(&["EXISTS", "a", "b"]))
}

fn noreplicas() -> String {
    refused(&Server::start(&["--min-replicas-to-write", "1"]))
}

fn readonly() -> String {
    let master = Server::start(&[]);
    refused(&replica(&master, &[]))
}

fn oom() -> String {
    refused(&Server::start(&["--maxmemory", "1"]))
}

fn misconf() -> String {
    let server = Server::start(&["--save", "3600 1"]);
    server.cli(&["SET", "k", "v"]);
    // A directory in the place of the file: the snapshot cannot be renamed to it.
    std::fs::create_dir(server.dir().join("dump.rdb")).expect("no snapshot yet");
    server.cli(&["BGSAVE"]);
    until("the snapshot to fail", || info(&server, "rdb_last_bgsave_status") == "err");
    refused(&server)
}

fn oom_in_the_middle() -> String {
    let server = Server::start(&[]);
    let used: u64 = info(&server, "used_memory").parse().expect("a number");
    server.cli(&["CONFIG", "SET", "maxmemory", &(used + 2_000_000).to_string()]);
    let script = "local v = string.rep('x', 100000) \
                  for n = 1, 100 do redis.call('SET', 'k' .. n, v) end";
    eval(&server, script);
    match server.cli(&["DBSIZE"]).as_str() {
        "100" => "all 100 keys".to_owned(),
        n => format!("{n} keys"),
    }
}

fn allowed_at_oom() -> String {
    let server = Server::start(&[]);
    eval(&server, "redis.call('SET', 'a', '1') redis.call('SET', 'b', '1')");
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let say = |words: &str| {
        let reply = eval(&server, &format!("return redis.call({words})"));
        let oom = reply.contains("OOM") || reply.contains("maxmemory");
        if oom { "OOM".to_owned() } else { reply.trim_start_matches("(integer) ").to_owned() }
    };
    let (pexpire, del) = (say("'PEXPIRE', 'a', '60000'"), say("'DEL', 'b'"));
    let (set, hset) = (say("'SET', 'c', '1'"), say("'HSET', 'd', 'f', '1'"));
    format!("PEXPIRE {pexpire}, DEL {del}, SET {set}, HSET {hset}")
}

fn oom_after_a_first_write() -> String {
    let server = Server::start(&[]);
    server.cli(&["SET", "a", "1"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let script = "redis.call('PEXPIRE', 'a', '60000') redis.call('SET', 'b', '1')";
    let reply = eval(&server, script);
    if server.cli(&["EXISTS", "b"]) == "1" { "written".to_owned() } else { reply }
}

fn guarded() -> (Server, Server) {
    let master = Server::start(&["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"]);
    let other = replica(&master, &[]);
    until("a good replica", || info(&master, "min_slaves_good_slaves") == "1");
    (master, other)
}

/// A master that was frozen between its events and its timers refuses. It is asked again then.
fn thawed() -> String {
    let mut said = thawed_once();
    for _ in 0..4 {
        if said.starts_with("written") {
            break;
        }
        said = thawed_once();
    }
    said
}

fn thawed_once() -> String {
    let (master, other) = guarded();
    other.freeze();
    master.freeze();
    let reply = std::thread::scope(|scope| {
        let script = "redis.call('SET', 'a', '1') return redis.call('INFO', 'replication')";
        let asked = scope.spawn(|| eval(&master, script));
        pause(5_000);
        master.resume();
        asked.join().expect("it is answered")
    });
    other.resume();
    let lag = reply.split("lag=").nth(1).and_then(|l| l.split(['\r', '\n', ',']).next());
    match lag.and_then(|l| l.parse::<u32>().ok()) {
        Some(3..) => "written, lag 3 or more".to_owned(),
        Some(lag) => format!("written, lag {lag}"),
        None => reply,
    }
}

fn buffered_acknowledgements() -> String {
    let (master, other) = guarded();
    master.freeze();
    pause(3_000);
    other.freeze();
    pause(4_000);
    master.resume();
    pause(200);
    let reply =
        eval(&master, "redis.call('SET', 'a', '1') return redis.call('INFO', 'replication')");
    other.resume();
    let lag = reply.split("lag=").nth(1).and_then(|l| l.split(['\r', '\n', ',']).next());
    match lag.and_then(|l| l.parse::<u32>().ok()) {
        Some(0 | 1) => "0 or 1, written".to_owned(),
        Some(lag) => format!("{lag}, written"),
        None => reply,
    }
}

fn silent_in_time() -> String {
    let (master, other) = guarded();
    other.freeze();
    let begun = std::time::Instant::now();
    until("refusals", || master.cli(&["SET", "k", "v"]).contains("NOREPLICAS"));
    // Half a second for the questions themselves.
    let took = begun.elapsed();
    other.resume();
    if took.as_millis() <= 3_500 { "in time".to_owned() } else { format!("{took:?}") }
}
