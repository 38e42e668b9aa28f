//! What is wrong in a cell of the table.

use std::time::Duration;

use super::super::tests::{info_on, sentinel, server, set, set_on, text};
use super::{Fault, hellos};
use crate::backlog::TTL;
use crate::doctor::facts::{Clock, Facts, Fields, Group, KeptData, Role, Sentinel, Server, Unread};
use crate::login::Hand;
use crate::marker::between;

pub(super) fn group(f: &mut Facts) -> &mut Group {
    &mut f.groups[0]
}

/// Returns the `n`th Sentinel, or the last one if a fault before left fewer.
fn sentinel_at(f: &mut Facts, n: usize) -> &mut Sentinel {
    let last = group(f).sentinels.len() - 1;
    &mut group(f).sentinels[n.min(last)]
}

fn server_at(f: &mut Facts, n: usize) -> &mut Server {
    let last = group(f).servers.len() - 1;
    &mut group(f).servers[n.min(last)]
}

fn said(f: &mut Facts, n: usize, name: &str, value: &str) {
    let Ok(master) = &mut sentinel_at(f, n).master else { return };
    master.insert(name.into(), value.into());
}

fn all_said(f: &mut Facts, name: &str, value: &str) {
    (0..group(f).sentinels.len()).for_each(|n| said(f, n, name, value));
}

/// Adds a Sentinel that nobody reaches to what the Sentinels `whose` report.
fn stale_peer(f: &mut Facts, whose: std::ops::Range<usize>, port: &str) {
    let flags = "s_down,sentinel,disconnected";
    let peer = text(&[("ip", "10.0.0.9"), ("port", port), ("runid", "stale"), ("flags", flags)]);
    for n in whose.filter(|n| *n < f.groups[0].sentinels.len()).collect::<Vec<_>>() {
        let Ok(others) = &mut sentinel_at(f, n).others else { return };
        others.push(peer.clone());
        let all = others.len().to_string();
        said(f, n, "num-other-sentinels", &all);
    }
}

pub(super) fn alone(sentinel: &mut Sentinel) {
    let Ok(master) = &mut sentinel.master else { return };
    master.insert("num-other-sentinels".into(), "0".into());
    sentinel.others = Ok(Vec::new());
}

fn of_size(f: &mut Facts, sentinels: usize) {
    group(f).sentinels = (1..=sentinels).map(sentinel).collect();
    group(f).sentinels.iter_mut().for_each(alone);
    let is_local = server_at(f, 0).at.starts_with(LOOPBACK);
    if is_local { loopback(f) } else { hellos(group(f)) }
}

fn with_servers(f: &mut Facts, servers: usize) {
    let is_local = server_at(f, 0).at.starts_with(LOOPBACK);
    group(f).servers = (1..=servers).map(server).collect();
    if is_local { loopback(f) } else { hellos(group(f)) }
}

pub(super) fn priority(f: &mut Facts, n: usize, value: &str) {
    set_on(server_at(f, n), "replica-priority", value);
    hellos(group(f));
}

fn off(f: &mut Facts, n: usize) {
    let server = server_at(f, n);
    set_on(server, "min-replicas-to-write", "0");
    let Ok(info) = &mut server.info else { return };
    info.remove("min_slaves_good_slaves");
}

fn no_aof(f: &mut Facts, save: &str) {
    let server = server_at(f, 1);
    set_on(server, "save", save);
    info_on(server, "aof_enabled", "0");
}

fn denied(f: &mut Facts) {
    server_at(f, 1).replays = Ok(Some("no permissions to run 'set'".into()));
}

fn renames(server: &mut Server) {
    server.was_reset = Ok(true);
    set_on(server, TTL, "3600");
}

fn without_backlog(server: &mut Server) {
    renames(server);
    info_on(server, "repl_backlog_active", "0");
}

fn not_rewritten(server: &mut Server) {
    info_on(server, "aof_last_bgrewrite_status", "err");
}

