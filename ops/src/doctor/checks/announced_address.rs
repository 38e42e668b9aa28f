//! Can clients on other machines use the addresses that Sentinels hand out?

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::facts::{Facts, Fields, Group, Sentinel, host_of, place};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "announced-address",
    severity: Severity::Error,
    title: "addresses that Sentinels hand out mean the same server everywhere",
    why: "clients connect to the address that a Sentinel gives: 127.0.0.1 is a different machine \
          for each client, and one server under two addresses (NAT, port maps, a changed \
          announce-port) counts as two replicas, one of which can never be promoted",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let mut found: Vec<Finding> = facts.watches().map(|(g, s)| handed_out(g, s)).collect();
    found.extend(facts.groups.iter().flat_map(twice));
    found
}

/// Local addresses that a Sentinel on another machine hands out.
fn handed_out(group: &Group, sentinel: &Sentinel) -> Finding {
    let subject = format!("{} Sentinel {}", group.name, sentinel.at);
    let master = match sentinel.master.known() {
        Ok(master) => master,
        Err(why) => return Finding::unknown(subject, why),
    };
    let list =
        |all: Option<&Vec<Fields>>| all.into_iter().flatten().filter_map(place).collect::<Vec<_>>();
    let (replicas, others) = (list(sentinel.replicas.ok()), list(sentinel.others.ok()));
    let named: Vec<String> = place(master).into_iter().collect();
    let all = [&named, &replicas, &others].map(|l| l.join(", ")).join("; ");
    let here = host_of(&sentinel.at);
    let wrong = |at: &&String| is_everyones_own(host_of(at)) && !is_everyones_own(here);
    let mut mend = Vec::new();
    // For a Sentinel, 127.0.0.1 is its own machine: the host at which we reach the Sentinel.
    let agreed = |at: &&String| wrong(at) && group.is_agreed(at);
    for at in named.iter().filter(agreed) {
        let port = at.rsplit_once(':').map_or("6379", |(_, port)| port);
        let (name, quorum) = (&group.name, sentinel.number("quorum").unwrap_or(2));
        mend.push(sentinel.by_hand(&format!("SENTINEL REMOVE {name}")));
        mend.push(sentinel.by_hand(&format!("SENTINEL MONITOR {name} {here} {port} {quorum}")));
    }
    for at in replicas.iter().filter(agreed) {
        let port = at.rsplit_once(':').map_or("6379", |(_, port)| port);
        let to = format!("redis-cli -h {here} -p {port}");
        mend.push(format!("{to} CONFIG SET replica-announce-ip {here}"));
        mend.push(format!("{to} CONFIG REWRITE"));
    }
    for at in others.iter().filter(agreed) {
        let port = at.rsplit_once(':').map_or("26379", |(_, port)| port);
        mend.push(format!("redis-cli -h {here} -p {port} SENTINEL CONFIG SET announce-ip {here}"));
    }
    if ![&named, &replicas, &others].into_iter().flatten().any(|at| wrong(&at)) {
        return Finding::fine(subject, all);
    }
    let says = "it hands out a local address: clients on other machines connect to themselves";
    Finding::error(subject, says, all).mend(mend)
}

/// Loopback or no address at all.
fn is_everyones_own(host: &str) -> bool {
    let own = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
    host.parse().map_or(host == "localhost" || host.contains('/'), own)
}

/// Servers that answer under two addresses of the same group.
fn twice(group: &Group) -> Vec<Finding> {
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    let mut found = Vec::new();
    for server in group.servers.iter().filter(|s| s.reached.is_ok()) {
        let Ok(run_id) = server.info("run_id") else { continue };
        let Some(also) = first.insert(run_id, &server.at) else { continue };
        let says = format!("this is the same server as {also}");
        let set = format!("SENTINEL RESET {}", group.name);
        let mend = group.heard().map(|s| format!("{}; sleep 30", s.by_hand(&set)));
        let subject = format!("{} {}", group.name, server.at);
        found.push(Finding::warning(subject, says, format!("run_id:{run_id}")).mend(mend));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::tests::{all_masters, broken, fine, info_on, with};

    #[test]
    fn loopback_in_the_answer_of_a_sentinel_elsewhere() {
        fine("announced-address");
        let found = broken("announced-address", |f| {
            all_masters(f, "ip", "127.0.0.1");
            // Nobody but this Sentinel is looked at.
            f.groups[0].sentinels.truncate(1);
        });
        assert_eq!(found.subject, "orders-a Sentinel 10.0.0.1:26379");
        let to = "redis-cli -h 10.0.0.1 -p 26379 SENTINEL";
        assert_eq!(found.mend[0], format!("{to} REMOVE orders-a"));
        assert_eq!(found.mend[1], format!("{to} MONITOR orders-a 10.0.0.1 6379 2"));
        let found = broken("announced-address", |f| {
            for s in &mut f.groups[0].sentinels[..2] {
                let Read::Got(all) = &mut s.replicas else { unreachable!() };
                all[0].insert("ip".into(), "::1".into());
            }
            f.groups[0].sentinels.truncate(2);
        });
        assert!(found.mend[0].ends_with("CONFIG SET replica-announce-ip 10.0.0.1"), "{found:?}");
        let found = broken("announced-address", |f| {
            f.groups[0].sentinels.truncate(1);
            let Read::Got(all) = &mut f.groups[0].sentinels[0].others else { unreachable!() };
            all[1].insert("ip".into(), "localhost".into());
        });
        assert!(found.mend[0].ends_with("SENTINEL CONFIG SET announce-ip 10.0.0.1"), "{found:?}");
    }

    #[test]
    fn all_on_one_machine_is_no_fault_of_addresses() {
        let here = |f: &mut super::Facts| {
            all_masters(f, "ip", "127.0.0.1");
            for (n, s) in f.groups[0].sentinels.iter_mut().enumerate() {
                s.at = format!("127.0.0.1:2637{n}");
            }
        };
        with("announced-address", here, |_| {});
    }

    #[test]
    fn one_server_under_two_addresses() {
        let found = broken("announced-address", |f| {
            info_on(&mut f.groups[0].servers[2], "run_id", &"2".repeat(40));
        });
        assert_eq!(found.subject, "orders-a 10.0.0.3:6379");
        assert!(found.says.contains("10.0.0.2:6379"), "{found:?}");
        assert!(found.mend[2].starts_with("redis-cli -h 10.0.0.3 -p 26379 SENTINEL RESET"));
    }
}
