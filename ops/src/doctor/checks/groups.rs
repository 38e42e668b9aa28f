//! The doctor's checks of a Sentinel-watched group: its master and replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::facts::{Group, Role, Server, join, place};
use super::super::report::Finding;
use super::{Answer, Check, Run, wanted};
use palisade::internal::{ADVISED_LAG, LAG_SLACK, MinReplicasFacts};

pub(super) const TWO_MASTERS: Check = Check {
    id: "two-masters",
    why: "what the other one grants is lost as soon as it becomes a replica; an old master that \
          comes back remains a master for about 11 s (measured)",
    run: Run::Groups(two_masters),
};

fn two_masters(group: &Group) -> Answer {
    let roles: Vec<_> = group.servers.iter().map(|s| (s, s.role.as_ref())).collect();
    if let (true, Some((_, Err(why)))) = (roles.iter().all(|(_, r)| r.is_err()), roles.first()) {
        return Err((*why).into());
    }
    let masters = roles.iter().filter(|(_, role)| matches!(role, Ok(Role::Master)));
    let masters: Vec<&Server> = masters.map(|(server, _)| *server).collect();
    let named = group.master_at();
    let at: Vec<_> = masters.iter().map(|s| s.at.as_str()).collect();
    let who = named.as_deref().unwrap_or("no server");
    let evidence = format!("ROLE master at {}; the Sentinels name {who}", at.join(" and "));
    let others: Vec<_> = masters.iter().filter(|s| Some(&s.at) != named.as_ref()).collect();
    if others.is_empty() {
        return Ok(Finding::fine(evidence));
    }
    let message = "servers that the Sentinels do not name call themselves master; if that lasts \
                   for more than a minute, make them replicas by hand";
    // A server that is no master itself would be followed in a circle.
    let sure = group.master().is_some_and(|master| master.role == Ok(Role::Master));
    let fix = others.iter().filter(|_| sure).filter_map(|s| {
        let (host, port) = wanted::parts(named.as_deref()?);
        let takes_writes =
            s.info("slave_read_only") == Ok("0") || s.setting("replica-read-only") == Ok("no");
        let refuse = takes_writes.then(|| s.set("replica-read-only", "yes"));
        let follow = s.by_hand(&format!("REPLICAOF {host} {port}"));
        Some(refuse.into_iter().flatten().chain([follow]))
    });
    let fix = fix.flatten();
    let look = others.iter().map(|s| s.by_hand("ROLE"));
    Ok(Finding::error(message, evidence).fix(fix).or_look(look))
}

/// By the same function as the library. Each replica may become the master.
pub(super) const MIN_REPLICAS: Check = Check {
    id: "min-replicas",
    why: "a master that is cut off goes on granting: without the check there were two masters for \
          26 s in a partition of 15 s, and all of its 14 934 confirmed writes were lost at the \
          heal; with a lag of 10 s two for 4.9 s at down-after 5 s, with 2 s and 5 s never \
          (measured). If it is set on the master alone (CONFIG SET), the first failover removes it",
    run: Run::Members(min_replicas),
};

