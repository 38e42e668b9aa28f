//! What Sentinels do: whom they promote, how, and what their epochs say.

use std::thread;
use std::time::{Duration, Instant};

use crate::Assumption;
use crate::ask::{calls, field_of, ids, info, pause, replid, until};
use crate::server::Server;

pub(crate) const ALL: &[Assumption] = &[
    Assumption::new(
        "quarantine 16",
        "Sentinel promotes a master that returned and was not yet demoted: its ids, slaveof \
         calls, epoch",
        "replid kept, replid2 zeros, slaveof called, epoch +1",
        returning,
    ),
    Assumption::new(
        "quarantine 16",
        "while the master is well, one that returned is made a replica within 30 s",
        "role slave",
        demoted,
    ),
    Assumption::new(
        "quarantine 19",
        "a promotion by Sentinel is counted as slaveof at the promoted server, and at the one \
         that follows it",
        "slaveof called, slaveof called",
        slaveof,
    ),
    Assumption::new(
        "sentinel 1",
        "SENTINEL FAILOVER raises the config-epoch that SENTINEL MASTER prints, at each Sentinel",
        "+1, +1, +1",
        epoch_of_a_failover,
    ),
    Assumption::new(
        "sentinel 1",
        "a failover without a replica to promote: the config-epoch, the master",
        "epoch +0, master kept",
        epoch_of_a_vain_one,
    ),
    Assumption::new(
        "sentinel 1",
        "the config-epoch after SENTINEL RESET at one Sentinel, and at once",
        "same epoch, same master, no other Sentinels known",
        reset,
    ),
    Assumption::new(
        "sentinel 1",
        "after SENTINEL RESET at one, it knows the others and their epoch again within 30 s",
        "2 others, same epoch",
        reset_and_later,
    ),
    Assumption::new(
        "sentinel 1",
        "the config-epoch after REMOVE and MONITOR at all Sentinels",
        "lower, 2 others",
        removed,
    ),
    Assumption::new(
        "sentinel 1",
        "two of three Sentinels after REMOVE and MONITOR: their epoch within 30 s",
        "same epoch, same epoch",
        two_began_anew,
    ),
    Assumption::new(
        "sentinel 1",
        "Sentinels never forget a Sentinel that is dead",
        "2 others after 20 s",
        never_forgotten,
    ),
    Assumption::new(
        "sentinel 1",
        "a Sentinel keeps its id and its epoch over a restart",
        "id kept, epoch kept",
        restarted,
    ),
    Assumption::new(
        "sentinel 1",
        "a Sentinel that missed two failovers, there and back, and hears no other: it names",
        "the same master, epoch -2",
        stale,
    ),
    Assumption::new(
        "sentinel 2",
        "a Sentinel that was stopped for 3 s is in tilt, says so in INFO sentinel, and leaves it \
         after 30 s",
        "tilt 0, 1, 0",
        tilt,
    ),
    Assumption::new(
        "sentinel 2",
        "in tilt a Sentinel accepts SENTINEL FAILOVER, and promotes later than 10 s",
        "OK, not within 10 s",
        failover_in_tilt,
    ),
    Assumption::new(
        "durability 3",
        "a replica with priority 0 is not promoted, although it is the only one",
        "NOGOODSLAVE",
        priority_zero,
    ),
];

const NAME: &str = "assumed";

struct Watched {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Watched {
    /// Starts a master with these replicas' arguments, and three Sentinels that know all of them.
    fn up(replicas: &[&[&str]]) -> Self {
        let mut servers = vec![Server::start(&[])];
        let port = servers[0].port().to_string();
        for args in replicas {
            servers.push(Server::start(&[&["--replicaof", "127.0.0.1", &port], *args].concat()));
        }
        until("the replicas to be in sync", || {
            let text = servers[0].cli(&["INFO", "replication"]);
            text.matches("state=online").count() == replicas.len()
        });
        let sentinels = (0..3).map(|_| Server::start_program("redis-sentinel", &["sentinel.conf"]));
        let watched = Self { servers, sentinels: sentinels.collect() };
        for sentinel in &watched.sentinels {
            Self::monitor(sentinel, &port);
        }
        until("the Sentinels to know all", || watched.know_all(replicas.len()));
        watched
    }

