//! A deployment without faults, and functions that run one check on a changed copy.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::facts::{
    COMMANDS, Clock, Facts, Fields, Group, KeptData, Outcome, Role, Sentinel, Server, Trial, Unread,
};
use super::super::report::{Finding, Verdict};
use super::{CHECKS, run};
use crate::login::Hand;
use palisade::internal::MinReplicasRule;

/// With the settings that `sentinel-conf` writes.
pub(crate) fn good() -> Facts {
    let sentinels = (1..=3).map(sentinel).collect();
    let servers = (1..=3).map(server).collect();
    Facts {
        groups: vec![Group {
            name: "orders-a".into(),
            url: "sentinel://10.0.0.1:26379,10.0.0.2:26379,10.0.0.3:26379/orders-a".into(),
            rule: MinReplicasRule::default(),
            hand: Hand::default(),
            sentinels,
            servers,
            skipped: BTreeSet::new(),
        }],
        nodes: Vec::new(),
        deployment: None,
        max_ttl: Duration::from_secs(15),
        clock_error: Duration::from_secs(2),
        trials: vec![Trial {
            subject: "orders-a".into(),
            outcome: Outcome::Granted {
                granted: Duration::from_millis(3),
                released: Duration::from_millis(1),
            },
        }],
    }
}

/// Returns a deployment without faults: three lone servers.
pub(crate) fn good_lone() -> Facts {
    let mut facts = good();
    facts.groups.clear();
    facts.nodes = (1..=3).map(lone).collect();
    facts
}

fn lone(n: u64) -> Server {
    let (at, hand) = (format!("10.0.0.{n}:6379"), format!("redis-cli -h 10.0.0.{n} -p 6379"));
    let mut master = Server { at, hand, given: true, ..server(1) };
    if let (Ok(Some(marker)), Ok(info)) = (&mut master.marker, &mut master.info) {
        (marker.deployment, marker.vote, marker.quarantine) =
            (Some(1), Some(n), Duration::from_secs(15));
        info.retain(|name, _| !name.starts_with("slave"));
        info.insert("connected_slaves".into(), "0".into());
    }
    master
}

