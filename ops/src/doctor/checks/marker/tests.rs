//! Cases of the checks of markers.

use palisade::internal::MinReplicasRule;

use super::super::tests::{broken, fine, good, unknown, with};
use super::*;
use crate::doctor::facts::{Role, Unread};
use crate::doctor::report::Verdict;
use crate::marker::between;

#[test]
fn a_new_deployment_is_told_how_to_begin() {
    fine("not-initialised");
    let found = broken("not-initialised", |f| {
        f.groups[0].servers[0].marker = Ok(None);
    });
    assert_eq!((found.verdict, &*found.subject), (Verdict::Warning, "orders-a"));
    let sentinels = "10.0.0.1:26379,10.0.0.2:26379,10.0.0.3:26379";
    let group = format!("--node sentinel://{sentinels}/orders-a");
    let fix = format!("palisade init --new {group}  # if it never had any data");
    assert_eq!(found.fix, [fix]);
    // A replica copies its marker (`palisade:generation`) from its master, so a replica without
    // a marker is no finding.
    let replica = |f: &mut Facts| f.groups[0].servers[1].marker = Ok(None);
    with("not-initialised", replica, |_| {});
    let closed = |f: &mut Facts| {
        f.groups[0].servers[0].marker = Err(Unread::Closed("GET not allowed".into()));
    };
    assert_eq!(unknown("not-initialised", closed).message, "unknown (GET not allowed)");
}

/// Replaces the group in the facts (the values that a check examines) by two lone servers, each
/// with one of these markers (records of the data history).
fn two(f: &mut Facts, markers: [Option<KeptData>; 2]) {
    let group = f.groups.remove(0);
    for (mut server, marker) in group.servers.into_iter().zip(markers) {
        server.role = Ok(Role::Master);
        server.marker = Ok(marker);
        f.nodes.push(server);
    }
}

fn kept(empty_secs: Option<u64>) -> KeptData {
    let secs = Duration::from_secs;
    let (since, empty_for) = (Some(1_000), empty_secs.map(secs));
    let now = 1_000 * (1 + empty_secs.unwrap_or_default());
    let quarantine = secs(15);
    KeptData { since, empty_for, quarantine, now, ..KeptData::default() }
}

#[test]
fn a_replaced_node_of_a_deployment_in_use_is_not_to_be_initialised() {
    for second in [None, Some(kept(Some(5))), Some(kept(Some(60)))] {
        let found = broken("not-initialised", |f| two(f, [Some(kept(None)), second.clone()]));
        assert_eq!(found.subject, "node 10.0.0.2:6379");
        assert_eq!(found.fix, [""; 0], "{second:?}");
        assert_eq!(found.message == REPLACED, second.is_none(), "{found:?}");
    }
    // Both nodes are new. Before `init` was run, applications connected to one node or to both
    // nodes.
    for first in [None, Some(kept(Some(5)))] {
        let found = broken("not-initialised", |f| two(f, [first, Some(kept(Some(5)))]));
        let last = found.fix.last().map(String::as_str).unwrap_or_default();
        assert!(last.starts_with("palisade init --new"), "{found:?}");
    }
}

#[test]
fn what_began_empty_is_said_until_nothing_of_before_counts() {
    let of = |empty| broken("not-initialised", |f| two(f, [Some(kept(empty)), Some(kept(empty))]));
    let found = of(Some(5));
    assert!(found.message.contains("grants nothing for another 10s"), "{found:?}");
    let found = of(Some(60 * 60));
    assert!(found.message.contains("count as forgotten for another 23.0 h"), "{found:?}");
    // The node began without data and has granted locks since. A server that lost all data
    // looks the same, so the first command lists the losses of data of the server.
    assert!(found.fix[0].starts_with("palisade idem incidents"), "{found:?}");
    assert!(found.fix[1].starts_with("palisade init --new"), "{found:?}");
    let old = Some(kept(Some(25 * 60 * 60)));
    with("not-initialised", |f| two(f, [old.clone(), old]), |_| {});
}