    fn monitor(sentinel: &Server, port: &str) {
        sentinel.cli(&["SENTINEL", "MONITOR", NAME, "127.0.0.1", port, "2"]);
        for (what, value) in [("down-after-milliseconds", "1500"), ("failover-timeout", "6000")] {
            sentinel.cli(&["SENTINEL", "SET", NAME, what, value]);
        }
    }

    fn know_all(&self, replicas: usize) -> bool {
        self.sentinels.iter().all(|s| {
            field(s, "num-other-sentinels") == "2" && field(s, "num-slaves") == replicas.to_string()
                // Only a replica that was asked is a candidate.
                && s.cli(&["SENTINEL", "REPLICAS", NAME]).matches("master-link-status\nok").count()
                    == replicas
        })
    }

    /// Returns the port of the master that all Sentinels name, if they agree.
    fn master(&self) -> Option<u16> {
        let named: Vec<_> = self.sentinels.iter().map(named).collect();
        (named.iter().all(|n| *n == named[0])).then(|| named[0]).flatten()
    }

    fn until_master(&self, port: u16) {
        until("the master", || self.master() == Some(port));
    }

    fn until_other_master(&self, port: u16) -> usize {
        until("another master", || self.master().is_some_and(|m| m != port));
        let new = self.master();
        self.servers.iter().position(|s| Some(s.port()) == new).expect("one of these servers")
    }
}

fn named(sentinel: &Server) -> Option<u16> {
    let reply = sentinel.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
    reply.lines().nth(1)?.parse().ok()
}

/// Returns a field of `SENTINEL MASTER`.
fn field(sentinel: &Server, name: &str) -> String {
    let reply = sentinel.cli(&["SENTINEL", "MASTER", NAME]);
    let mut lines = reply.lines();
    lines.by_ref().find(|l| *l == name);
    lines.next().unwrap_or_default().to_owned()
}

fn epoch(sentinel: &Server) -> i64 {
    field(sentinel, "config-epoch").parse().expect("an epoch")
}

fn called(server: &Server) -> &'static str {
    if calls(server, "slaveof") == "none" { "slaveof not called" } else { "slaveof called" }
}

const PLAIN: &[&str] = &[];
const NEVER: &[&str] = &["--replica-priority", "0"];

fn returning() -> String {
    let mut group = Watched::up(&[PLAIN, NEVER]);
    let first = group.servers[0].port();
    let before = replid(&group.servers[0]);
    group.servers[0].freeze();
    let second = group.until_other_master(first);
    // If the promoted one dies before, the Sentinel that led names it without an end.
    until("the failover to end at all Sentinels", || {
        group.sentinels.iter().all(|s| !field(s, "flags").contains("failover_in_progress"))
    });
    let epochs = epoch(&group.sentinels[0]);
    group.servers[0].resume();
    pause(500);
    group.servers[0].cli(&["CONFIG", "RESETSTAT"]);
    group.servers[second].kill();
    group.until_master(first);
    let rise = epoch(&group.sentinels[0]) - epochs;
    let first = &group.servers[0];
    format!("{}, {}, epoch {rise:+}", ids(first, &before), called(first))
}

fn demoted() -> String {
    let group = Watched::up(&[PLAIN]);
    let first = group.servers[0].port();
    group.servers[0].freeze();
    group.until_other_master(first);
    group.servers[0].resume();
    let begun = Instant::now();
    while info(&group.servers[0], "role") != "slave" && begun.elapsed() < Duration::from_secs(30) {
        pause(200);
    }
    format!("role {}", info(&group.servers[0], "role"))
}