fn without_link(server: &mut Server) {
    info_on(server, "master_link_status", "down");
}

/// Changes the marker, unless a fault before took it.
fn marked(server: &mut Server, change: impl FnOnce(&mut KeptData)) {
    if let Ok(Some(kept)) = &mut server.marker {
        change(kept);
    }
}

fn long_quarantine(server: &mut Server) {
    marked(server, |kept| kept.quarantine = Duration::from_secs(77));
}

fn lost(server: &mut Server) {
    marked(server, |kept| {
        (kept.lost_everything, kept.now, kept.losses) = (true, 1_001, vec![between(0, 1_000)]);
    });
}

fn without_right(server: &mut Server) {
    let Ok(may) = &mut server.may else { return };
    may[0].1 = Some("no permissions to run the 'evalsha' command".into());
}

fn ahead(server: &mut Server) {
    server.clock = Ok(Clock { ahead: 9_000_000, error: 200 });
}

/// All run on one machine, and the servers announce a loopback address.
fn loopback(f: &mut Facts) {
    let Group { sentinels, servers, hand, .. } = group(f);
    for (server, port) in servers.iter_mut().zip(6379..) {
        server.at = format!("{LOOPBACK}:{port}");
        server.hand = hand.to(&server.at);
    }
    for (sentinel, port) in sentinels.iter_mut().zip(26379..) {
        sentinel.at = format!("{MACHINE}:{port}");
        sentinel.hand = Hand::default().to(&sentinel.at);
        sentinel.others = Ok(Vec::new());
        let Ok(master) = &mut sentinel.master else { continue };
        master.extend(text(&[("ip", LOOPBACK), ("port", "6379")]));
    }
    hellos(group(f));
}

pub(super) const LOOPBACK: &str = "127.0.0.1";
pub(super) const MACHINE: &str = "10.0.0.1";

/// Gives a server on that machine the address at which other machines reach it.
pub(super) fn announce(server: &mut Server, hand: &Hand, host: &str) {
    if let Some(port) = server.at.strip_prefix(LOOPBACK) {
        server.at = format!("{host}{port}");
        server.hand = hand.to(&server.at);
    }
}

fn by_tls(f: &mut Facts, n: usize) {
    let server = server_at(f, n);
    server.tls = true;
    server.hand.push_str(" --tls");
    set_on(server, "port", "0");
    set_on(server, "tls-replication", "no");
}

fn asks_for_login(f: &mut Facts, user: Option<&str>) {
    let group = group(f);
    group.hand.user = user.map(str::to_owned);
    group.hand.has_password = true;
    let Group { hand, servers, .. } = group;
    for server in servers {
        server.hand = hand.to(&server.at);
    }
}

pub(super) const LOGIN: [&str; 2] = ["auth-user", "auth-pass"];
const UNSET: &str = "unset";

pub(super) fn begin(sentinel: &mut Sentinel, of: &Hand) {
    let Ok(master) = &mut sentinel.master else { unreachable!("it monitors the group") };
    for (needed, set) in [of.user.is_some(), of.has_password].into_iter().zip(LOGIN) {
        if needed {
            master.insert(set.into(), UNSET.into());
        }
    }
}

pub(super) fn is_blind(master: &Fields) -> bool {
    LOGIN.iter().any(|set| master.get(*set).is_some_and(|value| value == UNSET))
}

