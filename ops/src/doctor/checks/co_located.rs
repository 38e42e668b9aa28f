//! The loss of one host does not stop the group.

use std::collections::BTreeMap;

use super::super::facts::{Facts, Group, host_of};
use super::super::report::{Finding, Severity};
use super::Check;
use super::no_replica::one_more as one_more_server;
use super::sentinel_count::one_more as one_more_sentinel;

pub(super) const CHECK: Check = Check {
    id: "co-located",
    severity: Severity::Warning,
    title: "the loss of one host leaves a majority of Sentinels and enough servers",
    why: "servers that fail together count as one; the doctor sees only addresses, so two \
          addresses on one machine, rack or hypervisor look like two hosts",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let known = |g: &&Group| !g.servers.is_empty() || !g.skipped.is_empty();
    facts.groups.iter().filter(known).map(judge).collect()
}

fn judge(group: &Group) -> Finding {
    let sentinels = count(group.sentinels.iter().map(|s| s.at.as_str()));
    let servers = count(group.servers.iter().map(|s| s.at.as_str()));
    let (all, majority) = (group.sentinels.len(), group.sentinels.len() / 2 + 1);
    let needed = group.master().and_then(|m| m.number("min-replicas-to-write").ok()).unwrap_or(1);
    let enough = usize::try_from(needed).unwrap_or(usize::MAX).saturating_add(1);
    let read = format!("servers on {}; Sentinels on {}", list(&servers), list(&sentinels));
    let mut wrong = Vec::new();
    for (host, n) in &sentinels {
        if all - n < majority {
            wrong.push(format!("without {host} no majority of the Sentinels is left"));
        }
    }
    for (host, n) in &servers {
        let left = group.servers.len() - n;
        if left < enough {
            wrong.push(format!("without {host} {left} servers are left, {enough} are needed"));
        }
    }
    if wrong.is_empty() {
        return Finding::fine(&group.name, read);
    }
    let mut mend = Vec::new();
    if lonely(&sentinels, all, majority) {
        mend.push(one_more_sentinel(group, majority as u64));
    }
    if lonely(&servers, group.servers.len(), enough) {
        mend.push(one_more_server(group));
    }
    Finding::warning(&group.name, wrong.join("; "), read).mend(mend)
}

/// Whether the loss of one host leaves fewer than `enough`.
fn lonely(hosts: &BTreeMap<&str, usize>, all: usize, enough: usize) -> bool {
    hosts.values().any(|n| all - n < enough)
}

fn count<'a>(at: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, usize> {
    let mut hosts = BTreeMap::new();
    for host in at.map(host_of) {
        *hosts.entry(host).or_default() += 1;
    }
    hosts
}

fn list(hosts: &BTreeMap<&str, usize>) -> String {
    let each: Vec<_> = hosts.iter().map(|(host, n)| format!("{host} ({n})")).collect();
    each.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{broken, fine};
    use super::*;

    #[test]
    fn what_one_host_would_take_with_it_is_told() {
        fine("co-located");
        let found = broken("co-located", |f| {
            f.groups[0].sentinels[1].at = "10.0.0.1:26380".into();
        });
        assert_eq!(found.says, "without 10.0.0.1 no majority of the Sentinels is left");
        assert!(found.mend[0].contains("sentinel monitor orders-a 10.0.0.1 6379 2"), "{found:?}");
        let found = broken("co-located", |f: &mut Facts| {
            f.groups[0].servers[1].at = "10.0.0.3:6380".into();
        });
        assert_eq!(found.says, "without 10.0.0.3 1 servers are left, 2 are needed");
    }
}
