//! What a script may ask, and how its writes are replicated.

use std::process::{Command, Stdio};

use crate::Assumption;
use crate::ask::{eval, field_of, info, pause, replica, until};
use crate::server::Server;

pub(crate) const ALL: &[Assumption] = &[
    Assumption::new(
        "quarantine 19",
        "a script may ask INFO for one section, and for four at once",
        "replication: replid; four: run_id, replid, inputs, calls",
        sections,
    ),
    Assumption::new(
        "quarantine 19",
        "the user of sentinel-conf/users-data.acl may ask the same in a script",
        "replication: replid; four: run_id, replid, inputs, calls",
        sections_as_user,
    ),
    Assumption::new(
        "quarantine 13",
        "a script that lacks a right: the error of redis.call and of redis.pcall",
        "call: ERR The user executing the script can't run this command or subcommand; \
         pcall: ERR The user executing the script can't run this command or subcommand",
        missing_right,
    )
    .except(&[("redis 8", LATER_RIGHT), ("valkey", LATER_RIGHT)]),
    Assumption::new(
        "quarantine 2",
        "GETRANGE of a missing key, and of a hash",
        "'', WRONGTYPE",
        getrange,
    ),
    Assumption::new(
        "quarantine 13",
        "the writes of a script reach the AOF in their order, within one transaction",
        "MULTI SET SET EXEC",
        order_in_aof,
    ),
    Assumption::new(
        "quarantine 13",
        "the writes of a script reach a replica in their order, within one transaction",
        "MULTI SET SET EXEC",
        order_at_replica,
    ),
    Assumption::new(
        "quarantine 13",
        "a write by pcall that is refused does not end the script, nor undo what was before it",
        "before 1, after 1",
        pcall_goes_on,
    ),
    Assumption::new(
        "quarantine 13",
        "an error in the middle of a script undoes nothing",
        "before 1, after ",
        error_undoes_nothing,
    ),
    Assumption::new(
        "overview 3",
        "TIME in a script, before and after 10 ms of work in it",
        "later",
        time_in_a_script,
    )
    .except(&[("redis 8", "the same"), ("valkey", "the same")]),
    Assumption::new(
        "sentinel 3",
        "a replica executes a script that only reads, so the script has to look at its role",
        "value 1, role slave",
        reading_at_a_replica,
    ),
    Assumption::new("locks 5", "SET … GET in a script returns the value before", "1", set_get),
];

const LATER_RIGHT: &str = "call: ERR ACL failure in script: User weak has no permissions to run \
the \
     'getrange' command; pcall: ERR ACL failure in script: User weak has no permissions to run the \
     'getrange' command";

const FOUR: &str = "local i = redis.call('INFO', 'server', 'stats', 'commandstats', 'replication') \
    local one = redis.call('INFO', 'replication') \
    local has = function(of, name) return string.find(of, name, 1, true) and true or false end \
    return {has(one, 'master_replid:') and 'replid' or 'nothing', \
    has(i, 'run_id:') and 'run_id' or 'no run_id', \
    has(i, 'master_replid:') and 'replid' or 'no replid', \
    has(i, 'total_net_repl_input_bytes:') and 'inputs' or 'no inputs', \
    has(i, 'cmdstat_') and 'calls' or 'no calls'}";

fn four(reply: &str) -> String {
    let words: Vec<_> = reply.lines().collect();
    match words.as_slice() {
        [one, four @ ..] if four.len() == 4 => {
            format!("replication: {one}; four: {}", four.join(", "))
        }
        _ => reply.to_owned(),
    }
}

fn sections() -> String {
    let server = Server::start(&[]);
    four(&eval(&server, FOUR))
}

fn sections_as_user() -> String {
    let file = include_str!("../../../sentinel-conf/users-data.acl");
    let line = file.lines().find(|l| l.starts_with("user palisade ")).expect("the user");
    let line = line.replace("@APP_SECRET@", "secret");
    let acl = format!("user default on nopass ~* &* +@all\n{line}\n");
    let server = Server::start_with_users(&acl, &[], ("palisade", "secret"));
    let sha = admin(&server, &["SCRIPT", "LOAD", FOUR]);
    four(&server.cli(&["EVALSHA", &sha, "0"]))
}

/// Asks as the default user, who may do everything.
fn admin(server: &Server, words: &[&str]) -> String {
    let out = Command::new("redis-cli").arg("-s").arg(server.socket()).args(words).output();
    String::from_utf8_lossy(&out.expect("redis-cli").stdout).trim_end().to_owned()
}