fn min_replicas(group: &Group, server: &Server) -> Answer {
    let config = server.config.as_ref();
    let pairs = config.ok().map(|all| {
        all.iter().map(|(name, value)| (name.clone(), value.clone())).collect::<Vec<_>>()
    });
    let facts = MinReplicasFacts::parse(&server.info_text()?, pairs.as_deref());
    if let (true, Err(why)) = (facts.is_on(), config) {
        return Err(why.into());
    }
    let shortest = group.down_after();
    let replicas = u32::try_from(group.servers.len().saturating_sub(1)).ok();
    let checked = group.rule.judge(&facts, shortest, replicas);
    let down_after = shortest.map_or("unknown".to_owned(), |d| d.as_millis().to_string());
    let evidence = format!("{facts}; shortest down-after-milliseconds {down_after}");
    let k = wanted::min_replicas(group, facts.min_replicas).to_string();
    let short_lag = ADVISED_LAG.min(group.rule.max_lag);
    Ok(match (checked.fault, checked.warning) {
        (Some(fault), _) if facts.is_on() && facts.max_lag <= Some(short_lag) => {
            let differs = facts.min_replicas.is_some_and(|now| now.to_string() != k);
            let more = differs.then(|| server.set("min-replicas-to-write", &k));
            let finding = Finding::error(fault, evidence).fix(wanted::set_down_after(group));
            finding.fix(more.into_iter().flatten())
        }
        (Some(fault), _) => {
            let lag = wanted::max_lag(group, facts.max_lag);
            let fits = Duration::from_secs(lag) + LAG_SLACK;
            let short = shortest.is_some_and(|down_after| down_after < fits);
            let longer = short.then(|| wanted::set_down_after(group)).into_iter().flatten();
            let fix = server.set("min-replicas-to-write", &k);
            let finding = Finding::error(fault, evidence).fix(fix);
            finding.fix(server.set("min-replicas-max-lag", &lag.to_string())).fix(longer)
        }
        (None, Some(warning)) => {
            Finding::warning(warning, evidence).fix(server.set("min-replicas-to-write", &k))
        }
        (None, None) => Finding::fine(evidence),
    })
}

pub(super) const REPLICA_PRIORITY: Check = Check {
    id: "replica-priority",
    why: "priority outranks data: the preferred replica, 6 s behind, was promoted over a complete \
          one, 623 of 623 confirmed writes lost; with equal priorities 0 of 624 (measured). With 0 \
          everywhere, or without replicas, a dead master is never replaced",
    run: Run::Groups(replica_priority),
};

fn replica_priority(group: &Group) -> Answer {
    // Sentinels report the priorities of the replicas only, and the master may become one.
    let mut all: BTreeMap<String, u64> = BTreeMap::new();
    let mut closed = Some("no Sentinel answered".to_owned());
    for sentinel in group.heard() {
        match sentinel.replicas.as_ref() {
            Ok(replicas) => {
                closed = None;
                all.extend(replicas.iter().filter_map(|replica| {
                    Some((place(replica)?, replica.get("slave-priority")?.parse().ok()?))
                }));
            }
            Err(why) => closed = closed.map(|_| why.into()),
        }
    }
    if let Some(why) = closed {
        return Err(why);
    }
    let own = group.servers.iter();
    all.extend(own.filter_map(|s| Some((s.at.clone(), s.number("replica-priority").ok()?))));
    let evidence: Vec<_> = all.iter().map(|(at, priority)| format!("{at} {priority}")).collect();
    let evidence = evidence.join(", ");
    let master = group.master_at().unwrap_or_default();
    let usual = |s: &Server| s.set("replica-priority", "100");
    let mut replicas = all.iter().filter(|(at, _)| **at != master).map(|(_, p)| *p).peekable();
    if replicas.peek().is_none() {
        let (host, port) = wanted::parts(&master);
        let login = match (&group.hand.user, group.hand.has_password) {
            (Some(_), _) => " --masteruser <user of the servers> --masterauth <its password>",
            (None, true) => " --masterauth <password of the servers>",
            (None, false) => "",
        };
        let more = format!("redis-server redis.conf --replicaof {host} {port}{login}");
        let more = format!("{more}    # on another box");
        let own = group.servers.iter().filter(|s| !matches!(all.get(&s.at), None | Some(100)));
        let own = own.flat_map(usual);
        let message = "there is no replica to promote";
        return Ok(Finding::error(message, evidence).fix([more]).fix(own));
    }
    if replicas.all(|priority| priority == 0) {
        // The master, too: it becomes a replica, and all of them are to be alike.
        let odd = group.servers.iter().filter(|s| !matches!(all.get(&s.at), None | Some(100)));
        let fix = odd.flat_map(usual);
        return Ok(Finding::error("no replica may be promoted", evidence).fix(fix));
    }
    let values: BTreeSet<u64> = all.values().copied().filter(|priority| *priority > 0).collect();
    if values.len() < 2 {
        return Ok(Finding::fine(evidence));
    }
    let odd = group.servers.iter().filter(|s| !matches!(all.get(&s.at), None | Some(0 | 100)));
    let message = "the replica with the lowest priority is promoted, however far behind it is";
    Ok(Finding::warning(message, evidence).fix(odd.flat_map(usual)))
}