fn slaveof() -> String {
    let group = Watched::up(&[PLAIN, PLAIN]);
    let first = group.servers[0].port();
    group.sentinels[0].cli(&["SENTINEL", "FAILOVER", NAME]);
    let second = group.until_other_master(first);
    let third = 3 - second;
    until("the other one to follow", || {
        info(&group.servers[third], "master_port") == group.servers[second].port().to_string()
    });
    format!("{}, {}", called(&group.servers[second]), called(&group.servers[third]))
}

fn epoch_of_a_failover() -> String {
    let group = Watched::up(&[PLAIN]);
    let first = group.servers[0].port();
    let before: Vec<_> = group.sentinels.iter().map(epoch).collect();
    group.sentinels[0].cli(&["SENTINEL", "FAILOVER", NAME]);
    group.until_other_master(first);
    let rises = group.sentinels.iter().zip(before).map(|(s, b)| format!("{:+}", epoch(s) - b));
    rises.collect::<Vec<_>>().join(", ")
}

fn epoch_of_a_vain_one() -> String {
    let mut group = Watched::up(&[NEVER]);
    let first = group.servers[0].port();
    let before = epoch(&group.sentinels[0]);
    group.servers[0].kill();
    let tried = || {
        let given_up = "-failover-abort-no-good-slave";
        group.sentinels.iter().any(|s| s.log().contains(given_up))
    };
    until("a failover to be given up", tried);
    let rise = epoch(&group.sentinels[0]) - before;
    let kept = if group.master() == Some(first) { "kept" } else { "another" };
    format!("epoch {rise:+}, master {kept}")
}

/// Fails over once, so that the epoch is not the first one.
fn once_over() -> (Watched, i64, u16) {
    let group = Watched::up(&[PLAIN]);
    let first = group.servers[0].port();
    group.sentinels[0].cli(&["SENTINEL", "FAILOVER", NAME]);
    let second = group.until_other_master(first);
    until("the epoch to be everywhere", || group.sentinels.iter().all(|s| epoch(s) > 0));
    let port = group.servers[second].port();
    let before = epoch(&group.sentinels[0]);
    // The failover goes on until the other server follows.
    until("the old master to follow", || info(&group.servers[0], "role") == "slave");
    until("the failover to end", || {
        group.sentinels.iter().all(|s| !field(s, "flags").contains("failover"))
    });
    (group, before, port)
}

fn compared(before: i64, now: i64) -> &'static str {
    match now.cmp(&before) {
        std::cmp::Ordering::Less => "lower",
        std::cmp::Ordering::Equal => "same",
        std::cmp::Ordering::Greater => "higher",
    }
}

fn reset() -> String {
    let (group, before, port) = once_over();
    let one = &group.sentinels[0];
    one.cli(&["SENTINEL", "RESET", NAME]);
    let (others, now) = (field(one, "num-other-sentinels"), epoch(one));
    let master = if named(one) == Some(port) { "same" } else { "another" };
    let others = if others == "0" { "no".to_owned() } else { others };
    format!("{} epoch, {master} master, {others} other Sentinels known", compared(before, now))
}

fn reset_and_later() -> String {
    let (group, before, _) = once_over();
    let one = &group.sentinels[0];
    one.cli(&["SENTINEL", "RESET", NAME]);
    let begun = Instant::now();
    while field(one, "num-other-sentinels") != "2" && begun.elapsed() < Duration::from_secs(30) {
        pause(200);
    }
    let others = field(one, "num-other-sentinels");
    format!("{others} others, {} epoch", compared(before, epoch(one)))
}

fn removed() -> String {
    let (group, before, port) = once_over();
    for sentinel in &group.sentinels {
        sentinel.cli(&["SENTINEL", "REMOVE", NAME]);
    }
    for sentinel in &group.sentinels {
        Watched::monitor(sentinel, &port.to_string());
    }
    let one = &group.sentinels[0];
    until("the Sentinels to know each other", || field(one, "num-other-sentinels") == "2");
    pause(3_000);
    format!("{}, {} others", compared(before, epoch(one)), field(one, "num-other-sentinels"))
}

