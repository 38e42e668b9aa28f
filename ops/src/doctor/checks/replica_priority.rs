//! No replica is preferred over one with more data.

use std::collections::{BTreeMap, BTreeSet};

use super::super::facts::{Facts, Group};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "replica-priority-unequal",
    severity: Severity::Warning,
    title: "all servers that may be promoted have the same replica-priority",
    why: "priority outranks data: the preferred replica, 6 s behind, was promoted over a complete \
          one, 623 of 623 confirmed writes lost; with equal priorities 0 of 624 (measured)",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    facts.groups.iter().filter(|g| g.heard().next().is_some()).map(judge).collect()
}

fn judge(group: &Group) -> Finding {
    // The Sentinels' values; for the master, which may be a replica tomorrow, its own setting.
    let mut all: BTreeMap<String, u64> =
        group.heard().flat_map(super::super::facts::Sentinel::priorities).collect();
    for server in &group.servers {
        if let Ok(priority) = server.number("replica-priority") {
            all.insert(server.at.clone(), priority);
        }
    }
    if all.is_empty() {
        let closed = group.heard().find_map(|s| s.replicas.known().err());
        return Finding::unknown(&group.name, closed.unwrap_or_else(|| "no replicas".into()));
    }
    // A replica with priority 0 is never promoted, so it is not preferred.
    let values: BTreeSet<u64> = all.values().copied().filter(|p| *p > 0).collect();
    let read: Vec<_> = all.iter().map(|(at, priority)| format!("{at} {priority}")).collect();
    let read = read.join(", ");
    if values.len() < 2 {
        return Finding::fine(&group.name, read);
    }
    let odd = group.servers.iter().filter(|s| !matches!(all.get(&s.at), None | Some(0 | 100)));
    let says = "the replica with the lowest priority is promoted, however far behind it is";
    Finding::warning(&group.name, says, read)
        .mend(odd.flat_map(|s| s.set("replica-priority", "100")))
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::Read;
    use super::super::tests::{broken, close_config, fine, set_on, unknown, with};

    #[test]
    fn a_preferred_server_is_told_also_if_it_is_the_master() {
        fine("replica-priority-unequal");
        for n in [0, 2] {
            let found = broken("replica-priority-unequal", |f| {
                set_on(&mut f.groups[0].servers[n], "replica-priority", "10");
            });
            let end = "CONFIG SET replica-priority 100";
            assert_eq!(found.mend[0], format!("redis-cli -h 10.0.0.{} -p 6379 {end}", n + 1));
        }
        with(
            "replica-priority-unequal",
            |f| set_on(&mut f.groups[0].servers[2], "replica-priority", "0"),
            |_| {},
        );
        unknown("replica-priority-unequal", |f| {
            close_config(f);
            for s in &mut f.groups[0].sentinels {
                s.replicas = Read::Closed("CONFIG not allowed".into());
            }
        });
    }
}