#[test]
fn a_command_names_all_nodes_by_their_addresses() {
    let mut f = good();
    let mut lone = f.groups[0].servers[0].clone();
    f.nodes.push(lone.clone());
    lone.url = "unix:///run/r.sock?db=1".into();
    f.nodes.push(lone.clone());
    f.nodes.push(lone);
    let nodes = "--node redis://10.0.0.1:6379 --node 'unix:///run/r.sock?db=1' --node \
                 'unix:///run/r.sock?db=1' --allow-even-nodes";
    assert_eq!(named(&f), format!("--node {} {nodes}", f.groups[0].url));
}

#[test]
fn a_lone_server_without_a_marker_is_reported() {
    let found = broken("not-initialised", |f| {
        let mut server = f.groups.remove(0).servers.remove(0);
        server.marker = Ok(None);
        f.nodes.push(server);
    });
    assert_eq!(found.subject, "node 10.0.0.1:6379");
    let begin = "palisade init --new --node redis://10.0.0.1:6379  # if it never had any data";
    assert_eq!(found.fix, [begin]);
}

const NOON: u64 = 1_763_906_600_000;

fn lost(losses: &[(u64, u64)], now: u64, empty_for: Option<Duration>) -> KeptData {
    let losses = losses.iter().map(|&(from, to)| between(from, to)).collect();
    KeptData { empty_for, now, losses, ..KeptData::default() }
}

fn found(losses: &[(u64, u64)], now: u64) -> Finding {
    broken("data-loss", |f| f.groups[0].servers[0].marker = Ok(Some(lost(losses, now, None))))
}

#[test]
fn a_loss_is_named_with_what_it_means_for_keys() {
    fine("data-loss");
    let short = found(&[(1, 2), (NOON + 100, NOON + 1_399)], NOON + 3_600_000);
    assert_eq!((short.verdict, &*short.subject), (Verdict::Info, "orders-a"));
    // The message extends the loss (the span of lost writes) by twice `clock_error`, here by 4
    // s.
    assert_eq!(
        short.message,
        "lost at most 1.3 s of writes, 2025-11-23 14:03:20.1–14:03:21.4 UTC; keys whose \
         created_at is not after 2025-11-23 14:03:25.4 UTC, or is not given, count as \
         forgotten for another 23 h 1 min (with a retention of 24 h); where a request of \
         those moments may run again, accept_loss of 6 s or more on its namespace ends that"
    );
    let long = found(&[(NOON, NOON + 600_000)], NOON + 600_000);
    assert!(long.message.starts_with("lost at most 10 min 1 s of writes"), "{long:?}");
    assert!(long.message.ends_with("24 h)"), "{long:?}");
    let all = found(&[(0, NOON)], NOON);
    assert!(all.message.starts_with("may have lost every write until 2025-11-23"), "{all:?}");
    assert!(all.message.ends_with("24 h)"), "{all:?}");
}

#[test]
fn a_server_that_lost_everything_is_told_what_to_do() {
    let marker = KeptData {
        lost_everything: true,
        now: NOON + 1,
        losses: vec![between(0, NOON)],
        ..KeptData::default()
    };
    let found = broken("data-loss", |f| {
        f.groups[0].servers[0].marker = Ok(Some(marker));
    });
    assert_eq!(found.verdict, Verdict::Warning);
    assert!(found.message.contains("palisade idem decide"), "{found:?}");
    assert!(found.message.contains("palisade init --lost-everything"), "{found:?}");
    assert!(found.fix[0].starts_with("palisade idem incidents --node sentinel:"), "{found:?}");
}

#[test]
fn an_old_loss_and_a_server_that_began_empty_are_not_reported_here() {
    let of = |losses: &[(u64, u64)], now, empty_for| {
        let marker = Ok(Some(lost(losses, now, empty_for)));
        with("data-loss", |f| f.groups[0].servers[0].marker = marker, |_| {});
    };
    of(&[(NOON, NOON + 1)], NOON + 1 + 86_400_000, None);
    of(&[(0, NOON)], NOON + 1, Some(Duration::from_millis(1)));
    let closed = |f: &mut Facts| {
        f.groups[0].servers[0].marker = Err(Unread::Closed("GET not allowed".into()));
    };
    assert_eq!(unknown("data-loss", closed).message, "unknown (GET not allowed)");
}

