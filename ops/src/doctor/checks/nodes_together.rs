//! The nodes fail independently.

use std::collections::{BTreeMap, BTreeSet};

use super::super::facts::{Facts, host_of};
use super::super::report::{Finding, Severity};
use super::Check;
use super::no_replica::one_more;

pub(super) const CHECK: Check = Check {
    id: "nodes-together",
    severity: Severity::Warning,
    title: "no host holds the masters of a majority of nodes, and no Sentinel watches over two",
    why: "a majority helps only if nodes fail independently: a host with two masters of three \
          takes a majority with it, and Sentinels shared by several groups, once cut off, leave \
          all of these groups without failover",
    run,
};

fn run(facts: &Facts) -> Vec<Finding> {
    let all = facts.groups.len() + facts.nodes.len();
    if all < 2 {
        return vec![Finding::fine("nodes", "one node")];
    }
    let mut hosts: BTreeMap<String, usize> = BTreeMap::new();
    let masters = facts.groups.iter().filter_map(super::super::facts::Group::master_at);
    for at in masters.chain(facts.nodes.iter().map(|s| s.at.clone())) {
        *hosts.entry(host_of(&at).to_owned()).or_default() += 1;
    }
    let minority = (all - 1) / 2;
    let list: Vec<_> = hosts.iter().map(|(host, n)| format!("{host} ({n})")).collect();
    let mut wrong: Vec<String> = hosts
        .iter()
        .filter(|(_, n)| **n > minority)
        .map(|(host, n)| format!("{host} holds {n} of {all} masters; only {minority} may be lost"))
        .collect();
    let shared = shared(facts);
    if !shared.is_empty() {
        wrong.push(format!("Sentinels watch over several groups: {}", shared.join(", ")));
    }
    let read = format!("masters on {}", list.join(", "));
    if wrong.is_empty() {
        return vec![Finding::fine("nodes", read)];
    }
    // A failover moves a master to a replica elsewhere; without a replica, add one first.
    let mend = facts.groups.iter().filter_map(|g| {
        let (first, master) = (g.heard().next()?, g.master_at()?);
        (hosts[host_of(&master)] > minority).then_some(())?;
        let elsewhere = g.replicas().any(|r| !hosts.contains_key(host_of(&r.at)));
        let add = (!elsewhere).then(|| one_more(g));
        let go = first.by_hand(&format!("SENTINEL FAILOVER {}", g.name));
        Some(add.into_iter().chain([go]).collect::<Vec<_>>())
    });
    let mend: Vec<_> = mend.skip(minority).flatten().collect();
    vec![Finding::warning("nodes", wrong.join("; "), read).mend(mend)]
}

/// Sentinels that were asked about more than one group.
fn shared(facts: &Facts) -> Vec<String> {
    let mut seen: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (group, sentinel) in facts.watches() {
        seen.entry(&sentinel.at).or_default().insert(&group.name);
    }
    seen.retain(|_, groups| groups.len() > 1);
    seen.into_keys().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{broken, fine, with};
    use super::*;

    fn lone(f: &mut Facts, at: &str) {
        let mut server = f.groups[0].servers[0].clone();
        server.at = at.into();
        f.nodes.push(server);
    }

    #[test]
    fn masters_on_one_host_and_shared_sentinels_are_told() {
        fine("nodes-together");
        let apart = |f: &mut Facts| {
            lone(f, "10.0.1.1:6379");
            lone(f, "10.0.2.1:6379");
        };
        with("nodes-together", apart, |_| {});
        let found = broken("nodes-together", |f| {
            lone(f, "10.0.1.1:6379");
            lone(f, "10.0.1.1:6380");
        });
        assert_eq!(found.says, "10.0.1.1 holds 2 of 3 masters; only 1 may be lost");
        let found = broken("nodes-together", |f| {
            apart(f);
            let mut second = f.groups[0].clone();
            second.name = "orders-b".into();
            f.groups.push(second);
            f.nodes.remove(0);
            f.groups[1].sentinels.remove(0);
        });
        assert!(found.says.contains("10.0.0.2:26379, 10.0.0.3:26379"), "{found:?}");
    }
}
