//! What renames a server's replication id and its run id, and what does not.

use std::io::Write as _;
use std::net::TcpStream;

use crate::Assumption;
use crate::ask::{back_up, eval, follow, ids, info, kept, pause, replica, replid, second, until};
use crate::server::Server;

pub(crate) const ALL: &[Assumption] = &[
    Assumption::new(
        "quarantine 16",
        "REPLICAOF NO ONE on a server that is a master, alone and in MULTI, changes nothing",
        "replid kept, replid2 zeros, role master",
        no_one_on_a_master,
    ),
    Assumption::new(
        "quarantine 1",
        "a promoted replica has a new replication id, and the master's as its second one",
        "replid new, replid2 the id before",
        promotion,
    ),
    Assumption::new(
        "quarantine 19",
        "A follows B and is promoted again (A, B, A)",
        "replid new, replid2 another",
        there_and_back,
    ),
    Assumption::new(
        "quarantine 1",
        "REPLICAOF to a server that does not answer, and NO ONE",
        "replid new, replid2 the id before",
        dead_master,
    ),
    Assumption::new(
        "quarantine 1",
        "a restart without data, with an AOF, with a snapshot, as a replica with a snapshot",
        "new, new, new, kept",
        restarts,
    ),
    Assumption::new(
        "quarantine 1",
        "the second id after a restart with a snapshot",
        "the id before",
        restart_with_snapshot,
    ),
    Assumption::new(
        "quarantine 19",
        "the first replica of a lone server (redis-cli --rdb) renames it, a second one does not",
        "replid new, replid2 zeros; replid kept, replid2 zeros",
        backup,
    ),
    Assumption::new(
        "quarantine 19",
        "REPLCONF alone; PSYNC ? -1 that is cut off at once",
        "replid kept, replid2 zeros; replid new, replid2 zeros",
        half_attached,
    ),
    Assumption::new(
        "quarantine 19",
        "repl-backlog-ttl 1 after the last replica",
        "replid new, replid2 zeros",
        || backlog("1"),
    ),
    Assumption::new(
        "quarantine 19",
        "repl-backlog-ttl 0 after the last replica",
        "replid kept, replid2 zeros",
        || backlog("0"),
    ),
    Assumption::new(
        "quarantine 1",
        "a replica has its master's id, and so has a replica of a replica",
        "kept, kept",
        chained,
    ),
    Assumption::new(
        "quarantine 1",
        "the other replica follows a promoted one by a partial resync",
        "sync_full 0, sync_partial_ok 1",
        partial,
    ),
    Assumption::new(
        "durability 4",
        "run_id over a rename, REPLICAOF there and NO ONE, and a restart",
        "kept, kept, new",
        run_id,
    ),
    Assumption::new(
        "quarantine 17",
        "SWAPDB puts other data in place, the marker with them; the replication id is",
        "marker missing, replid kept, replid2 zeros",
        swapped,
    ),
    Assumption::new(
        "quarantine 17",
        "DEBUG RELOAD NOSAVE puts an older snapshot in place; the replication id is",
        "value old, replid kept, replid2 zeros",
        reloaded,
    ),
    Assumption::new(
        "quarantine 12",
        "FLUSHALL deletes the marker; the replication id is",
        "marker missing, replid kept, replid2 zeros",
        flushed,
    ),
    Assumption::new(
        "quarantine 13",
        "an AOF that ends within a transaction is loaded without all of it",
        "first 1, second missing, third missing",
        torn,
    ),
    Assumption::new(
        "quarantine 11",
        "a transaction in the AOF of a server with `user default off` is there after a restart",
        "in 0 of 2 keys",
        default_off,
    )
    .except(&[("valkey", "in 2 of 2 keys")]),
];

const MARKER: &str = "palisade:generation";

fn no_one_on_a_master() -> String {
    let server = Server::start(&[]);
    let before = replid(&server);
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    server.session("MULTI\nSLAVEOF NO ONE\nCONFIG REWRITE\nEXEC\n");
    format!("{}, role {}", ids(&server, &before), info(&server, "role"))
}

fn promotion() -> String {
    let master = Server::start(&[]);
    let other = replica(&master, &[]);
    other.cli(&["REPLICAOF", "NO", "ONE"]);
    ids(&other, &replid(&master))
}

fn there_and_back() -> String {
    let (a, b) = (Server::start(&[]), Server::start(&[]));
    let before = replid(&a);
    follow(&a, &b);
    a.cli(&["REPLICAOF", "NO", "ONE"]);
    ids(&a, &before)
}

fn dead_master() -> String {
    let server = Server::start(&[]);
    let before = replid(&server);
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    pause(300);
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    ids(&server, &before)
}

fn restarts() -> String {
    let one = |args: &[&str], save: bool| {
        let mut server = Server::start(args);
        server.cli(&["SET", "k", "1"]);
        let before = replid(&server);
        if save {
            server.cli(&["SAVE"]);
        }
        server.restart();
        kept(&before, &replid(&server))
    };
    let aof = ["--appendonly", "yes", "--appendfsync", "always"];
    let (empty, aof, rdb) = (one(&[], false), one(&aof, false), one(&[], true));
    let master = Server::start(&[]);
    let port = master.port().to_string();
    let mut other = replica(&master, &["--replicaof", "127.0.0.1", &port]);
    other.cli(&["SAVE"]);
    let before = replid(&other);
    drop(master);
    other.restart();
    format!("{empty}, {aof}, {rdb}, {}", kept(&before, &replid(&other)))
}