fn marker(secs: u64) -> KeptData {
    KeptData { quarantine: Duration::from_secs(secs), ..KeptData::default() }
}

#[test]
fn a_length_that_nobody_here_asks_for_is_named() {
    fine("quarantine-long");
    let found = broken("quarantine-long", |f| {
        f.groups[0].servers[0].marker = Ok(Some(marker(90)));
    });
    assert_eq!(found.subject, "orders-a");
    assert!(found.message.contains("granted for 90s, 63s longer"), "{found:?}");
    assert!(found.message.contains("until a person lowers it"), "{found:?}");
    assert!(found.fix[0].starts_with("palisade doctor --max-ttl 78 "), "{found:?}");
    let lower = "palisade settings --lower --max-ttl 15 --node sentinel://10.0.0.1:26379,";
    assert!(found.fix[1].starts_with(lower), "{found:?}");
    // A client that cannot read `min-replicas-max-lag` adds 12 s to its `max_ttl` of 15 s for a
    // replaced master that may still grant. So a quarantine (a time without grants) of 27 s is
    // right.
    let edge = |f: &mut Facts| f.groups[0].servers[0].marker = Ok(Some(marker(27)));
    with("quarantine-long", edge, |_| {});
    // A quarantine (a time without grants) of 90 s is right if the application has a `max_ttl`
    // of 78 s, because 12 s are added for a replaced master that may still grant.
    let asked = |f: &mut Facts| {
        f.groups[0].servers[0].marker = Ok(Some(marker(90)));
        f.max_ttl = Duration::from_secs(78);
    };
    with("quarantine-long", asked, |_| {});
}

/// The rule of an address with `min_replicas=2&max_lag=20s&failover_window=30s`.
fn long_rule() -> MinReplicasRule {
    let (max_lag, window) = (Duration::from_secs(20), Some(Duration::from_secs(30)));
    MinReplicasRule { replicas: 2, max_lag, window, ..MinReplicasRule::default() }
}

#[test]
fn a_length_that_the_addresses_ask_for_is_right() {
    let group = |f: &mut Facts, secs, rule| {
        f.groups[0].servers[0].marker = Ok(Some(marker(secs)));
        f.groups[0].rule = rule;
    };
    // A client that may not read the servers' lags takes 30 s.
    with("quarantine-long", |f| group(f, 45, long_rule()), |_| {});
    broken("quarantine-long", |f| group(f, 46, long_rule()));
    // One that requires a lag of 3 s takes 5 s, whatever a server has.
    let max_lag = Duration::from_secs(3);
    let short = MinReplicasRule { max_lag, ..MinReplicasRule::default() };
    let lagging = |f: &mut Facts, secs| {
        group(f, secs, short);
        let config = f.groups[0].servers[1].config.as_mut().expect("its settings");
        config.insert("min-replicas-max-lag".into(), "60".into());
    };
    with("quarantine-long", |f| lagging(f, 20), |_| {});
    broken("quarantine-long", |f| lagging(f, 21));
    // Two groups of one name have a rule each.
    let twice = |f: &mut Facts, secs| {
        let mut second = f.groups[0].clone();
        second.servers[0].marker = Ok(Some(marker(secs)));
        second.rule = long_rule();
        f.groups.push(second);
    };
    with("quarantine-long", |f| twice(f, 45), |all| assert_eq!(all.len(), 2));
    let found = broken("quarantine-long", |f| twice(f, 90));
    assert!(found.message.contains("90s, 45s longer"), "{found:?}");
    let lone = |f: &mut Facts, secs| {
        let mut server = f.groups.remove(0).servers.remove(0);
        (server.marker, server.window) = (Ok(Some(marker(secs))), Duration::from_secs(5));
        server.url += "?failover_window=5s";
        f.nodes.push(server);
    };
    with("quarantine-long", |f| lone(f, 20), |_| {});
    let found = broken("quarantine-long", |f| lone(f, 21));
    assert!(found.fix[1].contains(":6379?failover_window=5s' --yes"), "{found:?}");
}