pub(crate) fn text(pairs: &[(&str, &str)]) -> Fields {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

pub(super) fn sentinel(n: usize) -> Sentinel {
    let other = |m: usize| {
        let port = "26379";
        let ip = format!("10.0.0.{m}");
        let id = format!("{m}").repeat(40);
        text(&[
            ("name", &id),
            ("ip", &ip),
            ("port", port),
            ("runid", &id),
            ("flags", "sentinel"),
            ("last-ok-ping-reply", "300"),
        ])
    };
    let replica = |m: usize| {
        let ip = format!("10.0.0.{m}");
        text(&[
            ("name", &format!("{ip}:6379")),
            ("ip", &ip),
            ("port", "6379"),
            ("flags", "slave"),
            ("master-link-status", "ok"),
            ("info-refresh", "3000"),
            ("slave-priority", "100"),
        ])
    };
    let (at, hand) = (format!("10.0.0.{n}:26379"), format!("redis-cli -h 10.0.0.{n} -p 26379"));
    Sentinel {
        reached: Ok(()),
        id: Ok(format!("{n}").repeat(40)),
        master: Ok(text(&[
            ("name", "orders-a"),
            ("ip", "10.0.0.1"),
            ("port", "6379"),
            ("flags", "master"),
            ("config-epoch", "0"),
            ("num-slaves", "2"),
            ("num-other-sentinels", "2"),
            ("quorum", "2"),
            ("down-after-milliseconds", "4000"),
            ("failover-timeout", "15000"),
            ("parallel-syncs", "1"),
        ])),
        replicas: Ok(vec![replica(2), replica(3)]),
        others: Ok((1..=3).filter(|m| *m != n).map(other).collect()),
        tilt: Ok(false),
        quorum: Ok("OK 3 usable Sentinels. Quorum and failover can be reached".into()),
        ..Sentinel::unreached(at, true, hand)
    }
}

pub(super) fn server(n: usize) -> Server {
    let (at, hand) = (format!("10.0.0.{n}:6379"), format!("redis-cli -h 10.0.0.{n} -p 6379"));
    let master = "10.0.0.1:6379".to_owned();
    let role = if n == 1 { Role::Master } else { Role::Replica { master } };
    Server {
        url: format!("redis://{at}"),
        reached: Ok(()),
        role: Ok(role),
        info: Ok(info(n)),
        was_reset: Ok(false),
        config: Ok(text(&[
            ("min-replicas-to-write", "1"),
            ("min-replicas-max-lag", "2"),
            ("appendfsync", "everysec"),
            ("save", ""),
            ("replica-priority", "100"),
            ("repl-backlog-ttl", "0"),
        ])),
        clock: Ok(Clock { ahead: 1_000, error: 200 }),
        marker: Ok(Some(KeptData {
            quarantine: Duration::from_secs(19),
            history: "a".repeat(40),
            ..KeptData::default()
        })),
        user: Ok("default".into()),
        may: Ok(COMMANDS.iter().map(|c| ((*c).to_owned(), None)).collect()),
        replays: Ok(None),
        ..Server::unreached(at, false, hand)
    }
}

fn info(n: usize) -> Fields {
    let mut all = text(&[
        ("redis_version", "7.0.15"),
        ("redis_mode", "standalone"),
        ("run_id", &format!("{n}").repeat(40)),
        ("uptime_in_seconds", "86400"),
        ("used_memory", "1048576"),
        ("maxmemory", "0"),
        ("maxmemory_policy", "noeviction"),
        ("evicted_keys", "0"),
        ("loading", "0"),
        ("aof_enabled", "1"),
        ("aof_last_write_status", "ok"),
        ("aof_last_bgrewrite_status", "ok"),
        ("rdb_last_bgsave_status", "ok"),
        ("process_supervised", "no"),
        ("master_replid", &"a".repeat(40)),
        ("master_repl_offset", "1000"),
        ("total_net_repl_input_bytes", "0"),
        ("repl_backlog_active", "1"),
    ]);
    if n == 1 {
        all.extend(text(&[
            ("role", "master"),
            ("connected_slaves", "2"),
            ("min_slaves_good_slaves", "2"),
            ("slave0", "ip=10.0.0.2,port=6379,state=online,offset=1000,lag=0"),
            ("slave1", "ip=10.0.0.3,port=6379,state=online,offset=1000,lag=1"),
        ]));
    } else {
        all.extend(text(&[
            ("role", "slave"),
            ("min_slaves_good_slaves", "0"),
            ("master_host", "10.0.0.1"),
            ("master_port", "6379"),
            ("master_link_status", "up"),
            ("master_last_io_seconds_ago", "0"),
            ("slave_read_only", "1"),
            ("slave_priority", "100"),
            ("slave_repl_offset", "1000"),
        ]));
    }
    all
}

pub(crate) fn set(facts: &mut Facts, name: &str, value: &str) {
    let groups = facts.groups.iter_mut().flat_map(|g| &mut g.servers);
    for server in groups.chain(&mut facts.nodes) {
        set_on(server, name, value);
    }
}

pub(crate) fn set_on(server: &mut Server, name: &str, value: &str) {
    let Ok(config) = &mut server.config else { panic!("CONFIG is closed") };
    config.insert(name.into(), value.into());
}

pub(crate) fn info_on(server: &mut Server, name: &str, value: &str) {
    let Ok(info) = &mut server.info else { panic!("INFO is closed") };
    info.insert(name.into(), value.into());
}

pub(crate) fn all_masters(facts: &mut Facts, name: &str, value: &str) {
    for sentinel in facts.groups.iter_mut().flat_map(|g| &mut g.sentinels) {
        let Ok(master) = &mut sentinel.master else { panic!("no answer") };
        master.insert(name.into(), value.into());
    }
}

pub(crate) fn of(id: &str, facts: &Facts) -> Vec<Finding> {
    assert!(CHECKS.iter().any(|c| c.id == id), "no check is called {id}");
    run(facts).into_iter().filter(|f| f.check == id).collect()
}

pub(crate) fn fine(id: &str) {
    with(
        id,
        |_| {},
        |all| {
            assert!(!all.is_empty(), "{id} says nothing of the good deployment");
        },
    );
}

pub(crate) fn with(id: &str, change: impl FnOnce(&mut Facts), look: impl FnOnce(&[Finding])) {
    let mut facts = good();
    change(&mut facts);
    let all = of(id, &facts);
    assert!(all.iter().all(|f| f.verdict == Verdict::Fine), "{all:#?}");
    look(&all);
}

/// Asserts that the finding's message and evidence are not empty.
pub(crate) fn broken(id: &str, change: impl FnOnce(&mut Facts)) -> Finding {
    let mut facts = good();
    change(&mut facts);
    let all = of(id, &facts);
    let wrong = |f: &&Finding| !matches!(f.verdict, Verdict::Fine | Verdict::Unknown);
    let found = all.iter().find(wrong).unwrap_or_else(|| panic!("nothing found: {all:#?}"));
    assert!(!found.message.is_empty() && !found.evidence.is_empty(), "{found:#?}");
    found.clone()
}

pub(crate) fn unknown(id: &str, change: impl FnOnce(&mut Facts)) -> Finding {
    let mut facts = good();
    change(&mut facts);
    let all = of(id, &facts);
    let found = all.iter().find(|f| f.verdict == Verdict::Unknown);
    found.unwrap_or_else(|| panic!("all is known: {all:#?}")).clone()
}

pub(crate) fn close_config(facts: &mut Facts) {
    let groups = facts.groups.iter_mut().flat_map(|g| &mut g.servers);
    for server in groups.chain(&mut facts.nodes) {
        server.config = Err(Unread::Closed("CONFIG not allowed".into()));
    }
}

#[test]
fn a_good_deployment_is_found_good() {
    for good in [good(), good_lone()] {
        let wrong: Vec<_> = run(&good).into_iter().filter(|f| f.verdict != Verdict::Fine).collect();
        let is_reported = |f: &Finding| f.verdict != Verdict::Info;
        assert!(!wrong.iter().any(is_reported), "{wrong:#?}");
    }
}

#[test]
fn ids_are_unlike_and_every_check_says_why() {
    let ids: BTreeSet<_> = CHECKS.iter().map(|c| c.id).collect();
    assert_eq!(ids.len(), CHECKS.len(), "an id twice");
    for check in CHECKS {
        let kebab = |c: char| c.is_ascii_lowercase() || c == '-';
        assert!(check.id.chars().all(kebab), "{} is not in kebab case", check.id);
        assert!(!check.why.is_empty(), "{}", check.id);
    }
}

#[test]
fn settings_that_cannot_be_read_are_unknown_and_no_fault() {
    // So no check may report an error or a warning for that.
    let mut facts = good();
    close_config(&mut facts);
    for f in run(&facts) {
        assert!(matches!(f.verdict, Verdict::Fine | Verdict::Unknown | Verdict::Info), "{f:#?}");
        if f.verdict == Verdict::Unknown {
            assert!(f.message.starts_with("unknown (CONFIG not allowed"), "{f:#?}");
        }
    }
}