fn two_began_anew() -> String {
    let (group, before, port) = once_over();
    let anew = &group.sentinels[..2];
    for sentinel in anew {
        sentinel.cli(&["SENTINEL", "REMOVE", NAME]);
    }
    for sentinel in anew {
        Watched::monitor(sentinel, &port.to_string());
    }
    let begun = Instant::now();
    while anew.iter().any(|s| epoch(s) != before) && begun.elapsed() < Duration::from_secs(30) {
        pause(200);
    }
    let epochs = anew.iter().map(|s| format!("{} epoch", compared(before, epoch(s))));
    epochs.collect::<Vec<_>>().join(", ")
}

fn never_forgotten() -> String {
    let mut group = Watched::up(&[PLAIN]);
    group.sentinels[2].kill();
    thread::sleep(Duration::from_secs(20));
    format!("{} others after 20 s", field(&group.sentinels[0], "num-other-sentinels"))
}

fn restarted() -> String {
    let (mut group, before, _) = once_over();
    let id = group.sentinels[2].cli(&["SENTINEL", "MYID"]);
    group.sentinels[2].restart();
    let one = &group.sentinels[2];
    let kept = |same: bool| if same { "kept" } else { "new" };
    let (id, epoch) = (one.cli(&["SENTINEL", "MYID"]) == id, epoch(one) == before);
    format!("id {}, epoch {}", kept(id), kept(epoch))
}

fn stale() -> String {
    let (mut group, _, port) = once_over();
    group.sentinels[2].kill();
    let others = &group.sentinels[..2];
    for to in [group.servers[0].port(), port] {
        let fail_over = || others[0].cli(&["SENTINEL", "FAILOVER", NAME]) == "OK";
        until("a failover to begin", fail_over);
        until("both to name the other master", || others.iter().all(|s| named(s) == Some(to)));
        until("the failover to end", || {
            others.iter().all(|s| !field(s, "flags").contains("failover"))
        });
    }
    let now = epoch(&others[0]);
    // It reads its file, and there is nobody to tell it what came after.
    others.iter().for_each(Server::freeze);
    group.sentinels[2].restart();
    let one = &group.sentinels[2];
    let master = if named(one) == Some(port) { "the same" } else { "another" };
    let seen = format!("{master} master, epoch {:+}", epoch(one) - now);
    group.sentinels[..2].iter().for_each(Server::resume);
    seen
}

fn in_tilt(sentinel: &Server) -> String {
    field_of(&sentinel.cli(&["INFO", "sentinel"]), "sentinel_tilt")
}

fn tilt() -> String {
    let group = Watched::up(&[PLAIN]);
    let one = &group.sentinels[0];
    let before = in_tilt(one);
    one.freeze();
    pause(3_000);
    one.resume();
    pause(500);
    let within = in_tilt(one);
    let begun = Instant::now();
    while in_tilt(one) != "0" && begun.elapsed() < Duration::from_secs(40) {
        pause(500);
    }
    let after =
        if begun.elapsed() > Duration::from_secs(25) { in_tilt(one) } else { "early".into() };
    format!("tilt {before}, {within}, {after}")
}

fn failover_in_tilt() -> String {
    let group = Watched::up(&[PLAIN]);
    let first = group.servers[0].port();
    for sentinel in &group.sentinels {
        sentinel.freeze();
    }
    pause(3_000);
    for sentinel in &group.sentinels {
        sentinel.resume();
    }
    pause(500);
    let reply = group.sentinels[0].cli(&["SENTINEL", "FAILOVER", NAME]);
    let begun = Instant::now();
    while group.master() == Some(first) && begun.elapsed() < Duration::from_secs(10) {
        pause(200);
    }
    let took = if group.master() == Some(first) { "not within 10 s" } else { "within 10 s" };
    format!("{reply}, {took}")
}

fn priority_zero() -> String {
    let group = Watched::up(&[NEVER]);
    let reply = group.sentinels[0].cli(&["SENTINEL", "FAILOVER", NAME]);
    if reply.contains("NOGOODSLAVE") { "NOGOODSLAVE".to_owned() } else { reply }
}
