//! Each command that the doctor prints, carried out on the facts, leaves fewer findings and no new
//! ones: all faults alone and all pairs.

mod faults;

use std::collections::BTreeSet;
use std::time::Duration;

use self::faults::{FAULTS, LOGIN, LONE, LOOPBACK, MACHINE, announce, begin, group, is_blind};
use super::super::facts::{Facts, Fields, Group, KeptData, Role, Server, Unread, has_port, place};
use super::super::report::{Finding, Verdict};
use super::tests::{good, good_lone, info_on, sentinel, server, set_on, text};
use super::{CHECKS, run};
use crate::login::Hand;

type Fault = (&'static str, fn(&mut Facts));
type Base = (fn() -> Facts, &'static [Fault]);

/// What the Sentinels know ten seconds later: each other, and the replicas.
fn hellos(group: &mut Group) {
    let alive: Vec<(Fields, String)> = group
        .sentinels
        .iter()
        .filter(|s| s.reached.is_ok())
        .map(|s| {
            let (host, port) = s.at.rsplit_once(':').expect("host:port");
            let id = s.id.clone().expect("its id");
            (text(&[("ip", host), ("port", port), ("runid", &id), ("flags", "sentinel")]), id)
        })
        .collect();
    let priorities: Vec<(String, String)> = group
        .servers
        .iter()
        .map(|s| (s.at.clone(), s.setting("replica-priority").unwrap_or("100").to_owned()))
        .collect();
    let epochs = group.sentinels.iter().filter_map(|s| s.number("config-epoch"));
    let epoch = epochs.max().unwrap_or_default().to_string();
    let servers = group.servers.clone();
    for sentinel in &mut group.sentinels {
        let own = sentinel.id.clone().expect("its id");
        let Ok(master) = &mut sentinel.master else { continue };
        let Ok(others) = &mut sentinel.others else { continue };
        for (fields, id) in alive.iter().filter(|(_, id)| *id != own) {
            if !others.iter().any(|other| other.get("runid") == Some(id)) {
                others.push(fields.clone());
            }
        }
        master.insert("num-other-sentinels".into(), others.len().to_string());
        master.insert("config-epoch".into(), epoch.clone());
        let named = place(master);
        let down = if is_blind(master) { ",s_down,disconnected" } else { "" };
        let seen = format!("slave{down}");
        master.insert("flags".into(), format!("master{down}"));
        let replicas = priorities.iter().filter(|(at, _)| Some(at) != named.as_ref());
        let replicas: Vec<Fields> = replicas
            .map(|(at, priority)| {
                let (host, port) = at.rsplit_once(':').expect("host:port");
                let hidden =
                    servers.iter().any(|s| s.at == *at && super::wanted::lacks_tls_replication(s));
                let port = if hidden { "0" } else { port };
                let (link, flags) = (("master-link-status", "ok"), ("flags", &*seen));
                text(&[("ip", host), ("port", port), ("slave-priority", priority), link, flags])
            })
            .collect();
        master.insert("num-slaves".into(), replicas.len().to_string());
        sentinel.replicas = Ok(replicas);
    }
}

/// The command of a line for this server, by its address or by the other one of its machine.
fn sent_to<'l>(server: &Server, hand: &Hand, line: &'l str) -> Option<&'l str> {
    let (host, port) = server.at.rsplit_once(':')?;
    let other = if host == LOOPBACK { MACHINE } else { LOOPBACK };
    let is_there = [LOOPBACK, MACHINE].contains(&host);
    let other = is_there.then(|| hand.to(&format!("{other}:{port}")));
    let mut hands = std::iter::once(&server.hand).chain(&other);
    hands.find_map(|hand| line.strip_prefix(hand)?.strip_prefix(' '))
}