fn missing_right() -> String {
    let acl = "user default on nopass ~* &* +@all\n\
               user weak on >secret ~* &* +@all -getrange\n";
    let server = Server::start_with_users(acl, &[], ("weak", "secret"));
    let sentence = |reply: String| {
        let reply = reply.trim_start_matches("(error) ").trim().to_owned();
        // The script's name, which is not the same each time.
        let named = reply.rfind(" script: ").filter(|at| !reply[*at..].contains("User"));
        reply[..named.unwrap_or(reply.len())].to_owned()
    };
    let call = sentence(eval(&server, "return redis.call('GETRANGE', 'k', '0', '1')"));
    let pcall = "local e = redis.pcall('GETRANGE', 'k', '0', '1') return e.err or 'no error'";
    format!("call: {call}; pcall: {}", sentence(eval(&server, pcall)))
}

fn getrange() -> String {
    let server = Server::start(&[]);
    server.cli(&["HSET", "h", "f", "v"]);
    let missing = eval(&server, "return redis.pcall('GETRANGE', 'none', '0', '476')");
    let hash = eval(&server, "return redis.pcall('GETRANGE', 'h', '0', '476').err");
    format!("'{missing}', {}", hash.split(' ').next().unwrap_or_default())
}

const TWO: &str = "redis.call('SET', 'a', '1') redis.call('SET', 'b', '1')";

/// Returns the names of commands in an AOF.
fn commands(text: &str) -> String {
    let known = ["MULTI", "SET", "EXEC"];
    let lines = text.lines().map(|l| l.trim().to_uppercase());
    let found = lines.filter(|l| known.contains(&l.as_str()));
    found.collect::<Vec<_>>().join(" ")
}

fn order_in_aof() -> String {
    let server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    eval(&server, TWO);
    let mut text = String::new();
    for file in std::fs::read_dir(server.dir().join("appendonlydir")).expect("an AOF").flatten() {
        if file.path().to_string_lossy().contains(".incr.") {
            text = String::from_utf8_lossy(&std::fs::read(file.path()).expect("it")).into_owned();
        }
    }
    commands(&text)
}

fn order_at_replica() -> String {
    let master = Server::start(&[]);
    let other = replica(&master, &[]);
    let log = other.dir().join("monitor");
    let file = std::fs::File::create(&log).expect("a file");
    let mut monitor = Command::new("redis-cli")
        .arg("-s")
        .arg(other.socket())
        .arg("MONITOR")
        .stdout(file)
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-cli");
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    until("MONITOR to begin", || read().contains("OK"));
    eval(&master, TWO);
    until("the replica to have it", || other.cli(&["GET", "b"]) == "1");
    pause(200);
    let _ = monitor.kill();
    let _ = monitor.wait();
    let of_master = |l: &&str| !l.contains("unix:");
    let words = read();
    let words = words.lines().filter(of_master).filter_map(|l| l.split('"').nth(1));
    let known = ["MULTI", "SET", "EXEC"];
    let words = words.map(str::to_uppercase).filter(|w| known.contains(&w.as_str()));
    words.collect::<Vec<_>>().join(" ")
}

fn pcall_goes_on() -> String {
    let server = Server::start(&[]);
    server.cli(&["SET", "text", "t"]);
    let script = "redis.call('SET', 'a', '1') redis.pcall('HSET', 'text', 'f', 'v') \
                  redis.call('SET', 'b', '1')";
    eval(&server, script);
    format!("before {}, after {}", server.cli(&["GET", "a"]), server.cli(&["GET", "b"]))
}

fn error_undoes_nothing() -> String {
    let server = Server::start(&[]);
    server.cli(&["SET", "text", "t"]);
    let script = "redis.call('SET', 'a', '1') redis.call('HSET', 'text', 'f', 'v') \
                  redis.call('SET', 'b', '1')";
    eval(&server, script);
    format!("before {}, after {}", server.cli(&["GET", "a"]), server.cli(&["GET", "b"]))
}

fn time_in_a_script() -> String {
    let server = Server::start(&[]);
    let script = "local a = redis.call('TIME') local n = 0 \
                  for i = 1, 1000000 do n = n + i end \
                  local b = redis.call('TIME') \
                  return (b[1] - a[1]) * 1000000 + b[2] - a[2]";
    match eval(&server, script).parse::<i64>() {
        Ok(0) => "the same".to_owned(),
        Ok(1..) => "later".to_owned(),
        other => format!("{other:?}"),
    }
}

fn reading_at_a_replica() -> String {
    let master = Server::start(&[]);
    let other = replica(&master, &[]);
    master.cli(&["SET", "k", "1"]);
    until("the replica to have it", || other.cli(&["GET", "k"]) == "1");
    let value = eval(&other, "return redis.call('GET', 'k')");
    let seen = eval(&other, "return redis.call('INFO', 'replication')");
    assert!(!info(&other, "role").is_empty(), "it answers");
    format!("value {value}, role {}", field_of(&seen, "role"))
}

fn set_get() -> String {
    let server = Server::start(&[]);
    server.cli(&["SET", "k", "1"]);
    eval(&server, "return redis.call('SET', 'k', '2', 'GET')")
}