pub(super) const REPLICAS: Check = Check {
    id: "replicas",
    why: "a replica without a link or with old data loses grants when it is promoted, and does not \
          count for the min-replicas check; a lock that is written on a replica was not granted by \
          the master",
    run: Run::Members(replicas),
};

/// Replicas acknowledge once a second.
const LAG: Duration = Duration::from_secs(3);

fn replicas(group: &Group, server: &Server) -> Answer {
    // The check `two-masters` reports a second master.
    if server.info("role")? == "master" {
        if wanted::lacks_tls_replication(server) {
            let message = format!("no replica and no Sentinel finds it: {}", wanted::PORT_0);
            let fix = server.set("tls-replication", "yes");
            return Ok(Finding::error(message, "port 0; tls-replication no").fix(fix));
        }
        return Ok(Finding::fine("role:master"));
    }
    let link = server.info("master_link_status").unwrap_or("unknown");
    let is_writable = server.info("slave_read_only") == Ok("0");
    let lag = group.master().and_then(|master| lag_of(master, &server.at));
    let shown = lag.map_or("unknown".to_owned(), |lag| format!("{} s", lag.as_secs()));
    let evidence = format!(
        "master_link_status:{link}; slave_read_only:{}; lag at the master {shown}",
        u8::from(!is_writable)
    );
    let look = [server.by_hand("INFO replication")];
    let refuse = || server.set("replica-read-only", "yes");
    Ok(if wanted::lacks_tls_replication(server) {
        let message = format!("it has no link by TLS and no address: {}", wanted::PORT_0);
        Finding::error(message, evidence).fix(server.set("tls-replication", "yes"))
    } else if link != "up" && group.master().is_none_or(|master| master.reached.is_err()) {
        let message = "its link to the master is down, because the master cannot be reached";
        Finding::warning(message, evidence).fix(look)
    } else if link != "up" && server.info("master_sync_in_progress") == Ok("1") {
        let message = "it copies its data from the master now, and has a link after that";
        Finding::warning(message, evidence).fix(look)
    } else if link != "up" {
        let message = "its link to the master is down";
        let login = login(group, server);
        let also = (!login.is_empty() && is_writable).then(refuse).into_iter().flatten();
        Finding::warning(message, evidence).fix(look).fix(login).fix(also)
    } else if lag.is_some_and(|lag| lag >= LAG) {
        let message = format!("the master received no acknowledgement from it for {shown}");
        Finding::warning(message, evidence).fix(look)
    } else if is_writable {
        Finding::warning("it takes writes of its own", evidence).fix(refuse())
    } else {
        Finding::fine(evidence)
    })
}

/// Returns the commands by which a replica logs in at its master, one setting each, because Redis
/// 6.2 takes no more in one command.
fn login(group: &Group, server: &Server) -> Vec<String> {
    let settings: &[&str] = match (&group.hand.user, group.hand.has_password) {
        (Some(_), _) => &["masterauth <its password>", "masteruser <user of the servers>"],
        (None, true) => &["masterauth <password of the servers>"],
        (None, false) => &[],
    };
    settings.iter().map(|setting| server.by_hand(&format!("CONFIG SET {setting}"))).collect()
}