fn restart_with_snapshot() -> String {
    let mut server = Server::start(&[]);
    // Only a server with a backlog writes its id into a snapshot.
    back_up(&server);
    server.cli(&["SET", "k", "1"]);
    until("the backup's own snapshot to end", || server.cli(&["SAVE"]) == "OK");
    let before = replid(&server);
    server.restart();
    second(&server, &before).to_owned()
}

fn backup() -> String {
    let server = Server::start(&[]);
    let first = replid(&server);
    back_up(&server);
    let once = ids(&server, &first);
    let second = replid(&server);
    back_up(&server);
    format!("{once}; {}", ids(&server, &second))
}

fn half_attached() -> String {
    let server = Server::start(&[]);
    let before = replid(&server);
    let say = |words: &str| {
        let mut stream = TcpStream::connect(server.addr()).expect("it listens");
        stream.write_all(words.as_bytes()).expect("it reads");
        pause(300);
        drop(stream);
        pause(300);
        ids(&server, &before)
    };
    let replconf = say("REPLCONF listening-port 7\r\n");
    format!("{replconf}; {}", say("PSYNC ? -1\r\n"))
}

fn backlog(ttl: &str) -> String {
    let server = Server::start(&["--repl-backlog-ttl", ttl]);
    back_up(&server);
    let before = replid(&server);
    pause(4_000);
    ids(&server, &before)
}

fn chained() -> String {
    let top = Server::start(&[]);
    let middle = replica(&top, &[]);
    let last = replica(&middle, &[]);
    let top = replid(&top);
    format!("{}, {}", kept(&top, &replid(&middle)), kept(&top, &replid(&last)))
}

fn partial() -> String {
    let master = Server::start(&[]);
    let (one, two) = (replica(&master, &[]), replica(&master, &[]));
    master.cli(&["SET", "k", "1"]);
    until("both to have it", || [&one, &two].iter().all(|r| r.cli(&["GET", "k"]) == "1"));
    one.cli(&["REPLICAOF", "NO", "ONE"]);
    follow(&two, &one);
    let (full, part) = (info(&one, "sync_full"), info(&one, "sync_partial_ok"));
    format!("sync_full {full}, sync_partial_ok {part}")
}

fn run_id() -> String {
    let (mut server, other) = (Server::start(&[]), Server::start(&[]));
    let before = info(&server, "run_id");
    back_up(&server);
    let renamed = kept(&before, &info(&server, "run_id"));
    follow(&server, &other);
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    let returned = kept(&before, &info(&server, "run_id"));
    server.restart();
    format!("{renamed}, {returned}, {}", kept(&before, &info(&server, "run_id")))
}

fn marker(server: &Server, before: &str) -> String {
    let there = server.cli(&["EXISTS", MARKER]) == "1";
    format!("marker {}, {}", if there { "there" } else { "missing" }, ids(server, before))
}

fn swapped() -> String {
    let server = Server::start(&[]);
    server.cli(&["SET", MARKER, "m"]);
    let before = replid(&server);
    server.cli(&["SWAPDB", "0", "1"]);
    marker(&server, &before)
}

fn reloaded() -> String {
    let server = Server::start(&["--enable-debug-command", "yes"]);
    server.cli(&["SET", "k", "old"]);
    server.cli(&["SAVE"]);
    server.cli(&["SET", "k", "young"]);
    let before = replid(&server);
    server.cli(&["DEBUG", "RELOAD", "NOSAVE"]);
    format!("value {}, {}", server.cli(&["GET", "k"]), ids(&server, &before))
}

fn flushed() -> String {
    let server = Server::start(&[]);
    server.cli(&["SET", MARKER, "m"]);
    let before = replid(&server);
    server.cli(&["FLUSHALL"]);
    marker(&server, &before)
}

/// Returns the part of the AOF that commands are appended to.
fn increment(server: &Server) -> std::path::PathBuf {
    let dir = server.dir().join("appendonlydir");
    let files = std::fs::read_dir(dir).expect("an AOF").flatten();
    let mut parts = files.map(|f| f.path()).filter(|p| p.to_string_lossy().contains(".incr."));
    parts.next().expect("an increment")
}

fn torn() -> String {
    let mut server = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    server.cli(&["SET", "first", "1"]);
    eval(&server, "redis.call('SET', 'second', '1'); redis.call('SET', 'third', '1')");
    server.kill();
    let file = increment(&server);
    let bytes = std::fs::read(&file).expect("it is there");
    // Less than the EXEC of the script's transaction.
    std::fs::write(&file, &bytes[..bytes.len() - 4]).expect("it can be written");
    server.again();
    let value = |key| match server.cli(&["GET", key]) {
        none if none.is_empty() => "missing".to_owned(),
        some => some,
    };
    format!("first {}, second {}, third {}", value("first"), value("second"), value("third"))
}

fn default_off() -> String {
    let acl = "user default off\nuser op on >secret ~* &* +@all\n";
    let args = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut server = Server::start_with_users(acl, &args, ("op", "secret"));
    server.cli(&["EVAL", "redis.call('SET', 'a', '1'); redis.call('SET', 'b', '1')", "0"]);
    server.restart();
    format!("in {} of 2 keys", server.cli(&["EXISTS", "a", "b"]))
}