/// Carries out one command, unless it needs what only a person knows. A person knows the logins.
fn carry_out(f: &mut Facts, command: &str) {
    let line = command.split("    # ").next().unwrap_or_default();
    let logins = [
        super::wanted::USER,
        super::wanted::PASSWORD,
        "<password of the servers>",
        "<user of the servers>",
    ];
    let line = &logins.iter().fold(line.to_owned(), |line, login| line.replace(login, "known"));
    if line.contains('<') {
        return;
    }
    let hand = f.groups.first().map(|group| group.hand.clone()).unwrap_or_default();
    let mut servers = f.groups.iter_mut().flat_map(|g| &mut g.servers).chain(&mut f.nodes);
    let asked = servers.find_map(|server| Some((sent_to(server, &hand, line)?, server)));
    if let Some((command, server)) = asked {
        let before = format!("{server:?}");
        at_server(server, &hand, command);
        if format!("{server:?}") != before {
            f.groups.iter_mut().for_each(hellos);
        }
        return;
    }
    for n in 0..f.groups.first().map_or(0, |group| group.sentinels.len()) {
        let hand = format!("{} ", f.groups[0].sentinels[n].hand);
        if let Some(command) = line.strip_prefix(&hand) {
            return at_sentinel(f, n, command);
        }
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    match &words[..] {
        ["{", "echo", ..] => {
            let n = group(f).sentinels.len() + 1;
            let mut new = sentinel(n);
            new.others = Ok(Vec::new());
            begin(&mut new, &group(f).hand);
            let Ok(master) = &mut new.master else { unreachable!() };
            for setting in line.split("echo ").skip(1).filter_map(|echo| echo.split(';').next()) {
                let setting = setting.replace('\'', "");
                let words: Vec<&str> = setting.split(' ').collect();
                match words[1] {
                    "monitor" => drop(master.insert("quorum".into(), words[5].into())),
                    name => drop(master.insert(name.into(), words[3].into())),
                }
            }
            group(f).sentinels.push(new);
            hellos(group(f));
        }
        ["redis-server", "redis.conf", "--replicaof", ..] => {
            let n = group(f).servers.len() + 1;
            group(f).servers.push(server(n));
            hellos(group(f));
        }
        ["palisade", "init", ..] => {
            let groups = f.groups.iter_mut().filter_map(|group| group.servers.first_mut());
            for server in groups.chain(&mut f.nodes).filter(|server| server.marker == Ok(None)) {
                server.marker = Ok(Some(KeptData {
                    quarantine: Duration::from_secs(15),
                    history: "a".repeat(40),
                    ..KeptData::default()
                }));
            }
        }
        ["palisade", "doctor", "--max-ttl", secs] => {
            f.max_ttl = Duration::from_secs_f64(secs.parse().expect("seconds"));
        }
        ["palisade" | "df" | "timedatectl", ..] => {}
        other => panic!("a command that is no command: {other:?}"),
    }
}

fn at_server(server: &mut Server, hand: &Hand, command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    match &words[..] {
        ["CONFIG", "SET", name, value] => {
            set_on(server, name, value);
            match *name {
                "maxmemory-policy" => info_on(server, "maxmemory_policy", value),
                // That begins with a new file.
                "appendonly" => {
                    info_on(server, "aof_enabled", "1");
                    info_on(server, "aof_last_write_status", "ok");
                    info_on(server, "aof_last_bgrewrite_status", "ok");
                }
                "replica-read-only" => info_on(server, "slave_read_only", "1"),
                "min-replicas-to-write" => info_on(server, "min_slaves_good_slaves", "1"),
                "masterauth" if hand.user.is_none() => {
                    info_on(server, "master_link_status", "up");
                }
                "masteruser" if server.setting("masterauth").is_ok() => {
                    info_on(server, "master_link_status", "up");
                }
                "replica-announce-ip" => announce(server, hand, value),
                _ => {}
            }
        }
        ["ACL", "SETUSER", "default", "'+@all'", ..] => server.replays = Ok(None),
        ["ACL", "SETUSER", ..] => {
            let Ok(may) = &mut server.may else { return };
            for (_, why) in may {
                *why = None;
            }
        }
        ["REPLICAOF", host, port] => {
            server.role = Ok(Role::Replica { master: format!("{host}:{port}") });
            info_on(server, "role", "slave");
            info_on(server, "master_link_status", "up");
        }
        ["BGREWRITEAOF"] => info_on(server, "aof_last_bgrewrite_status", "ok"),
        ["--rdb", "-", ">/dev/null"] => info_on(server, "repl_backlog_active", "1"),
        ["CONFIG", "REWRITE", ..] | ["ACL" | "PING" | "INFO" | "ROLE", ..] => {}
        other => panic!("a server has no {other:?}"),
    }
}

fn at_sentinel(f: &mut Facts, n: usize, command: &str) {
    let live: Vec<String> = group(f).sentinels.iter().map(|s| s.at.clone()).collect();
    let Group { sentinels, servers, hand, .. } = &mut f.groups[0];
    let sentinel = &mut sentinels[n];
    let words: Vec<&str> = command.split(' ').collect();
    match &words[..] {
        ["SENTINEL", "SET", "orders-a", name, value] => {
            let Ok(master) = &mut sentinel.master else { panic!("it monitors nothing") };
            master.insert((*name).into(), (*value).into());
            if LOGIN.contains(name) {
                hellos(group(f));
            }
        }
        ["SENTINEL", "RESET", "orders-a"] => {
            let Ok(others) = &mut sentinel.others else { return };
            others.retain(|o| has_port(o) && place(o).is_some_and(|at| live.contains(&at)));
            hellos(group(f));
        }
        ["SENTINEL", "CKQUORUM", "orders-a"] => hellos(group(f)),
        ["SENTINEL", "REMOVE", "orders-a"] => {
            sentinel.master = Err(Unread::Failed("ERR No such master with that name".into()));
            sentinel.others = Ok(Vec::new());
        }
        ["SENTINEL", "MONITOR", "orders-a", host, port, quorum] => {
            assert!(sentinel.master.is_err(), "it monitors the group already");
            let usual = [("down-after-milliseconds", "30000"), ("failover-timeout", "180000")];
            let own = [("ip", *host), ("port", *port), ("quorum", *quorum), ("config-epoch", "0")];
            sentinel.master = Ok(text(&[&usual[..], &own].concat()));
            sentinel.others = Ok(Vec::new());
            begin(sentinel, hand);
            let at = format!("{LOOPBACK}:{port}");
            let named = servers.iter_mut().filter(|server| server.at == at && *host == MACHINE);
            named.for_each(|server| announce(server, hand, host));
            hellos(group(f));
        }
        ["INFO", "sentinel"] => sentinel.tilt = Ok(false),
        ["PING"] | ["SENTINEL", "MASTERS"] | ["SENTINEL", "MASTER", _] => {}
        other => panic!("a Sentinel has no {other:?}"),
    }
}

type Keys = BTreeSet<(&'static str, String)>;

fn wrong(f: &Facts) -> (Keys, Vec<Finding>) {
    let is_wrong = |f: &Finding| matches!(f.verdict, Verdict::Error | Verdict::Warning);
    let all: Vec<Finding> = run(f).into_iter().filter(is_wrong).collect();
    // The same server, by its two addresses.
    let subject = |f: &Finding| f.subject.replace(LOOPBACK, MACHINE);
    (all.iter().map(|f| (f.check, subject(f))).collect(), all)
}

/// Each command once. False if none changes anything.
fn follow(f: &mut Facts, findings: &[&Finding]) -> bool {
    let before = format!("{f:?}");
    let mut printed = BTreeSet::new();
    for command in findings.iter().flat_map(|f| &f.fix) {
        if printed.insert(command) {
            carry_out(f, command);
        }
    }
    format!("{f:?}") != before
}

/// Returns what is wrong with the doctor's advice in this cell, if anything is.
fn cell(good: fn() -> Facts, faults: &[&Fault]) -> Result<(), String> {
    let mut facts = good();
    for (_, change) in faults {
        change(&mut facts);
    }
    let names: Vec<_> = faults.iter().map(|(name, _)| *name).collect();
    let (before, findings) = wrong(&facts);
    let mut followed = facts.clone();
    if follow(&mut followed, &findings.iter().collect::<Vec<_>>()) {
        let (after, left) = wrong(&followed);
        if !after.is_subset(&before) || after.len() >= before.len() {
            return Err(format!("{names:?}: all advice of {findings:#?} leads to {left:#?}"));
        }
    }
    // The commands of one check alone, of a fault that is alone.
    let checks = if faults.len() == 1 { before.clone() } else { Keys::new() };
    for check in checks.iter().map(|(check, _)| *check).collect::<BTreeSet<_>>() {
        let mut followed = facts.clone();
        let of: Vec<_> = findings.iter().filter(|f| f.check == check).collect();
        follow(&mut followed, &of);
        let (after, left) = wrong(&followed);
        if !after.is_subset(&before) {
            return Err(format!("{names:?}: the advice of {of:#?} alone leads to {left:#?}"));
        }
    }
    Ok(())
}

#[test]
fn a_command_that_lacks_what_only_a_person_knows_is_refused_by_the_shell() {
    let mut printed = BTreeSet::new();
    for (name, login) in &FAULTS[..2] {
        for (with, fault) in FAULTS {
            let mut facts = good();
            login(&mut facts);
            fault(&mut facts);
            for command in wrong(&facts).1.into_iter().flat_map(|finding| finding.fix) {
                let Some((before, _)) = command.split_once('<') else { continue };
                let is_bare = before.matches('\'').count() % 2 == 0;
                assert!(is_bare, "{name}, {with}: {command}");
                printed.insert(command);
            }
        }
    }
    let new = printed.iter().filter(|command| command.starts_with("{ echo "));
    let mut tried = 0;
    for command in new {
        let read = std::process::Command::new("sh").args(["-n", "-c", command]).output();
        assert!(!read.expect("a shell").status.success(), "{command}");
        tried += 1;
    }
    assert!(tried > 1, "{printed:#?}");
}

/// Checks that print no command.
const SILENT: [&str; 1] = ["trial"];
/// Checks whose commands only look, or ask a person to make sure of something first.
const LOOK: [&str; 4] = ["unreachable", "data-loss", "other-deployment", "clock-skew"];

#[test]
fn every_check_with_a_command_is_in_the_table() {
    let (mut printed, mut mended) = (BTreeSet::new(), BTreeSet::new());
    for (good, faults) in BASES {
        for (_, fault) in faults {
            let mut facts = good();
            fault(&mut facts);
            for finding in wrong(&facts).1.iter().filter(|finding| !finding.fix.is_empty()) {
                printed.insert(finding.check);
                let mut followed = facts.clone();
                follow(&mut followed, &[finding]);
                let key = (finding.check, finding.subject.replace(LOOPBACK, MACHINE));
                if !wrong(&followed).0.contains(&key) {
                    mended.insert(finding.check);
                }
            }
        }
    }
    let ids: BTreeSet<_> = CHECKS.iter().map(|check| check.id).collect();
    assert_eq!(&ids - &BTreeSet::from(SILENT), printed, "those that print a command");
    assert_eq!(&printed - &mended, BTreeSet::from(LOOK), "those that only look");
}

/// The deployments without faults, each with the faults that it can have.
const BASES: [Base; 2] = [(good, FAULTS), (good_lone, LONE)];

#[test]
fn advice_that_is_followed_leaves_fewer_findings_and_no_new_ones() {
    let (mut cells, mut failed) = (0, Vec::new());
    let mut try_one = |good, faults: &[&Fault]| {
        cells += 1;
        failed.extend(cell(good, faults).err());
    };
    for (good, faults) in BASES {
        for (n, one) in faults.iter().enumerate() {
            try_one(good, &[one]);
            for two in faults.iter().enumerate().filter(|(m, _)| *m != n).map(|(_, two)| two) {
                try_one(good, &[one, two]);
            }
        }
    }
    println!("{cells} cells");
    let shown = failed.iter().take(3).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(failed.is_empty(), "{} of {cells} cells:\n{shown}", failed.len());
}