pub(super) const FAULTS: &[Fault] = &[
    ("password", |f| asks_for_login(f, None)),
    ("user", |f| asks_for_login(f, Some("ops"))),
    ("quorum 0", |f| all_said(f, "quorum", "0")),
    ("quorum 1", |f| all_said(f, "quorum", "1")),
    ("quorum 4", |f| all_said(f, "quorum", "4")),
    ("quorum 9 at one", |f| said(f, 0, "quorum", "9")),
    ("quorum 1 at two", |f| [1, 2].iter().for_each(|n| said(f, *n, "quorum", "1"))),
    ("quorum 3 at one", |f| said(f, 2, "quorum", "3")),
    ("no peer is known", |f| group(f).sentinels.iter_mut().for_each(alone)),
    ("one knows no peer", |f| alone(sentinel_at(f, 1))),
    ("a peer at port 0", |f| stale_peer(f, 0..3, "0")),
    ("a peer at port 0, at one", |f| stale_peer(f, 2..3, "0")),
    ("a peer that is gone", |f| stale_peer(f, 0..3, "26379")),
    ("a peer that is gone, at one", |f| stale_peer(f, 1..2, "26379")),
    ("one Sentinel", |f| of_size(f, 1)),
    ("two Sentinels", |f| of_size(f, 2)),
    ("four Sentinels", |f| of_size(f, 4)),
    ("no replica", |f| with_servers(f, 1)),
    ("five servers", |f| with_servers(f, 5)),
    ("eight servers", |f| with_servers(f, 8)),
    ("no check", |f| (0..group(f).servers.len()).for_each(|n| off(f, n))),
    ("no check at the master", |f| off(f, 0)),
    ("lag 10", |f| set(f, "min-replicas-max-lag", "10")),
    ("lag 7 at one", |f| set_on(server_at(f, 0), "min-replicas-max-lag", "7")),
    ("lag 0", |f| set(f, "min-replicas-max-lag", "0")),
    ("down-after 500", |f| all_said(f, "down-after-milliseconds", "500")),
    ("down-after 1999 at one", |f| said(f, 0, "down-after-milliseconds", "1999")),
    ("down-after 3100", |f| all_said(f, "down-after-milliseconds", "3100")),
    ("down-after 30000 at one", |f| said(f, 0, "down-after-milliseconds", "30000")),
    ("failover-timeout 180000", |f| all_said(f, "failover-timeout", "180000")),
    ("no replica may be promoted", |f| {
        (1..group(f).servers.len()).for_each(|n| priority(f, n, "0"));
    }),
    ("the master is preferred", |f| priority(f, 0, "50")),
    ("nothing on disk", |f| no_aof(f, "")),
    ("snapshots", |f| no_aof(f, "3600 1")),
    ("no rights to replay", denied),
    ("appendfsync no", |f| set_on(server_at(f, 1), "appendfsync", "no")),
    ("eviction", |f| {
        info_on(server_at(f, 0), "maxmemory", "1000000");
        info_on(server_at(f, 0), "maxmemory_policy", "allkeys-lru");
    }),
    ("writes on a replica", |f| info_on(server_at(f, 1), "slave_read_only", "0")),
    ("two masters", |f| {
        server_at(f, 1).role = Ok(Role::Master);
        info_on(server_at(f, 1), "role", "master");
    }),
    ("no right", |f| without_right(server_at(f, 1))),
    ("tilt", |f| sentinel_at(f, 1).tilt = Ok(true)),
    ("another master at one", |f| {
        said(f, 2, "ip", "10.0.0.2");
        let Ok(replicas) = &mut sentinel_at(f, 2).replicas else { return };
        let own = replicas.iter_mut().filter(|r| r.get("ip").is_some_and(|ip| ip == "10.0.0.2"));
        own.for_each(|r| drop(r.insert("ip".into(), "10.0.0.1".into())));
    }),
    ("not monitored at one", |f| {
        let why = "ERR No such master with that name";
        sentinel_at(f, 1).master = Err(Unread::Failed(why.into()));
        sentinel_at(f, 1).replicas = Err(Unread::Failed(why.into()));
    }),
    ("an older epoch at one", |f| [0, 1].iter().for_each(|n| said(f, *n, "config-epoch", "6"))),
    ("a master without a port", |f| by_tls(f, 0)),
    ("a replica without a port", |f| {
        by_tls(f, 2);
        hellos(group(f));
    }),
    ("new", |f| server_at(f, 0).marker = Ok(None)),
    ("a long quarantine", |f| long_quarantine(server_at(f, 0))),
    ("data lost", |f| lost(server_at(f, 0))),
    ("history renamed", |f| renames(server_at(f, 0))),
    ("no backlog", |f| without_backlog(server_at(f, 0))),
    ("a file that is not rewritten", |f| not_rewritten(server_at(f, 1))),
    ("a snapshot that failed", |f| {
        no_aof(f, "3600 1");
        info_on(server_at(f, 1), "rdb_last_bgsave_status", "err");
    }),
    ("no link", |f| without_link(server_at(f, 1))),
    ("no link, by a password", |f| {
        asks_for_login(f, None);
        without_link(server_at(f, 1));
    }),
    ("no link, by a user", |f| {
        asks_for_login(f, Some("ops"));
        without_link(server_at(f, 1));
    }),
    ("a replica that copies", |f| {
        asks_for_login(f, None);
        without_link(server_at(f, 1));
        info_on(server_at(f, 1), "master_sync_in_progress", "1");
    }),
    ("a Sentinel without a login", |f| {
        asks_for_login(f, Some("ops"));
        let Group { sentinels, hand, .. } = group(f);
        let last = sentinels.len() - 1;
        if sentinels[last].master.is_ok() {
            begin(&mut sentinels[last], hand);
        }
        hellos(group(f));
    }),
    ("loopback", loopback),
    ("a server is away", |f| server_at(f, 2).reached = Err("no route".into())),
    ("a clock ahead", |f| ahead(server_at(f, 2))),
];

