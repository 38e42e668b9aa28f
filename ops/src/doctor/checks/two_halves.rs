//! The group cannot fall into two halves that both write.

use std::collections::BTreeSet;

use super::super::facts::{Facts, Group};
use super::super::report::{Finding, Severity};
use super::Check;

pub(super) const CHECK: Check = Check {
    id: "two-halves",
    severity: Severity::Warning,
    title: "fewer than 2(1 + k) servers with min-replicas-to-write k",
    why: "with more, a partition can leave k replicas to the old master and k to the new one: the \
          min-replicas check passes on both sides, and both grant",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    facts
        .groups
        .iter()
        .filter(|g| g.master().is_some_and(|m| m.reached.is_ok()))
        .map(judge)
        .collect()
}

fn judge(group: &Group) -> Finding {
    let Some(master) = group.master() else { return Finding::unknown(&group.name, "no master") };
    let k = match master.number("min-replicas-to-write") {
        Ok(k) => k,
        Err(why) => return Finding::unknown(&group.name, why),
    };
    // A server with two addresses counts once.
    let ids: Vec<_> = group.servers.iter().filter_map(|s| s.info("run_id").ok()).collect();
    let again = ids.len() - ids.iter().collect::<BTreeSet<_>>().len();
    let servers = (group.servers.len() - again) as u64;
    let read = format!("min-replicas-to-write {k}, {servers} servers");
    // Without the check `min-replicas-off` reports that.
    if k == 0 || servers < k.saturating_add(1).saturating_mul(2) {
        return Finding::fine(&group.name, read);
    }
    let enough = (servers / 2).to_string();
    let says = format!("two halves can each satisfy the check; set it to {enough} to prevent that");
    let mend = group.servers.iter().flat_map(|s| s.set("min-replicas-to-write", &enough));
    Finding::warning(&group.name, says, read).mend(mend)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{broken, close_config, fine, info_on, unknown, with};

    #[test]
    fn four_servers_with_one_replica_each_way_are_told() {
        fine("two-halves");
        let found = broken("two-halves", |f| {
            let mut fourth = f.groups[0].servers[2].clone();
            fourth.at = "10.0.0.4:6379".into();
            info_on(&mut fourth, "run_id", &"4".repeat(40));
            f.groups[0].servers.push(fourth);
        });
        assert!(found.mend[0].ends_with("CONFIG SET min-replicas-to-write 2"), "{found:?}");
        assert_eq!(found.read, "min-replicas-to-write 1, 4 servers");
        // One server under two addresses is still one.
        let again = |f: &mut super::Facts| {
            let mut again = f.groups[0].servers[2].clone();
            again.at = "10.0.0.4:6379".into();
            f.groups[0].servers.push(again);
        };
        with("two-halves", again, |_| {});
        assert_eq!(unknown("two-halves", close_config).says, "unknown (CONFIG not allowed)");
    }
}