#[test]
fn a_lone_server_has_nobody_to_outlast() {
    let lone = |f: &mut Facts, secs| {
        let mut server = f.groups.remove(0).servers.remove(0);
        server.marker = Ok(Some(marker(secs)));
        f.nodes.push(server);
    };
    with("quarantine-long", |f| lone(f, 15), |all| assert_eq!(all.len(), 1));
    assert_eq!(broken("quarantine-long", |f| lone(f, 19)).subject, "node 10.0.0.1:6379");
    let closed = |f: &mut Facts| {
        f.groups[0].servers[0].marker = Err(Unread::Closed("GET not allowed".into()));
    };
    assert_eq!(unknown("quarantine-long", closed).message, "unknown (GET not allowed)");
}

/// Three lone servers with these ids of deployments and votes.
fn three(f: &mut Facts, ids: [(u64, u64); 3]) {
    let group = f.groups.remove(0);
    for (mut server, (deployment, vote)) in group.servers.into_iter().zip(ids) {
        let some = |id| Some(id).filter(|id| *id != 0);
        let (deployment, vote) = (some(deployment), some(vote));
        server.role = Ok(Role::Master);
        server.marker = Ok(Some(KeptData { deployment, vote, ..KeptData::default() }));
        f.nodes.push(server);
    }
}

const OTHER: &str = "other-deployment";

#[test]
fn nodes_of_different_deployments_are_named_with_their_ids() {
    fine(OTHER);
    for ids in [[(1, 1), (1, 2), (1, 3)], [(1, 1), (1, 2), (0, 0)], [(0, 0); 3]] {
        with(OTHER, |f| three(f, ids), |all| assert_eq!(all.len(), 1));
    }
    let found = broken(OTHER, |f| three(f, [(0xa1, 1), (0xb2, 2), (0xa1, 3)]));
    assert_eq!((found.verdict, &*found.subject), (Verdict::Error, "nodes"));
    let ids = "00000000000000a1 at 10.0.0.1:6379 and 10.0.0.3:6379, \
               00000000000000b2 at 10.0.0.2:6379";
    assert!(found.message.contains(ids), "{found:?}");
    let fix = "palisade settings --one-deployment --node redis://10.0.0.1:6379 --node";
    assert!(found.fix[0].starts_with(fix), "{found:?}");
}

#[test]
fn the_id_of_the_settings_decides_which_nodes_are_others() {
    let given = |f: &mut Facts, ids| {
        three(f, ids);
        f.deployment = Some(0xa1);
    };
    with(OTHER, |f| given(f, [(0xa1, 1), (0xa1, 2), (0, 0)]), |_| {});
    let found = broken(OTHER, |f| given(f, [(0xb2, 1), (0xa1, 2), (0xb2, 3)]));
    let others = "00000000000000b2 at 10.0.0.1:6379 and 10.0.0.3:6379; point";
    assert!(found.message.contains(others), "{found:?}");
    assert!(found.message.contains("deployment 00000000000000a1"), "{found:?}");
    // With one node there is no other.
    let lone = |f: &mut Facts| {
        given(f, [(0xb2, 1); 3]);
        f.nodes.truncate(1);
    };
    assert_eq!(broken(OTHER, lone).verdict, Verdict::Error);
}

#[test]
fn one_vote_of_two_nodes_is_reported() {
    let found = broken(OTHER, |f| three(f, [(1, 7), (1, 8), (1, 7)]));
    let vote = "0000000000000007 at 10.0.0.1:6379 and 10.0.0.3:6379";
    assert!(found.message.contains(vote), "{found:?}");
    let closed = |f: &mut Facts| {
        three(f, [(1, 7), (1, 8), (1, 9)]);
        f.nodes[1].marker = Err(Unread::Closed("MGET not allowed".into()));
    };
    assert_eq!(unknown(OTHER, closed).subject, "node 10.0.0.2:6379");
}