/// Faults of lone servers.
pub(super) const LONE: &[Fault] = &[
    ("nothing on disk", |f| {
        set_on(&mut f.nodes[1], "save", "");
        info_on(&mut f.nodes[1], "aof_enabled", "0");
    }),
    ("snapshots", |f| {
        set_on(&mut f.nodes[1], "save", "3600 1");
        info_on(&mut f.nodes[1], "aof_enabled", "0");
    }),
    ("a snapshot that failed", |f| {
        set_on(&mut f.nodes[2], "save", "3600 1");
        info_on(&mut f.nodes[2], "aof_enabled", "0");
        info_on(&mut f.nodes[2], "rdb_last_bgsave_status", "err");
    }),
    ("a file that is not written", |f| info_on(&mut f.nodes[1], "aof_last_write_status", "err")),
    ("a file that is not rewritten", |f| not_rewritten(&mut f.nodes[1])),
    ("appendfsync no", |f| set_on(&mut f.nodes[1], "appendfsync", "no")),
    ("declared durable", |f| {
        f.nodes[1].durable = true;
        set_on(&mut f.nodes[1], "no-appendfsync-on-rewrite", "yes");
    }),
    ("no rights to replay", |f| f.nodes[1].replays = Ok(Some("no permissions".into()))),
    ("eviction", |f| {
        info_on(&mut f.nodes[0], "maxmemory", "1000000");
        info_on(&mut f.nodes[0], "maxmemory_policy", "allkeys-lru");
    }),
    ("no right", |f| without_right(&mut f.nodes[1])),
    ("one is emptied", |f| f.nodes[0].marker = Ok(None)),
    ("all are new", |f| f.nodes.iter_mut().for_each(|server| server.marker = Ok(None))),
    ("a long quarantine", |f| long_quarantine(&mut f.nodes[0])),
    ("data lost", |f| lost(&mut f.nodes[0])),
    ("another deployment", |f| marked(&mut f.nodes[2], |kept| kept.deployment = Some(9))),
    ("a vote twice", |f| marked(&mut f.nodes[2], |kept| kept.vote = Some(1))),
    ("the settings name another one", |f| f.deployment = Some(9)),
    ("history renamed", |f| renames(&mut f.nodes[0])),
    ("no backlog", |f| without_backlog(&mut f.nodes[0])),
    ("a server is away", |f| f.nodes[2].reached = Err("no route".into())),
    ("a clock ahead", |f| ahead(&mut f.nodes[2])),
];