/// Returns the age of the last acknowledgement of the replica `at`. The master's `INFO` has a line
/// for each replica: `slave0:ip=10.0.0.2,port=6379,state=online,offset=1000,lag=0`.
fn lag_of(master: &Server, at: &str) -> Option<Duration> {
    master.replica_lines().find_map(|line| {
        let field = |name| line.get(name).copied().unwrap_or_default();
        let is_it = join(field("ip"), field("port")) == at;
        is_it.then(|| field("lag").parse().ok().map(Duration::from_secs))?
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::facts::{Facts, Unread};
    use super::super::super::report::Verdict;
    use super::super::tests::{
        all_masters, broken, close_config, fine, info_on, set, set_on, unknown, with,
    };

    #[test]
    fn a_second_master_is_told() {
        fine("two-masters");
        let found = broken("two-masters", |f| {
            f.groups[0].servers[2].role = f.groups[0].servers[0].role.clone();
        });
        assert_eq!(found.fix, ["redis-cli -h 10.0.0.3 -p 6379 REPLICAOF 10.0.0.1 6379"]);
        unknown("two-masters", |f| {
            for s in &mut f.groups[0].servers {
                s.role = Err(Unread::Closed("ROLE not allowed".into()));
            }
        });
    }

    #[test]
    fn a_replica_without_a_link_is_given_the_login_that_the_group_has() {
        let of = |user: Option<&str>, has_password, copies| {
            broken("replicas", |f| {
                let group = &mut f.groups[0];
                (group.hand.user, group.hand.has_password) =
                    (user.map(str::to_owned), has_password);
                info_on(&mut group.servers[1], "master_link_status", "down");
                info_on(&mut group.servers[1], "master_sync_in_progress", copies);
            })
        };
        let to = "redis-cli -h 10.0.0.2 -p 6379";
        let look = format!("{to} INFO replication");
        let set = |setting: &str| format!("{to} CONFIG SET {setting}");
        assert_eq!(of(None, false, "0").fix, [&*look]);
        let password = set("masterauth <password of the servers>");
        assert_eq!(of(None, true, "0").fix, [&*look, &password]);
        let both = [set("masterauth <its password>"), set("masteruser <user of the servers>")];
        assert_eq!(of(Some("ops"), true, "0").fix, [&*look, &both[0], &both[1]]);
        let copies = of(Some("ops"), true, "1");
        assert_eq!(copies.fix, [&*look]);
        assert!(copies.message.contains("copies its data"), "{copies:?}");
    }

    #[test]
    fn a_replica_that_does_not_follow_closely() {
        fine("replicas");
        let found = broken("replicas", |f| {
            info_on(&mut f.groups[0].servers[1], "master_link_status", "down");
        });
        assert_eq!(found.subject, "orders-a 10.0.0.2:6379");
        let found = broken("replicas", |f| {
            let line = "ip=10.0.0.3,port=6379,state=online,offset=1000,lag=3";
            info_on(&mut f.groups[0].servers[0], "slave1", line);
        });
        assert_eq!(found.subject, "orders-a 10.0.0.3:6379");
        assert!(found.message.contains("for 3 s"), "{found:?}");
    }

    #[test]
    fn a_replica_that_takes_writes() {
        let found = broken("replicas", |f| {
            info_on(&mut f.groups[0].servers[2], "slave_read_only", "0");
        });
        let fix = "redis-cli -h 10.0.0.3 -p 6379 CONFIG SET replica-read-only yes";
        assert_eq!(found.fix[0], fix);
    }

    fn priority(f: &mut Facts, replica: usize, value: &str) {
        set_on(&mut f.groups[0].servers[replica + 1], "replica-priority", value);
        for s in &mut f.groups[0].sentinels {
            let Ok(replicas) = &mut s.replicas else { panic!("no answer") };
            replicas[replica].insert("slave-priority".into(), value.into());
        }
    }

    #[test]
    fn a_group_that_cannot_fail_over_is_told() {
        fine("replica-priority");
        with("replica-priority", |f| priority(f, 0, "0"), |_| {});
        let found = broken("replica-priority", |f| {
            priority(f, 0, "0");
            priority(f, 1, "0");
        });
        assert_eq!(found.verdict, Verdict::Error);
        let fix = "redis-cli -h 10.0.0.2 -p 6379 CONFIG SET replica-priority 100";
        assert_eq!(found.fix[0], fix);
        let found = broken("replica-priority", |f| {
            f.groups[0].servers.truncate(1);
            for s in &mut f.groups[0].sentinels {
                s.replicas = Ok(Vec::new());
            }
        });
        assert!(found.fix[0].contains("--replicaof 10.0.0.1 6379  "), "{found:?}");
        let found = broken("replica-priority", |f| {
            f.groups[0].servers.truncate(1);
            f.groups[0].hand.has_password = true;
            for s in &mut f.groups[0].sentinels {
                s.replicas = Ok(Vec::new());
            }
        });
        assert!(found.fix[0].contains("6379 --masterauth <password"), "{found:?}");
        unknown("replica-priority", |f| {
            for s in &mut f.groups[0].sentinels {
                s.replicas = Err(Unread::Closed("not allowed".into()));
            }
        });
    }

    #[test]
    fn a_preferred_server_is_told_also_if_it_is_the_master() {
        for n in [0, 2] {
            let found = broken("replica-priority", |f| {
                set_on(&mut f.groups[0].servers[n], "replica-priority", "10");
            });
            assert_eq!(found.verdict, Verdict::Warning);
            let end = "CONFIG SET replica-priority 100";
            assert_eq!(found.fix[0], format!("redis-cli -h 10.0.0.{} -p 6379 {end}", n + 1));
        }
    }

    fn off(f: &mut Facts, n: usize) {
        let server = &mut f.groups[0].servers[n];
        set_on(server, "min-replicas-to-write", "0");
        let Ok(info) = &mut server.info else { panic!("INFO is closed") };
        info.remove("min_slaves_good_slaves");
    }

    #[test]
    fn every_server_needs_the_check_that_the_library_requires() {
        fine("min-replicas");
        for n in [0, 1] {
            let found = broken("min-replicas", |f| off(f, n));
            assert_eq!(found.verdict, Verdict::Error);
            assert_eq!(found.subject, format!("orders-a 10.0.0.{}:6379", n + 1));
            let fix = format!("redis-cli -h 10.0.0.{} -p 6379 CONFIG SET", n + 1);
            assert_eq!(found.fix[0], format!("{fix} min-replicas-to-write 1"));
            assert_eq!(found.fix[2], format!("{fix} min-replicas-max-lag 2"));
        }
        // Without `CONFIG`, `INFO` shows that the check is off, but not its settings.
        let found = broken("min-replicas", |f| {
            off(f, 0);
            close_config(f);
        });
        assert_eq!(found.subject, "orders-a 10.0.0.1:6379");
        assert_eq!(unknown("min-replicas", close_config).message, "unknown (CONFIG not allowed)");
    }

    #[test]
    fn the_check_is_judged_by_what_the_address_requires() {
        let two = broken("min-replicas", |f| f.groups[0].rule.replicas = 2);
        assert!(two.message.contains("min-replicas-to-write is 1, but 2 is required"), "{two:?}");
        assert!(two.fix[0].ends_with("CONFIG SET min-replicas-to-write 2"), "{two:?}");
        let one = broken("min-replicas", |f| f.groups[0].rule.max_lag = Duration::from_secs(1));
        assert!(one.message.contains("min-replicas-max-lag is 2, but at most 1"), "{one:?}");
        assert!(one.fix[2].ends_with("CONFIG SET min-replicas-max-lag 1"), "{one:?}");
        let long = |f: &mut Facts| {
            f.groups[0].rule.max_lag = Duration::from_secs(20);
            set(f, "min-replicas-max-lag", "15");
            all_masters(f, "down-after-milliseconds", "17000");
        };
        with("min-replicas", long, |_| {});
    }

    #[test]
    fn the_lag_has_to_fit_into_down_after() {
        let found = broken("min-replicas", |f| set(f, "min-replicas-max-lag", "10"));
        assert!(found.fix[2].ends_with("CONFIG SET min-replicas-max-lag 2"), "{found:?}");
        let found = broken("min-replicas", |f| all_masters(f, "down-after-milliseconds", "3999"));
        assert!(found.fix[0].ends_with("SET orders-a down-after-milliseconds 4000"), "{found:?}");
        with("min-replicas", |f| all_masters(f, "down-after-milliseconds", "4000"), |_| {});
    }

    #[test]
    fn a_group_that_can_be_two_halves() {
        let found = broken("min-replicas", |f| {
            let mut more = f.groups[0].servers[2].clone();
            more.at = "10.0.0.4:6379".into();
            f.groups[0].servers.push(more);
        });
        assert_eq!(found.verdict, Verdict::Warning);
        assert!(found.fix[0].ends_with("CONFIG SET min-replicas-to-write 2"), "{found:?}");
    }
}
